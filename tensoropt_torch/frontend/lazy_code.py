"""Code of graphs that nobody calls is not written."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

try:
    from torch.fx._lazy_graph_module import _use_lazy_graph_module
except ImportError:  # private: a PyTorch may be without it
    _use_lazy_graph_module = None  # type: ignore[assignment]


def lazy_code() -> AbstractContextManager[None]:
    """Inside, graph modules that PyTorch makes have their Python code written when they are
    called. ``torch.export`` makes several of them on its way, and calls none: a tenth of its
    time."""
    return nullcontext() if _use_lazy_graph_module is None else _use_lazy_graph_module(True)
