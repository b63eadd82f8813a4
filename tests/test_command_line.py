"""The ``tensoropt`` command: what it is given wrongly, and what it says of itself."""

from __future__ import annotations

import argparse
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tensoropt_torch import cli
from tensoropt_torch.cli.arguments import planning_of
from tensoropt_torch.cli.measuring import add_validate


def said(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    """The exit status, what is printed, and what is said of a mistake, in one line each."""
    with pytest.raises(SystemExit) as end:
        cli.main(arguments)
    out, err = capsys.readouterr()
    return int(end.value.code or 0), " ".join(out.split()), " ".join(err.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["plan", "m.py:f", "--memory-limit", "12Gigs"], "'12Gigs' is no number of bytes; give"),
        (["profile", "m.py:f", "--counts", "1,two"], "'1,two' are no numbers of devices; give"),
        (["report", "m.py:f", "--memory-limit", "GiB"], "'GiB' is no number of bytes; give"),
        (["plna"], "invalid choice: 'plna' (choose from"),
        (["profile", "m.py:f", "--devices", "4"], "4 is not for this command: numbers of devices"),
        (["tradeoffs", "m.py:f", "--devices", "4"], "numbers of devices are given by --counts"),
        (["validate", "m.py:f", "--devices", "4"], "the processes that torchrun starts"),
        (["advise"], "the following arguments are required: --clusters, --devices"),
    ],
)
def test_wrong_arguments_are_told(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, _, error = said(arguments, capsys)
    assert status == 2
    assert message in error


@pytest.mark.parametrize(
    ("text", "number"), [("12GiB", 12 * 2**30), ("800MB", 8e8), ("16e9", 16e9), ("2KiB", 2048)]
)
def test_bytes_have_units(text: str, number: float) -> None:
    assert cli.arguments.read_bytes(text) == number


def test_every_command_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    status, text, _ = said(["--help"], capsys)
    assert status == 0
    (names,) = re.findall(r"\{([a-z,-]+)\}", text)[:1]
    commands = names.split(",")
    assert {"frontier", "plan", "compare", "report", "explain", "validate", "doctor"} <= {*commands}
    for command in commands:
        status, text, _ = said([command, "--help"], capsys)
        assert status == 0
        assert text.startswith(f"usage: tensoropt {command}") and "--verbose" in text


CONFIG = (
    "hf:llama,hidden_size=64,num_hidden_layers=2,num_attention_heads=4,num_key_value_heads=2,"
    "intermediate_size=128,vocab_size=256"
)
MODEL_OF_CONFIG = ["--config", CONFIG, "--batch", "8x16"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["explain", "--max-stages", "2"], "max_stages=2 is not for explain(), which looks at no"),
        (["explain", "--max-micro-batches", "2"], "max_micro_batches=2 is not for explain(), whic"),
        (["explain", "--epsilon", "0.1"], "is not for explain(), which searches nothing; leave it"),
        (
            ["plan", "--option", "mini_parallelism", "--devices", "4"],
            "num_devices=4 is not for option='mini_parallelism', which finds the fewest devices",
        ),
        (["advise", "--clusters", "h10", "--devices", "8"], "'h10' is no kind of machine; did you"),
        (["memory", "--plan", "p.json", "--cluster", "h100-8"], "--cluster is not for a saved pl"),
        (["explain", "--plan", "p.json", "--recompute"], "--recompute is not for a saved plan, "),
    ],
)
def test_arguments_without_effect_are_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([*arguments, *MODEL_OF_CONFIG]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_commands_of_saved_plans_take_models_of_configs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = str(tmp_path / "plan.json")
    asked = ["--cluster", "h100-8", "--devices", "2", "--memory", "sums", "--output", plan]
    assert cli.main(["plan", *MODEL_OF_CONFIG, *asked]) == 0
    for command in (["show", plan], ["diff", plan, plan], ["explain", "--plan", plan]):
        capsys.readouterr()
        assert cli.main([*command, *MODEL_OF_CONFIG]) == 0, capsys.readouterr().err
        assert capsys.readouterr().out
    assert cli.main(["show", plan, "--config", CONFIG]) == 2
    assert "needs --batch" in capsys.readouterr().err


# The second waits for a lock outside of Python, which hears nothing there, as in a search.
WHERE = {"Python": "while True: time.sleep(0.01)", "C": "lock(); lock()"}
MODEL = """
import ctypes, time
mutex, library = ctypes.create_string_buffer(64), ctypes.CDLL(None)
def lock():
    library.pthread_mutex_lock(mutex)
def build():
    print("there", flush=True)
    {where}
"""


def heeds_interrupts() -> None:
    """In a new process: programs that shells start in the background ignore them."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.parametrize("where", WHERE)
def test_an_interrupt_is_told_in_one_line(where: str, tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text(MODEL.format(where=WHERE[where]))
    command = [sys.executable, "-m", "tensoropt_torch", "plan", f"{tmp_path}/m.py:build"]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=heeds_interrupts,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "there\n"
            process.send_signal(signal.SIGINT)
            _, error = process.communicate(timeout=30)
        finally:
            process.kill()
    assert error == "tensoropt: interrupted\n"
    assert process.returncode == 130


def test_strategies_that_a_job_runs_have_its_cluster() -> None:
    parser = argparse.ArgumentParser()
    add_validate(parser)
    assert planning_of(parser.parse_args(["m.py:f"])).cluster is None
