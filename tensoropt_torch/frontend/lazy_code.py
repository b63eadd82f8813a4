"""Code of graphs that nobody calls is not written."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from torch import fx, nn

try:
    from torch.fx._lazy_graph_module import _make_graph_module, _use_lazy_graph_module
except ImportError:  # private: a PyTorch may be without it
    _use_lazy_graph_module = None  # type: ignore[assignment]


def lazy_code() -> AbstractContextManager[None]:
    """Inside, graph modules that PyTorch makes have their Python code written when they are
    called. ``torch.export`` makes several of them on its way, and calls none: a tenth of its
    time."""
    return nullcontext() if _use_lazy_graph_module is None else _use_lazy_graph_module(True)


def graph_module(root: nn.Module, graph: fx.Graph) -> fx.GraphModule:
    """``fx.GraphModule`` whose code is written when it is called, which may be never."""
    if _use_lazy_graph_module is None:
        return fx.GraphModule(root, graph)
    with lazy_code():
        return _make_graph_module(root, graph)
