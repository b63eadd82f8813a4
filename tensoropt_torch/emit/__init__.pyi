from .whole import CutGraph, WholeGraph, backend_of, cut_graph, whole_graph

__all__ = ["CutGraph", "WholeGraph", "backend_of", "cut_graph", "whole_graph"]
