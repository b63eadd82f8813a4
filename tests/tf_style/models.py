"""The same models through ``tf_style`` and through ``torch.nn``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import tensoropt_torch.tf_style as to

BATCH, CLASSES = 16, 8


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(32, 64)
        self.down = nn.Linear(64, CLASSES)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self.down(torch.relu(self.up(x))), y)


def dense(x: to.Tensor, name: str, width: int) -> to.Tensor:
    with to.variable_scope(name):
        weight = to.get_variable("weight", [x.shape[-1], width])
        bias = to.get_variable("bias", [width], initializer=to.random_normal_initializer())
    return to.matmul(x, weight) + bias


def mlp() -> to.Tensor:
    x = to.placeholder([BATCH, 32], name="x")
    y = to.placeholder([BATCH], dtype=to.int64, name="y")
    return to.softmax_cross_entropy(y, dense(to.relu(dense(x, "up", 64)), "down", CLASSES))


class ConvNet(nn.Module):
    """Images come with their channels first."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(4, 16, 3, padding=1)
        self.norm = nn.BatchNorm2d(16, 1e-3, 0.01)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.fc = nn.Linear(32, CLASSES)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x = F.max_pool2d(torch.relu(self.norm(self.conv1(x))), 2, 2)
        x = torch.relu(self.conv2(x)).mean((2, 3))
        return F.cross_entropy(self.fc(x), y)


def conv(x: to.Tensor, name: str, width: int) -> to.Tensor:
    with to.variable_scope(name):
        weight = to.get_variable("weight", [3, 3, x.shape[-1], width])
        bias = to.get_variable("bias", [width], initializer=to.random_normal_initializer())
    return to.conv2d(x, weight) + bias


def conv_net() -> to.Tensor:
    """Images come with their channels last, as in TensorFlow."""
    x = to.placeholder([BATCH, 8, 8, 4], name="x")
    y = to.placeholder([BATCH], dtype=to.int64, name="y")
    image = to.relu(to.batch_norm(conv(x, "conv1", 16), name="norm"))
    image = to.relu(conv(to.max_pool(image, 2, 2), "conv2", 32))
    return to.softmax_cross_entropy(y, dense(to.reduce_mean(image, [1, 2]), "fc", CLASSES))


class LstmModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(32, 16)
        self.lstm = nn.LSTM(16, 24, batch_first=True)
        self.fc = nn.Linear(24, 32)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        logits = self.fc(self.lstm(self.table(x))[0])
        return F.cross_entropy(logits.reshape(-1, 32), y.reshape(-1))


def lstm_model() -> to.Tensor:
    x = to.placeholder([BATCH, 6], dtype=to.int64, name="x")
    y = to.placeholder([BATCH, 6], dtype=to.int64, name="y")
    with to.variable_scope("table"):
        table = to.get_variable("weight", [32, 16], initializer=to.random_normal_initializer())
    hidden = to.lstm(to.embedding_lookup(table, x), 24, name="lstm")
    return to.softmax_cross_entropy(y, dense(hidden, "fc", 32))


def _inputs(width: int, *shape: int) -> tuple[Tensor, Tensor]:
    return torch.randn(BATCH, *shape, width), torch.randint(CLASSES, (BATCH,))


def _tokens() -> tuple[Tensor, Tensor]:
    return torch.randint(32, (BATCH, 6)), torch.randint(32, (BATCH, 6))


@dataclass(frozen=True)
class Pair:
    """A model in both forms. ``draw`` gives inputs as ``tf_style`` takes them,
    ``to_torch`` changes the first of them into what the module takes."""

    build: Callable[[], to.Tensor]
    module: Callable[[], nn.Module]
    draw: Callable[[], tuple[Tensor, Tensor]]
    to_torch: Callable[[Tensor], Tensor] = lambda x: x


PAIRS: Mapping[str, Pair] = {
    "mlp": Pair(mlp, Mlp, lambda: _inputs(32)),
    "conv_net": Pair(
        conv_net, ConvNet, lambda: _inputs(4, 8, 8), lambda x: x.permute(0, 3, 1, 2).contiguous()
    ),
    "lstm": Pair(lstm_model, LstmModel, _tokens),
}


def as_torch(name: str, value: Tensor) -> Tensor:
    """A variable as the module has it."""
    if value.dim() == 4:
        return value.permute(3, 2, 0, 1)
    is_dense = value.dim() == 2 and name.split("/")[0] in ("up", "down", "fc")
    return value.t() if is_dense else value
