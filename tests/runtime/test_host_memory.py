"""Freed memory that the process keeps."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path
from random import Random
from statistics import median

import pytest
import torch

from tensoropt_torch.measure.profiling import key_of_job
from tensoropt_torch.runtime.groups import AxisGroups
from tensoropt_torch.runtime.host.memory import CHOICES, OFF, TUNABLES, may_keep_memory
from tests.distributed.harness import run_ranks

HERE = "tests.runtime.test_host_memory"
ROUNDS = 8
TENSORS = 5
BYTES = 24 << 20  # each

glibc_only = pytest.mark.skipif(
    not may_keep_memory(), reason="another C library, or its memory is set by the environment"
)


def faulted_and_held(setting: str) -> tuple[float, float]:
    """Of rounds that allocate, fill and free tensors: page faults of most rounds after the first
    (in one or another a small block is in the way, and the heap grows by a tensor), and what
    the process holds after the first one, as shares of the tensors' pages and bytes."""
    os.environ[OFF] = setting
    groups = AxisGroups((2,))
    groups.create([0b1])
    faults, held = [], []
    for _ in range(ROUNDS):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        tensors = [torch.ones(BYTES, dtype=torch.uint8) for _ in range(TENSORS)]
        filled = resident_bytes()
        del tensors
        faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
        held.append(TENSORS * BYTES - (filled - resident_bytes()))
    groups.close()
    allocated = TENSORS * BYTES
    return median(faults[1:]) / (allocated / resource.getpagesize()), held[0] / allocated


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@glibc_only
def test_what_a_step_frees_serves_the_next_one_without_page_faults() -> None:
    for faulted, held in run_ranks(2, f"{HERE}:faulted_and_held", "1"):
        assert faulted < 0.05
        assert held > 0.9


@glibc_only
def test_it_can_be_turned_off() -> None:
    for _, held in run_ranks(2, f"{HERE}:faulted_and_held", "0"):
        assert held < 0.5


def peak_of_random_blocks(setting: str) -> int:
    """The most that the process holds, in bytes beyond what it held before, while it
    allocates and frees tensors of random sizes."""
    os.environ[OFF] = setting
    groups = AxisGroups((2,))
    groups.create([0b1])
    random = Random(7)
    kept: list[torch.Tensor] = []
    before = peak = resident_bytes()
    for _ in range(400):
        size = min(int(2 ** random.uniform(10, 26)), BYTES)
        kept.append(torch.ones(size, dtype=torch.uint8))
        peak = max(peak, resident_bytes())
        while sum(tensor.numel() for tensor in kept) > TENSORS * BYTES:
            del kept[random.randrange(len(kept))]
    groups.close()
    return peak - before


@glibc_only
def test_keeping_memory_raises_the_peak_by_fragments_at_most() -> None:
    returned = run_ranks(2, f"{HERE}:peak_of_random_blocks", "0")
    kept = run_ranks(2, f"{HERE}:peak_of_random_blocks", "1")
    # Blocks lie elsewhere in every run: 1.0 to 1.4 times was seen.
    assert max(kept) < 2 * max(returned), f"{kept} instead of {returned}"


OTHER_ALLOCATOR = """
#include <stddef.h>
void* __libc_malloc(size_t);
void* malloc(size_t size) { return __libc_malloc(size); }
"""


@glibc_only
@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_other_allocators_are_left_alone(tmp_path: Path) -> None:
    library = tmp_path / "allocator.so"
    source = tmp_path / "allocator.c"
    source.write_text(OTHER_ALLOCATOR)
    subprocess.run(["cc", "-shared", "-fPIC", source, "-o", library], check=True)
    question = (
        "from tensoropt_torch.runtime.host.memory import may_keep_memory as may; print(may())"
    )
    answers = [
        subprocess.run(
            [sys.executable, "-c", question],
            env={**os.environ, **preload},
            check=True,
            capture_output=True,
            text=True,
        ).stdout.strip()
        for preload in ({}, {"LD_PRELOAD": str(library)})
    ]
    assert answers == ["True", "False"]


@glibc_only
@pytest.mark.parametrize(
    "variable", [*((name, "1000000") for name in CHOICES), (TUNABLES, "glibc.malloc.hugetlb=1")]
)
def test_what_the_user_has_set_stays(
    variable: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(*variable)
    assert not may_keep_memory()


@glibc_only
def test_tunables_of_something_else_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TUNABLES, "glibc.rtld.nns=8")
    assert may_keep_memory()


@glibc_only
def test_measurements_of_both_kinds_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = key_of_job(torch.device("cpu"), [1])
    monkeypatch.setenv(OFF, "0")
    given_back = key_of_job(torch.device("cpu"), [1])
    assert given_back.digest != kept.digest
    assert kept.differences(given_back) == ["keeps_memory: True instead of False"]
