"""Models that compute with Fourier transforms, complex numbers and functions of matrices."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from tests.distributed.kinds import Kind


class SpectralConv(nn.Module):
    """Mixes channels, by complex weights of the lowest frequencies of both signs."""

    def __init__(self, width: int, modes: int) -> None:
        super().__init__()
        self.modes = modes
        shape = (width, width, modes, modes)
        dtype = torch.get_default_dtype().to_complex()
        self.low = nn.Parameter(torch.rand(shape, dtype=dtype) / width)
        self.high = nn.Parameter(torch.rand(shape, dtype=dtype) / width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[b, c, h, w] to the same shape."""
        m = self.modes
        found = torch.fft.rfft2(x)
        mixed = torch.zeros(found.shape, dtype=found.dtype, device=x.device)
        mix = "bixy,ioxy->boxy"
        mixed[:, :, :m, :m] = torch.einsum(mix, found[:, :, :m, :m], self.low)
        mixed[:, :, -m:, :m] = torch.einsum(mix, found[:, :, -m:, :m], self.high)
        return torch.fft.irfft2(mixed, s=x.shape[-2:])


class FourierOperator(nn.Module):
    """Lifts points [b, h, w, c], mixes frequencies in layers, and projects; gives a loss."""

    def __init__(self, width: int, modes: int, layers: int = 4, hidden: int = 128) -> None:
        super().__init__()
        self.lift = nn.Linear(3, width)
        self.spectral = nn.ModuleList(SpectralConv(width, modes) for _ in range(layers))
        self.beside = nn.ModuleList(nn.Conv2d(width, width, 1) for _ in range(layers))
        self.project = nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, 1))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """The mean squared error."""
        h = self.lift(x).permute(0, 3, 1, 2)
        for spectral, beside in zip(self.spectral, self.beside, strict=True):
            h = F.gelu(spectral(h) + beside(h))
        return F.mse_loss(self.project(h.permute(0, 2, 3, 1)), y)


class Conjugates(nn.Module):
    """Parts, conjugates and views of complex numbers, between layers that are split."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 16), nn.Linear(8, 8)
        self.turn = nn.Parameter(torch.randn(8, dtype=torch.get_default_dtype().to_complex()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[b, 8] to a number."""
        turned = torch.view_as_complex(self.first(x).unflatten(-1, (8, 2))) * self.turn
        back = turned.conj()
        mixed = torch.complex(back.real, self.last(back.imag))
        pairs = torch.view_as_real(mixed * torch.polar(turned.abs(), mixed.angle()))
        return self.last(pairs.sum(-1)).square().mean() + torch.fft.fftn(mixed).abs().mean()


class Windows(nn.Module):
    """Magnitudes of a sound's windows."""

    def __init__(self) -> None:
        super().__init__()
        self.window = nn.Parameter(torch.hann_window(8) + 0.1)
        self.layer = nn.Linear(5, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[b, t] to a number."""
        found = torch.stft(x, 8, 4, window=self.window, return_complex=True)
        return self.layer(found.abs().transpose(1, 2)).square().mean()


class Flow(nn.Module):
    """The log-determinant of a matrix for each row, and its exponential."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 9)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[b, 6] to a number."""
        matrices = self.layer(x).unflatten(-1, (3, 3))
        one = torch.eye(3)
        volume = torch.linalg.slogdet(matrices + 3 * one)[1]
        return volume.mean() + torch.matrix_exp(0.1 * matrices).square().mean()


def _numbers(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(5))


def fourier() -> Kind:
    batches = [(_numbers(4, 8, 6, 3), _numbers(4, 8, 6, 1)) for _ in range(2)]
    return Kind(lambda: FourierOperator(4, 2, layers=2, hidden=8), batches)


def fourier_adam() -> Kind:
    kind = fourier()
    kind.optimizer = lambda parameters: torch.optim.AdamW(parameters, lr=0.01)
    kind.inputs = "sharded"
    return kind


def conjugates() -> Kind:
    return Kind(Conjugates, [(_numbers(4, 8),), (_numbers(4, 8) + 1,)])


def windows() -> Kind:
    return Kind(Windows, [(_numbers(4, 32),), (_numbers(4, 32) + 1,)])


def flow() -> Kind:
    return Kind(Flow, [(_numbers(4, 6),), (_numbers(4, 6) + 1,)])
