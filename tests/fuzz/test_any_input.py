"""Files, arguments and models that hypothesis makes: each ends with one clear error or a right
result, never with another exception.

    make fuzz-inputs COUNT=10000     # in all, shared out to the tests; SEED=1
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

import tensoropt_torch
from tensoropt_torch import Plan, TensorOptError, cli, load_cluster
from tensoropt_torch.checkpoint.folder import CheckpointFolder
from tensoropt_torch.config import Cluster
from tensoropt_torch.measure.kept import hardware_profile, strategies
from tensoropt_torch.measure.kept.hardware_profile import HardwareProfile
from tensoropt_torch.measure.kept.strategies import KeptStrategy, StrategyStore
from tests.fuzz.counts import GIVEN
from tests.fuzz.mutations import VALUES, changed_bytes, files
from tests.measure.kept.test_hardware_profile import KEY

TESTS = 5
COUNT = int(os.environ.get("TENSOROPT_FUZZ_COUNT", 30 * TESTS))  # of inputs, in all
LONGEST = 4000  # characters of a message
SETTINGS = settings(
    max_examples=COUNT // TESTS, database=None, suppress_health_check=list(HealthCheck)
)
SEED = hypothesis.seed(int(os.environ.get("TENSOROPT_FUZZ_SEED", "1")))


@functools.cache
def model() -> tuple[nn.Module, tuple[torch.Tensor]]:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 4)), (torch.zeros(8, 8),)


@functools.cache
def plan() -> Plan:
    given = {"loss_fn": torch.mean, "num_devices": 2, "cluster": "cpu"}
    found: Plan = tensoropt_torch.find_strategy(*model(), **given)
    return found


def told(action: Callable[[], Any]) -> Any:
    """The result, or None after one clear error."""
    try:
        return action()
    except TensorOptError as error:
        text = str(error)
        assert text.strip(), "an error without words"
        assert len(text) < LONGEST, text[:300]
        assert "Traceback" not in text
        return None


def of_file(content: bytes, read: Callable[[Path], Any], name: str = "given.json") -> Any:
    """What is read of a file with this content, or None after an error that names it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(content)
        return told(lambda: read(path))


@SEED
@SETTINGS
@given(files(plan().to_json()))
def test_plan_files(content: bytes) -> None:
    GIVEN["plan files"] += 1
    found = of_file(content, Plan.load)
    if found is None:
        return
    record = json.loads(content)
    if "hashes" in record:  # what is sealed is what was written
        assert found.to_json() == plan().to_json()
        return
    captured = plan().captured
    assert captured is not None

    def summary() -> str:
        found.check_model(captured)
        return str(found.with_model(captured).summary())

    told(summary)


def cluster_text() -> str:
    folder = Path(tensoropt_torch.__file__).parent / "clusters"
    return (folder / "h100-8.toml").read_text()


@SEED
@SETTINGS
@given(st.one_of(st.binary(max_size=200), changed_bytes(cluster_text()), st.text().map(str.encode)))
def test_cluster_files(content: bytes) -> None:
    GIVEN["cluster files"] += 1
    found = of_file(content, load_cluster, "given.toml")
    assert found is None or isinstance(found, Cluster)
    if found is not None:
        given = {"loss_fn": torch.mean, "num_devices": 2}
        told(lambda: tensoropt_torch.find_frontier(*model(), cluster=found, **given))


def profile_text() -> str:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "profile.json"
        HardwareProfile(KEY, load_cluster("cpu"), ((2, 0),)).save(path)
        return path.read_text()


def resealed(format_of: Any) -> Callable[[Any], str]:
    def seal(record: Any) -> str:
        content = record.get("content") if isinstance(record, dict) else None
        return str(format_of.seal(content)) if isinstance(content, dict) else json.dumps(record)

    return seal


@SEED
@SETTINGS
@given(files(profile_text(), resealed(hardware_profile.FILE)))
def test_hardware_profiles(content: bytes) -> None:
    GIVEN["hardware profiles"] += 1
    found = of_file(content, HardwareProfile.load)
    assert found is None or isinstance(found, HardwareProfile)


STORE = StrategyStore({"model": "x"})
STORE.save([KeptStrategy(1, 8.0, ("a",), ((0, "b"),), 1.0, 0.5, 4.0)])


@SEED
@SETTINGS
@given(files(STORE.path.read_text(), resealed(strategies.FILE)))
def test_files_of_the_cache(content: bytes) -> None:
    GIVEN["files of the cache"] += 1
    STORE.path.write_bytes(content)
    found = told(STORE.load)
    assert found is None or all(isinstance(kept, KeptStrategy) for kept in found.values())


WORDS = st.one_of(
    st.sampled_from(
        [
            *("plan", "frontier", "compare", "profile", "report", "explain", "advise", "doctor"),
            *("--cluster", "--devices", "--memory-limit", "--counts", "--option", "--inputs"),
            *("--max-micro-batches", "--recompute", "--pin", "--forbid", "--config", "--output"),
            *("cpu", "h100-8", "2", "0", "-1", "1e99", "nan", "12GiB", "no.py:f", ":", "a=b"),
        ]
    ),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=12),
)


@SEED
@SETTINGS
@given(st.lists(WORDS, max_size=6))
def test_arguments_of_the_command(words: list[str]) -> None:
    GIVEN["arguments of the command"] += 1
    if words[:1] == ["doctor"]:  # says what this machine lacks
        return
    out, err = io.StringIO(), io.StringIO()
    status: Any = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status = cli.main(words)
        except SystemExit as end:
            status = end.code or 0
    assert status in (0, 1, 2), (words, status)
    text = out.getvalue() + err.getvalue()
    assert "Traceback" not in text, (words, text)
    assert status == 0 or text.strip(), words


LAYERS = st.sampled_from(
    [
        lambda: nn.Linear(8, 8),
        nn.ReLU,
        lambda: nn.LayerNorm(8),
        lambda: nn.Dropout(0.1),
        lambda: nn.Unflatten(1, (2, 4)),
        nn.Flatten,
        lambda: nn.Softmax(-1),
        lambda: nn.Conv1d(2, 2, 3, padding=1),
        lambda: nn.Embedding(8, 8),
        lambda: nn.BatchNorm1d(8),
        lambda: nn.MaxPool1d(2),
        nn.Identity,
    ]
)
INPUTS = st.one_of(
    st.tuples(
        st.lists(st.integers(0, 9), max_size=3),
        st.sampled_from([torch.float32, torch.int64, torch.bool, torch.complex64]),
    ).map(lambda given: torch.zeros(given[0], dtype=given[1])),
    st.just(torch.zeros(8, 8)),
    VALUES,
)


@SEED
@settings(SETTINGS, max_examples=max(1, COUNT // TESTS // 4))
@given(st.lists(LAYERS, min_size=1, max_size=4), st.lists(INPUTS, max_size=2), st.integers(-1, 4))
def test_captured_graphs(
    layers: list[Callable[[], nn.Module]], args: list[Any], devices: int
) -> None:
    """What the model itself refuses is refused with its words."""
    GIVEN["captured graphs"] += 1
    made = nn.Sequential(*(layer() for layer in layers))
    given = {"loss_fn": torch.mean, "num_devices": devices, "cluster": "cpu"}
    found = told(lambda: tensoropt_torch.find_frontier(made, args, **given))
    if found is not None:
        made(*args)  # it can be called so
        assert found.fastest.time_s <= found.smallest.time_s


NAMES = st.one_of(st.integers(0, 99).map(str), st.text(max_size=6), st.just("latest"))


@pytest.mark.parametrize("count", [max(1, COUNT // TESTS // 10)])
def test_folders_of_checkpoints(count: int, tmp_path: Path) -> None:
    @SEED
    @settings(SETTINGS, max_examples=count)
    @given(st.lists(NAMES, max_size=4), st.binary(max_size=12))
    def check(names: list[str], latest: bytes) -> None:
        GIVEN["folders of checkpoints"] += 1
        with tempfile.TemporaryDirectory(dir=tmp_path) as own:
            for name in names:
                with contextlib.suppress(OSError, ValueError, UnicodeEncodeError):
                    (Path(own) / name).mkdir()
            with contextlib.suppress(OSError):
                (Path(own) / "latest").write_bytes(latest)
            folder = CheckpointFolder(own, 1)
            found = told(folder.latest)
            assert found is None or int(found.name) in folder.steps()

    check()
