"""Cost frontiers of parallelization strategies for PyTorch models."""
