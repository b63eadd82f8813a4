"""The scripts of ``examples/single`` and their parallel versions: few lines differ, and what
they print is the same."""

from __future__ import annotations

import difflib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[3]
NAMES = sorted(path.stem for path in (ROOT / "examples/single").glob("*.py"))
MOST_LINES, MOST_CHANGES = 80, 8
PROCESSES = 2
LAUNCHER = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={PROCESSES}"]
# Losses are printed with four digits. Sums in another order change the last one, in float16,
# and where training goes on from there, more.
TOLERANCE = {"mixed_precision": 5e-3}


def source(name: str, folder: str) -> list[str]:
    return (ROOT / folder / f"{name}.py").read_text().splitlines()


def run(arguments: Sequence[str], folder: Path) -> list[str]:
    """The lines that a script prints."""
    process = subprocess.Popen(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        text=True,
    )
    try:
        output, errors = process.communicate(timeout=280)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, errors[-4000:]
    return output.splitlines()


def run_single(name: str, folder: Path, *arguments: str) -> list[str]:
    return run([str(ROOT / f"examples/single/{name}.py"), *arguments], folder)


def run_parallel(name: str, folder: Path, *arguments: str) -> list[str]:
    script = str(ROOT / f"examples/{name}.py")
    return run([*LAUNCHER, "--local-ranks-filter=0", script, *arguments], folder)


def assert_alike(found: list[str], expected: list[str], tolerance: float) -> None:
    """Words and whole numbers (steps, right answers) are equal, others almost."""
    assert expected
    assert len(found) == len(expected), (found, expected)
    for ours, theirs in zip(found, expected, strict=True):
        fraction = r"-?\d+\.\d+"
        assert re.sub(fraction, "#", ours) == re.sub(fraction, "#", theirs)
        for a, b in zip(re.findall(fraction, ours), re.findall(fraction, theirs), strict=True):
            assert float(a) == pytest.approx(float(b), abs=tolerance), (ours, theirs)


@pytest.mark.parametrize("name", NAMES)
def test_few_lines_differ(name: str) -> None:
    single, parallel = source(name, "examples/single"), source(name, "examples")
    assert len(single) <= MOST_LINES
    changed = [line for line in difflib.ndiff(single, parallel) if line.startswith("+ ")]
    assert 0 < len(changed) <= MOST_CHANGES, changed


@pytest.mark.parametrize("name", NAMES)
def test_documented_diffs_are_the_real_ones(name: str) -> None:
    folders = "examples/single", "examples"
    files = [f"{folder}/{name}.py" for folder in folders]
    sources = [source(name, folder) for folder in folders]
    diff = "\n".join(difflib.unified_diff(*sources, *files, lineterm="", n=0))
    assert f"```diff\n{diff}\n```" in (ROOT / "docs/from-one-process.md").read_text()


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[] if n == "gan" else [pytest.mark.slow]) for n in NAMES],
)
def test_both_print_the_same(name: str, tmp_path: Path) -> None:
    steps = "2" if name in ("vision", "mixed_precision") else "20"
    expected = run_single(name, tmp_path, steps)
    for left in tmp_path.glob("*.pt"):
        left.rename(left.with_suffix(".single"))
    for left in tmp_path.glob("adapter"):
        left.rename(left.with_name("adapter of one"))
    found = run_parallel(name, tmp_path, steps)
    assert_alike(found, expected, TOLERANCE.get(name, 1e-3))
    if name == "lora":
        assert_same_adapter(tmp_path)
    if name == "vision":
        assert_goes_on_from_either(tmp_path)


def assert_same_adapter(folder: Path) -> None:
    from safetensors.torch import load_file

    ours, theirs = (
        load_file(folder / name / "adapter_model.safetensors")
        for name in ("adapter", "adapter of one")
    )
    assert ours.keys() == theirs.keys()
    assert ours
    for name, tensor in theirs.items():
        torch.testing.assert_close(ours[name], tensor, rtol=1e-2, atol=1e-3)


def assert_goes_on_from_either(folder: Path) -> None:
    """Each version reads the checkpoint of the other, and both go on alike."""
    of_one, of_all = folder / "vision.single", folder / "vision.pt"
    for_one = folder / "copy.pt"
    for_one.write_bytes(of_all.read_bytes())
    expected = run_single("vision", folder, "3", str(for_one))
    found = run_parallel("vision", folder, "3", str(of_one))
    assert len(expected) == 1
    assert_alike(found, expected, 1e-2)
