"""Calls on the meta device whose results are known from earlier ones, beside the kernels."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.coverage.zoo import make
from benchmarks.memory.job import random_plan
from tensoropt_torch.config import DeviceType
from tensoropt_torch.frontend import capture
from tensoropt_torch.simulate import StepSettings, simulate_step
from tensoropt_torch.simulate.known_results import KnownResults

aten = torch.ops.aten


def tensor(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


class Kernels(TorchDispatchMode):
    """Counts calls that do more than make a tensor."""

    count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        self.count += not func._schema.name.startswith("aten::empty")
        return func(*args, **(kwargs or {}))


def told(result: Any) -> list[Any]:
    """All that is said of a result."""
    return [
        (leaf.shape, leaf.stride(), leaf.dtype, leaf.device, leaf.untyped_storage().nbytes())
        if isinstance(leaf, torch.Tensor)
        else leaf
        for leaf in torch.utils._pytree.tree_leaves(result)
    ]


CALLS: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = [
    (aten.mul.Tensor, (tensor(3, 4), tensor(4)), {}),
    (aten.mul.Tensor, (tensor(3, 4), tensor(3, 1)), {}),
    (aten.mul.Tensor, (tensor(4, 3).t(), tensor(4)), {}),
    (aten.mul.Tensor, (tensor(3, 4, dtype=torch.bfloat16), tensor(4)), {}),
    (aten.mul.Tensor, (tensor(3, 4, dtype=torch.int32), 2), {}),
    (aten.mul.Tensor, (tensor(3, 4, dtype=torch.int32), 2.0), {}),
    (aten.mul.Tensor, (tensor(3, 4, dtype=torch.int32), True), {}),
    (aten.mul.Tensor, (tensor(3, 4, dtype=torch.bool), 1), {}),
    (aten.mul.Tensor, (tensor(3, 4, dtype=torch.bool), True), {}),
    (aten.cat.default, ([tensor(2, 3), tensor(4, 3)],), {}),
    (aten.cat.default, ([tensor(2, 3), tensor(2, 5)], 1), {}),
    (aten._to_copy.default, (tensor(2, 3),), {"dtype": torch.float16}),
    (aten._to_copy.default, (tensor(2, 3),), {"dtype": torch.float64}),
    (aten.sum.dim_IntList, (tensor(2, 3), [0]), {}),
    (aten.sum.dim_IntList, (tensor(2, 3), [0], True), {}),
    (aten.native_layer_norm.default, (tensor(2, 3), [3], None, None, 1e-5), {}),
    (aten.topk.default, (tensor(2, 8), 3), {}),
]


def test_results_are_those_of_the_kernels() -> None:
    known = KnownResults()
    for _ in range(2):
        for func, args, kwargs in CALLS:
            expected = told(func(*args, **kwargs))
            assert told(known.call(func, args, kwargs)) == expected, (func, args, kwargs)


def test_a_kernel_runs_once_for_alike_arguments_and_makes_new_tensors() -> None:
    known = KnownResults()
    with Kernels() as kernels:
        first = known.call(aten.mul.Tensor, (tensor(3, 4), tensor(4)), {})
        second = known.call(aten.mul.Tensor, (tensor(3, 4), tensor(4)), {})
        assert kernels.count == 1
        known.call(aten.mul.Tensor, (tensor(3, 5), tensor(5)), {})
        assert kernels.count == 2
    assert first.untyped_storage()._cdata != second.untyped_storage()._cdata


def test_views_and_what_is_written_stay_what_they_are() -> None:
    known, given = KnownResults(), tensor(3, 4)
    for _ in range(2):
        view = known.call(aten.view.default, (given, [12]), {})
        assert view.untyped_storage()._cdata == given.untyped_storage()._cdata
        assert known.call(aten.add_.Tensor, (given, 1.0), {}) is given


def test_tensors_with_values_keep_them() -> None:
    known, steps = KnownResults(), [torch.tensor(0.0)]
    for expected in (1.0, 2.0):
        known.call(aten._foreach_add_.Scalar, (steps, 1.0), {})
        assert steps[0] == expected
        assert known.call(aten.add.Tensor, (steps[0], 1.0), {}) == expected + 1
    with Kernels() as kernels:
        known.call(aten._foreach_add_.Scalar, ([tensor(2)], 1.0), {})
    assert kernels.count == 0


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize(
    "name",
    [
        "nanogpt",
        "moe_index_add",
        pytest.param("unet_transposed", marks=pytest.mark.slow),
        pytest.param("t5", marks=pytest.mark.slow),
    ],
)
def test_steps_take_the_same_memory_as_with_kernels(
    name: str, device: DeviceType, monkeypatch: pytest.MonkeyPatch
) -> None:
    example = make(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        captured = capture(example.model, example.args, **example.keywords)
    settings = StepSettings(measure_workspaces=False, device=device)
    for seed in range(2):
        plan = random_plan(captured, 4, seed, recompute=seed % 2 == 1)
        found = simulate_step(plan, captured, settings)
        with monkeypatch.context() as patch:
            patch.setattr(KnownResults, "call", lambda _, func, args, kwargs: func(*args, **kwargs))
            assert found == simulate_step(plan, captured, settings), (name, seed)
