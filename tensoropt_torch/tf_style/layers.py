"""Images and layers with variables of their own.

Images are ``[batch, height, width, channels]`` (``data_format="NHWC"``, as in
TensorFlow) or ``[batch, channels, height, width]`` (``"NCHW"``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from torch import nn

from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.tf_style import functions
from tensoropt_torch.tf_style.graph import current_graph
from tensoropt_torch.tf_style.tensor import Tensor

DataFormat = Literal["NHWC", "NCHW"]
Padding = Literal["SAME", "VALID"]
Sizes = int | Sequence[int]  # one for height and width, two, or one for each dim


def conv2d(
    x: Tensor,
    filters: Tensor,
    strides: Sizes = 1,
    padding: Padding = "SAME",
    data_format: DataFormat = "NHWC",
    dilations: Sizes = 1,
) -> Tensor:
    """Convolution with filters ``[height, width, in, out]``."""
    channels = _image_shape(x, data_format)[2]
    if len(filters.shape) != 4 or filters.shape[2] != channels:
        raise TensorOptError(
            f"conv2d: '{x.name}' {list(x.shape)} ({data_format}) has {channels} channels, filters "
            f"'{filters.name}' {list(filters.shape)} must be [height, width, {channels}, out]; "
            "data_format says where the channels of the images are"
        )
    steps, holes = _pair(strides, data_format), _pair(dilations, data_format)
    window = [(size - 1) * hole + 1 for size, hole in zip(filters.shape, holes, strict=False)]
    pads = _pads(x, window, steps, padding, data_format)
    return current_graph().call_images(
        functions.convolve,
        x,
        filters,
        steps,
        pads,
        holes,
        channels_first=data_format == "NCHW",
    )


def max_pool(
    x: Tensor,
    ksize: Sizes,
    strides: Sizes,
    padding: Padding = "VALID",
    data_format: DataFormat = "NHWC",
) -> Tensor:
    """Maxima of windows."""
    return _pool(functions.max_pool, x, (ksize, strides), padding, data_format)


def avg_pool(
    x: Tensor,
    ksize: Sizes,
    strides: Sizes,
    padding: Padding = "VALID",
    data_format: DataFormat = "NHWC",
) -> Tensor:
    """Means of windows; what lies outside the image does not count."""
    return _pool(functions.avg_pool, x, (ksize, strides), padding, data_format)


def batch_norm(
    x: Tensor,
    momentum: float = 0.99,
    epsilon: float = 1e-3,
    data_format: DataFormat = "NHWC",
    name: str | None = None,
) -> Tensor:
    """Normalise channels by the statistics of the global batch, with a weight and a
    bias. ``momentum`` is the share of the old running statistics, as in TensorFlow."""
    graph = current_graph()
    if len(x.shape) == 2:
        width = x.shape[1]
        path = graph.layer(lambda: nn.BatchNorm1d(width, epsilon, 1 - momentum), "batch_norm", name)
        result: Tensor = graph.call_layer(path, x)
        return result
    channels = _image_shape(x, data_format)[2]
    path = graph.layer(lambda: nn.BatchNorm2d(channels, epsilon, 1 - momentum), "batch_norm", name)
    return graph.call_images(path, x, channels_first=data_format == "NCHW")


def layer_norm(x: Tensor, epsilon: float = 1e-5, name: str | None = None) -> Tensor:
    """Normalise the last dim, with a weight and a bias."""
    graph = current_graph()
    path = graph.layer(lambda: nn.LayerNorm(x.shape[-1], epsilon), "layer_norm", name)
    result: Tensor = graph.call_layer(path, x)
    return result


def lstm(
    inputs: Tensor,
    num_units: int,
    num_layers: int = 1,
    bidirectional: bool = False,
    name: str | None = None,
) -> Tensor:
    """``[batch, time, units]`` for inputs ``[batch, time, width]``, from a state of zeros;
    twice the units if bidirectional. Variables are named as in ``torch.nn.LSTM``."""
    if len(inputs.shape) != 3:
        raise TensorOptError(
            f"lstm: inputs '{inputs.name}' {list(inputs.shape)} must be [batch, time, width]"
        )
    graph = current_graph()

    def make() -> nn.Module:
        return nn.LSTM(
            inputs.shape[2], num_units, num_layers, batch_first=True, bidirectional=bidirectional
        )

    outputs: Tensor = graph.call_layer(graph.layer(make, "lstm", name), inputs)[0]
    return outputs


def _pool(
    function: object,
    x: Tensor,
    windows: tuple[Sizes, Sizes],
    padding: Padding,
    data_format: DataFormat,
) -> Tensor:
    size, strides = (_pair(given, data_format) for given in windows)
    pads = _pads(x, size, strides, padding, data_format)
    return current_graph().call_images(
        function, x, size, strides, pads, channels_first=data_format == "NCHW"
    )


def _image_shape(x: Tensor, data_format: DataFormat) -> tuple[int, int, int]:
    """Height, width and channels."""
    if data_format not in ("NHWC", "NCHW"):
        raise TensorOptError(f"data_format '{data_format}' is not known; use 'NHWC' or 'NCHW'")
    if len(x.shape) != 4:
        raise TensorOptError(f"'{x.name}' {list(x.shape)} are no images: {data_format} has 4 dims")
    _, *rest = x.shape
    height, width, channels = rest if data_format == "NHWC" else (*rest[1:], rest[0])
    return height, width, channels


def _pair(sizes: Sizes, data_format: DataFormat) -> list[int]:
    """For height and width."""
    if isinstance(sizes, int):
        return [sizes, sizes]
    if len(sizes) == 4:
        first = 1 if data_format == "NHWC" else 2
        return list(sizes[first : first + 2])
    if len(sizes) == 2:
        return list(sizes)
    raise TensorOptError(f"sizes {list(sizes)}: give one number, two, or one for each of 4 dims")


def _pads(
    x: Tensor,
    window: Sequence[int],
    strides: Sequence[int],
    padding: Padding,
    data_format: DataFormat,
) -> list[int]:
    """Left, right, top, bottom; of an odd number the greater part is at the end."""
    if padding not in ("SAME", "VALID"):
        raise TensorOptError(f"padding '{padding}' is not known; use 'SAME' or 'VALID'")
    pads = []
    for size, width, stride in zip(_image_shape(x, data_format), window, strides, strict=False):
        needed = (math.ceil(size / stride) - 1) * stride + width - size
        total = max(needed, 0) if padding == "SAME" else 0
        pads.append([total // 2, total - total // 2])
    vertical, horizontal = pads
    return [*horizontal, *vertical]
