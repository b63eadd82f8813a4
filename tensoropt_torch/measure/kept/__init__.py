"""Files of what was measured, run and found, for later jobs."""
