"""From an ordinary ``nn.Module`` to the graph that the planner works on."""

from tensoropt_torch.frontend.call_context import CallContext, CallForm
from tensoropt_torch.frontend.capture import CapturedModel, as_module, capture
from tensoropt_torch.frontend.passes import Blocks
from tensoropt_torch.frontend.passes.nodes import is_cast
from tensoropt_torch.frontend.sources import Source
from tensoropt_torch.frontend.structure import ModelStructure

__all__ = [
    "Blocks",
    "CallContext",
    "CallForm",
    "CapturedModel",
    "ModelStructure",
    "Source",
    "as_module",
    "capture",
    "is_cast",
]
