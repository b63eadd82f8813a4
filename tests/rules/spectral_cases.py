"""Fourier transforms, complex numbers and functions of matrices, also of uneven sizes."""

from collections.abc import Iterator

import torch

from tests.rules.case import Case, Random, positive, real, turned, weights

# Transforms of one dim, of the last two and of any, by what they take.
FROM_REAL = {1: ("rfft", "ihfft"), 2: ("rfft2", "ihfft2"), 3: ("rfftn", "ihfftn")}
FROM_COMPLEX = {
    1: ("fft", "ifft", "irfft", "hfft"),
    2: ("fft2", "ifft2", "irfft2", "hfft2"),
    3: ("fftn", "ifftn", "irfftn", "hfftn"),
}
BATCHED = ("linalg_slogdet", "slogdet", "linalg_det", "det", "linalg_inv", "inverse")


def _transforms(name: str, x: Random, dims: int) -> Iterator[Case]:
    target = f"aten.fft_{name}.default"
    yield Case(target, (x,), name="last")
    yield Case(target, (x, None, 1 if dims == 1 else [1]), {"norm": "ortho"}, "middle")
    size = 7 if dims == 1 else [7] * min(dims, 2)
    yield Case(target, (x, size), name="other size")
    if dims > 1:
        yield Case(target, (x, None, [0, -1]), name="first and last")


def transform_cases() -> Iterator[Case]:
    for dims in FROM_REAL:
        for name in FROM_REAL[dims]:
            yield from _transforms(name, real(12, 6, 4), dims)
        for name in FROM_COMPLEX[dims]:
            yield from _transforms(name, turned(12, 6, 4), dims)
    yield Case("aten.fft_fft.default", (real(12, 4),), name="of real numbers")
    yield Case("aten._fft_r2c.default", (real(12, 6, 4), [1, 2], 0, True))
    yield Case("aten._fft_c2r.default", (turned(12, 6, 3), [1, 2], 2, 4))
    yield Case("aten._fft_c2c.default", (turned(12, 6, 4), [1], 0, True))


def short_time_cases() -> Iterator[Case]:
    after = (8, 4, 8)
    for target, rest in (
        ("aten.stft.default", (False, True, True)),
        ("aten.stft.center", (True, "reflect", False, True, True)),
    ):
        for name, x in (("rows", real(12, 25)), ("one row", real(25))):
            yield Case(target, (x, *after, real(8), *rest), name=name)
        yield Case(target, (real(12, 25), *after, None, *rest), name="no window")
        yield Case(target, (real(12, 25), *after, weights(8), *rest[:-1], False), name="pairs")


def complex_cases() -> Iterator[Case]:
    for name in ("real", "imag", "conj", "_conj", "conj_physical", "_conj_physical", "angle"):
        yield Case(f"aten.{name}.default", (turned(12, 4),))
    for name in ("resolve_conj", "resolve_neg", "view_as_real"):
        yield Case(f"aten.{name}.default", (turned(12, 4),))
    yield Case("aten.view_as_complex.default", (real(12, 6, 2),))
    yield Case("aten.complex.default", (real(12, 4), real(12, 4)))
    yield Case("aten.complex.default", (real(12, 4), real(4)), name="broadcast")
    yield Case("aten.polar.default", (positive(12, 4), real(12, 4)))


def arithmetic_cases() -> Iterator[Case]:
    """Operators of real numbers that take complex ones."""
    x, y = turned(12, 4), turned(12, 4)
    for name in ("add.Tensor", "sub.Tensor", "mul.Tensor", "div.Tensor"):
        yield Case(f"aten.{name}", (x, y), name="complex")
        yield Case(f"aten.{name}", (x, real(4)), name="complex and real")
    for name in ("abs", "exp", "neg", "tanh"):
        yield Case(f"aten.{name}.default", (x,), name="complex")
    yield Case("aten.matmul.default", (x, turned(4, 6)), name="complex")
    yield Case("aten.linear.default", (x, turned(6, 4), turned(6)), name="complex")
    yield Case("aten.sum.dim_IntList", (x, [0]), name="complex")
    yield Case("aten.mean.dim", (x, [0]), name="complex")
    spectral = "bixy,ioxy->boxy"
    factors = [turned(6, 2, 3, 4), turned(2, 6, 3, 4)]
    yield Case("aten.einsum.default", (spectral, factors), name="complex")


def matrix_cases() -> Iterator[Case]:
    for name in BATCHED:
        yield Case(f"aten.{name}.default", (real(12, 3, 3),))
        yield Case(f"aten.{name}.default", (real(2, 12, 2, 2),), name="4-D")
        yield Case(f"aten.{name}.default", (real(3, 3),), name="one matrix")
    for name in ("linalg_matrix_exp", "matrix_exp"):
        yield Case(f"aten.{name}.default", (real(12, 3, 3),))
    yield from definite_cases(12)


def definite_cases(count: int) -> Iterator[Case]:
    """Of positive definite matrices: what is read is a triangle."""
    for name in ("linalg_cholesky", "cholesky", "linalg_eigvalsh", "logdet"):
        yield Case(f"aten.{name}.default", (_definite(count),), name=f"{count} matrices")


def _definite(count: int) -> torch.Tensor:
    """With eigenvalues that differ."""
    diagonals = torch.arange(3, 3 + 3 * count, dtype=torch.float64).view(count, 3)
    return (torch.diag_embed(diagonals) + 0.5).requires_grad_()


def spectral_cases() -> Iterator[Case]:
    yield from transform_cases()
    yield from short_time_cases()
    yield from complex_cases()
    yield from arithmetic_cases()
    yield from matrix_cases()
