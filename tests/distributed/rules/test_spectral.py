"""Fourier transforms, complex numbers and functions of matrices against one process."""

from __future__ import annotations

import pytest

from tests.distributed.harness import run_ranks

HERE = "tests.distributed.spectral_models"


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("kind", ["fourier", "fourier_adam", "conjugates", "windows", "flow"])
def test_it_equals_one_process(kind: str, world: int) -> None:
    assert run_ranks(world, "tests.distributed.kinds:check", f"{HERE}:{kind}", 200) == [[]] * world
