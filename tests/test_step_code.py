"""Steps that the core encodes are read as it describes them."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

from tensoropt_torch import _C
from tensoropt_torch.step_code import StepKind, steps_of

CSRC = Path(__file__).parent.parent / "csrc"
SIZES = (2, 3)
LAYOUTS = [",".join(own) for own in itertools.product(("R", "S0", "S1", "P"), repeat=2)]


def test_kinds_have_the_numbers_of_the_core() -> None:
    header = (CSRC / "common/step_code.h").read_text()
    names = re.findall(r"^  k(\w+),$", header, re.MULTILINE)
    words = [re.sub(r"(?<!^)(?=[A-Z])", "_", name).upper() for name in names]
    assert words == [kind.name for kind in StepKind]
    assert [kind.value for kind in StepKind] == list(range(len(words)))


@pytest.mark.parametrize("shape", [(12, 12), (7, 5)])
def test_steps_are_those_that_the_core_describes(shape: tuple[int, int]) -> None:
    device = _C.Device()
    levels = [
        _C.Level(name=str(i), count=size, bandwidth_bytes_per_s=1e9, latency_s=1e-6)
        for i, size in enumerate(SIZES)
    ]
    mesh = _C.Mesh([(size, i) for i, size in enumerate(SIZES)])
    times = _C.AnalyticCollectives(_C.Cluster("test", device, levels), mesh)
    tensor = _C.ReshardedTensor(shape=shape, item_size=4, uneven=True)
    resharder = _C.TensorResharder(mesh, times, device, tensor)
    seen, uneven = set(), False
    for source, target in itertools.permutations(LAYOUTS, 2):
        cut_twice = any(layout in ("S0,S0", "S1,S1") for layout in (source, target))
        if cut_twice and shape != (12, 12):
            continue
        code = resharder.encode(source, target, 5)
        steps = steps_of(code.steps, code.groups)
        described = resharder.describe(source, target)
        what = f"{source} -> {target}: {described}"
        names = [step.kind.name.lower() for step in steps]
        assert re.findall(r"(\w+)\(", described) == names, what
        groups = [int(axes, 2) for axes in re.findall(r"axes (0b[01]+)", described)]
        for step, axes in zip(steps, groups, strict=True):
            is_local = step.kind in (StepKind.SLICE, StepKind.MASK)
            assert step.group == (None if is_local else axes), what
            assert step.index == step.size - 1  # of the last rank
            seen.add(step.kind)
            uneven |= step.is_uneven
    assert seen >= set(StepKind) - {StepKind.MASK}
    assert uneven == (shape == (7, 5))
