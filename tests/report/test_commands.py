"""``tensoropt report``, ``show`` and ``diff``."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tensoropt_torch import cli
from tests.planner.model_file import MODEL_FILE
from tests.report.reading import ReadPage

CLUSTER = ["--cluster", "h100-8"]
WITH_LOSS = (
    MODEL_FILE
    + """
def with_loss():
    model, args = build()
    loss_fn = torch.nn.functional.mse_loss
    return tensoropt_torch.Example(model, args, loss_fn=loss_fn, targets=args)
"""
)
OTHER_MODEL = MODEL_FILE.replace("Linear(64, 64)", "Linear(64, 32)")


@pytest.fixture
def model(tmp_path: Path) -> str:
    (tmp_path / "model.py").write_text(f"import tensoropt_torch\n{WITH_LOSS}")
    return f"{tmp_path / 'model.py'}:build"


@pytest.fixture
def plans(model: str, tmp_path: Path) -> tuple[str, str]:
    """Of one strategy space: all of the device's memory, and little."""
    paths = str(tmp_path / "fast.json"), str(tmp_path / "small.json")
    for path, limit in zip(paths, ("80GB", "24KiB"), strict=True):
        given = [model, *CLUSTER, "--devices", "4", "--memory-limit", limit, "--output", path]
        assert cli.main(["plan", *given]) == 0
    return paths


def test_a_report_is_written(model: str, tmp_path: Path) -> None:
    path = tmp_path / "out.html"
    given = [*CLUSTER, "--devices", "4", "--counts", "1,4", "--memory-limit", "1MiB"]
    peak = ["--memory", "simulated", "--optimizer", "sgd", "--output", str(path)]
    assert cli.main(["report", model.replace(":build", ":with_loss"), *given, *peak]) == 0
    page = ReadPage.of(path)
    assert [row[0] for row in page.table("Least step time")] == ["1 device", "4 devices"]
    assert page.table("Beside other strategies")
    assert page.table("Memory per device at the simulated peak")


def test_a_saved_plan_is_shown(
    plans: tuple[str, str], model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert cli.main(["show", plans[0]]) == 0
    text = capsys.readouterr().out
    assert "4 devices of 'h100-8' (2 x 2)" in text and "data sheet" in text
    assert "aten.linear" not in text
    assert cli.main(["show", plans[0], "--model", model]) == 0
    assert "aten.linear" in capsys.readouterr().out


def test_what_changes_between_saved_plans_is_shown(
    plans: tuple[str, str], model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert cli.main(["diff", *plans]) == 0
    text = capsys.readouterr().out
    assert "memory per device" in text and "weight" in text
    assert cli.main(["diff", *plans, "--model", model]) == 0
    assert "weight" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["show", "missing.json"], r"plan file 'missing.json' cannot be read"),
        (["diff", "{plan}", "{model}"], r"model.py' is not a plan: it is no JSON"),
        (["show", "{plan}", "--model", "{other}"], r"made for another model or batch"),
        (["report", "{model}", "--output", "no/folder/r.html"], r"'no/folder/r.html' cannot be wr"),
        (["report", "{model}", "--counts", "0"], r"device_counts = 0 is not allowed: it must be"),
        (
            ["report", "{model}", "--memory-limit=-1"],
            r"memory_limit = -1.0 is not allowed: it must",
        ),
    ],
    ids=["no plan", "no json", "other model", "no folder", "no devices", "no memory"],
)
def test_mistakes_are_named(
    arguments: list[str],
    message: str,
    plans: tuple[str, str],
    model: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "other.py").write_text(OTHER_MODEL)
    names = {"plan": plans[0], "model": model, "other": f"{tmp_path / 'other.py'}:build"}
    given = [argument.format(**names) for argument in arguments]
    if given[:1] == ["diff"]:
        given[2] = model.rpartition(":")[0]
    capsys.readouterr()
    assert cli.main(given) == 2
    assert re.search(message, capsys.readouterr().err)
