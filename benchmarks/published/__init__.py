"""Published training speeds beside predictions: ``python -m benchmarks.published``."""
