"""VGG16 (Simonyan and Zisserman, 2015, configuration D) with its loss.

138,357,544 parameters, 0.52 GiB in float32: the VGG16 of the TensorOpt paper.
Nine tenths of them are in the three linear layers, nearly all of the computing is
in the convolutions.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class VggConfig:
    """The defaults are those of VGG16 for ImageNet.

    Attributes:
        stages: the channels of the convolutions of each stage; a stage ends with
            pooling that halves height and width.
        image_size: height and width of the images.
        n_hidden: the width of the two hidden linear layers.
    """

    stages: tuple[tuple[int, ...], ...] = (
        (64, 64),
        (128, 128),
        (256, 256, 256),
        (512, 512, 512),
        (512, 512, 512),
    )
    image_size: int = 224
    n_hidden: int = 4096
    n_class: int = 1000
    dropout: float = 0.5


class Vgg(nn.Module):
    """Images (batch, 3, height, width) and classes (batch) -> mean cross entropy."""

    def __init__(self, config: VggConfig) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 3
        for stage in config.stages:
            for width in stage:
                layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(inplace=True)]
                channels = width
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        side = config.image_size // 2 ** len(config.stages)
        self.classifier = nn.Sequential(
            nn.Linear(channels * side * side, config.n_hidden),
            nn.ReLU(inplace=True),
            nn.Dropout(config.dropout),
            nn.Linear(config.n_hidden, config.n_hidden),
            nn.ReLU(inplace=True),
            nn.Dropout(config.dropout),
            nn.Linear(config.n_hidden, config.n_class),
        )

    def forward(self, images: Tensor, targets: Tensor) -> Tensor:
        """The mean loss of predicting targets."""
        features = self.features(images)
        return F.cross_entropy(self.classifier(features.flatten(1)), targets)


def vgg16(batch: int = 256) -> tuple[Vgg, tuple[Tensor, Tensor]]:
    """The model, and images and classes of one batch, on the default device."""
    config = VggConfig()
    images = torch.zeros(batch, 3, config.image_size, config.image_size)
    return Vgg(config), (images, torch.zeros(batch, dtype=torch.long))
