"""What a strategy does, in words and figures."""
