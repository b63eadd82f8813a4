"""Convolutional networks on digits: residual, VGG, U-Net."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.coverage.zoo.data import NUM_DIGITS, digits
from benchmarks.coverage.zoo.example import Build, Example
from benchmarks.models.vgg import Vgg, VggConfig
from benchmarks.models.wide_resnet import WideResNet, WideResNetConfig


class BasicBlock(nn.Module):
    """Two 3x3 convolutions, added to the input."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.downsample: nn.Module | None = None
        if stride != 1 or channels_in != channels:
            skip = nn.Conv2d(channels_in, channels, 1, stride, bias=False)
            self.downsample = nn.Sequential(skip, nn.BatchNorm2d(channels))

    def forward(self, x: Tensor) -> Tensor:
        """(batch, channels_in, height, width), halved by a stride."""
        identity = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += identity
        return self.relu(out)


class ResNet18(nn.Module):
    """ResNet-18 with few channels."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, width, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        blocks: list[nn.Module] = []
        channels = width
        for stage in range(4):
            for block in range(2):
                out = width * 2**stage
                blocks.append(BasicBlock(channels, out, 2 if stage and not block else 1))
                channels = out
        self.layers = nn.Sequential(*blocks)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(channels, NUM_DIGITS)

    def forward(self, x: Tensor) -> Tensor:
        """Images (batch, 1, height, width) to scores (batch, NUM_DIGITS)."""
        x = self.maxpool(F.relu(self.bn1(self.conv1(x)), inplace=True))
        return self.fc(torch.flatten(self.avgpool(self.layers(x)), 1))


class TwoConvolutions(nn.Sequential):
    """What a U-Net does at each size."""

    def __init__(self, channels_in: int, channels: int) -> None:
        super().__init__(
            nn.Conv2d(channels_in, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(inplace=True),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(inplace=True),
        )


class UNet(nn.Module):
    """Two sizes down and up again; which points belong to the digit."""

    def __init__(self, bilinear: bool, width: int = 8) -> None:
        super().__init__()
        self.first = TwoConvolutions(1, width)
        self.down = TwoConvolutions(width, 2 * width)
        self.bottom = TwoConvolutions(2 * width, 4 * width)
        self.up = nn.ModuleList(self._enlarge(bilinear, n * width) for n in (4, 2))
        self.rise = TwoConvolutions(4 * width, 2 * width)
        self.last = TwoConvolutions(2 * width, width)
        self.head = nn.Conv2d(width, 2, 1)

    @staticmethod
    def _enlarge(bilinear: bool, channels: int) -> nn.Module:
        if not bilinear:
            return nn.ConvTranspose2d(channels, channels // 2, 2, stride=2)
        enlarge = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True)
        return nn.Sequential(enlarge, nn.Conv2d(channels, channels // 2, 1))

    def forward(self, x: Tensor) -> Tensor:
        """(batch, 1, height, width) to scores (batch, 2, height, width)."""
        first = self.first(x)
        down = self.down(F.max_pool2d(first, 2))
        bottom = self.bottom(F.max_pool2d(down, 2))
        rise = self.rise(torch.cat([down, self.up[0](bottom)], 1))
        return self.head(self.last(torch.cat([first, self.up[1](rise)], 1)))


def resnet18() -> Example:
    images, classes = digits(64)
    return Example(ResNet18(), (images,), loss_fn=F.cross_entropy, targets=(classes,))


def wide_resnet() -> Example:
    config = WideResNetConfig(blocks=(2, 2), width=8, image_size=32, n_class=NUM_DIGITS)
    return Example(WideResNet(config), digits(config.image_size, 3))


def vgg16() -> Example:
    """All sixteen layers. Without dropout, whose masks are not those of one process."""
    stages = ((8, 8), (8, 8), (16, 16, 16), (16, 16, 16), (16, 16, 16))
    config = VggConfig(stages, image_size=32, n_hidden=32, n_class=NUM_DIGITS, dropout=0.0)
    return Example(Vgg(config), digits(config.image_size, 3))


def unet(bilinear: bool) -> Example:
    images, _ = digits(16)
    ink = (images[:, 0] > 0.5).long()
    return Example(UNet(bilinear), (images,), loss_fn=F.cross_entropy, targets=(ink,))


MODELS: dict[str, Build] = {
    "resnet18": resnet18,
    "wide_resnet": wide_resnet,
    "vgg16": vgg16,
    "unet_transposed": lambda: unet(False),
    "unet_bilinear": lambda: unet(True),
}
