"""Models at the sizes that benchmarks plan for."""
