"""One command that checks all of the project on a machine with one GPU: ``make gpu-check``."""
