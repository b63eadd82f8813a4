"""A wide bottleneck ResNet with its loss.

1,945,784,728 parameters, 7.25 GiB in float32. The TensorOpt paper trains a
WideResNet of 7.3 GB on ImageNet and gives neither depth nor width. This is
ResNet-101 (He et al., 2016) with all channels 6.75 times as many: of the depths 50,
101 and 152 the one in the middle, and the width, a multiple of 16 channels, that
comes closest. So channels can be split over 16 devices everywhere.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

_EXPANSION = 4  # of a block's output over its inner channels


@dataclass(frozen=True)
class WideResNetConfig:
    """The defaults are those of the benchmark.

    Attributes:
        blocks: the bottleneck blocks of each stage; every stage but the first
            halves height and width and doubles the channels.
        width: the channels of the stem, and inside the blocks of the first stage;
            64 in ResNet-101.
        image_size: height and width of the images.
    """

    blocks: tuple[int, ...] = (3, 4, 23, 3)
    width: int = 432
    image_size: int = 224
    n_class: int = 1000


def normalised(channels_in: int, channels: int, kernel: int, stride: int = 1) -> nn.Sequential:
    """A convolution that keeps the size (but for the stride), and its normalisation."""
    padding = kernel // 2
    conv = nn.Conv2d(channels_in, channels, kernel, stride, padding, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(channels))


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions, added to the input."""

    def __init__(self, channels_in: int, inner: int, stride: int) -> None:
        super().__init__()
        channels = _EXPANSION * inner
        self.reduce = normalised(channels_in, inner, 1)
        self.conv = normalised(inner, inner, 3, stride)
        self.expand = normalised(inner, channels, 1)
        same = channels_in == channels and stride == 1
        self.skip = nn.Identity() if same else normalised(channels_in, channels, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, channels, height, width), fewer rows and columns with a stride."""
        hidden = F.relu(self.reduce(x), inplace=True)
        hidden = F.relu(self.conv(hidden), inplace=True)
        hidden = self.expand(hidden)
        hidden += self.skip(x)
        return F.relu(hidden, inplace=True)


class WideResNet(nn.Module):
    """Images (batch, 3, height, width) and classes (batch) -> mean cross entropy."""

    def __init__(self, config: WideResNetConfig) -> None:
        super().__init__()
        self.stem = normalised(3, config.width, 7, 2)
        self.pool = nn.MaxPool2d(3, 2, 1)
        layers: list[nn.Module] = []
        channels = config.width
        for stage, count in enumerate(config.blocks):
            inner = config.width * 2**stage
            for block in range(count):
                stride = 2 if stage > 0 and block == 0 else 1
                layers.append(Bottleneck(channels, inner, stride))
                channels = _EXPANSION * inner
        self.layers = nn.Sequential(*layers)
        self.head = nn.Linear(channels, config.n_class)

    def forward(self, images: Tensor, targets: Tensor) -> Tensor:
        """The mean loss of predicting targets."""
        x = self.pool(F.relu(self.stem(images), inplace=True))
        x = F.adaptive_avg_pool2d(self.layers(x), 1).flatten(1)
        return F.cross_entropy(self.head(x), targets)


def wide_resnet(batch: int = 256) -> tuple[WideResNet, tuple[Tensor, Tensor]]:
    """The model, and images and classes of one batch, on the default device."""
    config = WideResNetConfig()
    images = torch.zeros(batch, 3, config.image_size, config.image_size)
    return WideResNet(config), (images, torch.zeros(batch, dtype=torch.long))
