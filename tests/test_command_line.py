"""The ``tensoropt`` command: what it is given wrongly, and what it says of itself."""

from __future__ import annotations

import re

import pytest

from tensoropt_torch import cli


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
        (["plan"], "the following arguments are required: model"),
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
