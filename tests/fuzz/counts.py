"""How many inputs were given, by their kind."""

from collections import Counter

GIVEN: Counter[str] = Counter()
