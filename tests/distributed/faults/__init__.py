"""Faults that are put into small jobs at random points, and what has to follow of each."""
