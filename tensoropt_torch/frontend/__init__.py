"""From an ordinary ``nn.Module`` to the graph that the planner works on."""

from tensoropt_torch.frontend.capture import CapturedModel, Source, capture

__all__ = ["CapturedModel", "Source", "capture"]
