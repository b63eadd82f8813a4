"""docs/troubleshooting.md quotes messages that there are."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/troubleshooting.md").read_text()
OURS, THEIRS = ROOT / "tensoropt_torch", Path(torch.__file__).parent / "distributed/tensor"


def quoted(text: str) -> list[str]:
    """The first cells of table rows: one message or several."""
    cells = re.findall(r"^\| (`.*?) \| ", text, re.MULTILINE)
    return [message for cell in cells for message in re.findall(r"`([^`]+)`", cell)]


@cache
def literals(folder: Path) -> str:
    """The sources, with the parts of one message in one piece."""
    text = "\n".join(path.read_text() for path in sorted(folder.rglob("*.py")))
    return re.sub(r'"\s*\n\s*f?"', "", text)


def is_in(message: str, folder: Path) -> bool:
    parts = [re.escape(part) for part in message.split("…")]
    return re.search(r"\{[^\"\n]*\}".join(parts), literals(folder)) is not None


OWN, _, REST = PAGE.partition("## Messages of PyTorch")


@pytest.mark.parametrize("message", quoted(OWN))
def test_our_messages_are_in_the_sources(message: str) -> None:
    assert is_in(message, OURS)


@pytest.mark.parametrize("message", quoted(REST))
def test_messages_of_pytorch_are_in_its_sources(message: str) -> None:
    assert is_in(message, THEIRS)


def test_every_row_quotes_a_message() -> None:
    rows = re.findall(r"^\| .*\|$", PAGE, re.MULTILINE)
    headers = re.findall(r"^\| message \|", PAGE, re.MULTILINE)
    assert len(headers) == 4
    assert len(re.findall(r"^\| `", PAGE, re.MULTILINE)) == len(rows) - len(headers)
    assert not is_in("a message that … nobody raises", OURS)
