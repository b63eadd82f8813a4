"""Whatever is given, one clear error or a right result."""
