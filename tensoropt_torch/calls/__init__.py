"""The calls of a parallel module: of which kind each is, and whether its inputs and the
captured graph are what they should be."""
