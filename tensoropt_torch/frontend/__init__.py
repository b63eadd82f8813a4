"""From an ordinary ``nn.Module`` to the graph that the planner works on."""

from tensoropt_torch.frontend.capture import CapturedModel, as_module, capture
from tensoropt_torch.frontend.passes.nodes import is_cast
from tensoropt_torch.frontend.sources import Source

__all__ = ["CapturedModel", "Source", "as_module", "capture", "is_cast"]
