"""The strategy space of a model: what it depends on, what users pin in it, its form in C++."""
