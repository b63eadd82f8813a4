"""The graph of one rank, written from what its part of a plan does."""
