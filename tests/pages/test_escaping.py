"""Names of users in every page that is written: none becomes an element, whatever is in it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import tensoropt_torch
from tensoropt_torch import Cluster, Example, cli, load_cluster
from tensoropt_torch.advising import Price

EVIL = "</script><script>alert(1)</script>"
ESCAPED = ("&lt;/script&gt;&lt;script&gt;", "\\u003c/script>\\u003cscript>")


class Evil(nn.Module):
    """Its modules, and its class, have such names."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleDict({EVIL.replace(".", ""): nn.Linear(64, 63)})
        self.last = nn.Linear(63, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers.values():
            x = layer(x)
        return self.last(x).pow(2).mean()


Evil.__name__ = Evil.__qualname__ = EVIL


def example() -> Example:
    with torch.device("meta"):
        return Example(Evil(), (torch.empty(32, 64),))


def cluster() -> Cluster:
    found = load_cluster("h100-8")
    device = replace(found.device, name=EVIL, source=EVIL, price_currency=EVIL, price_source=EVIL)
    return replace(found, name=EVIL, description=EVIL, device=device)


def assert_harmless(path: Path, elements: int) -> None:
    """It has the scripts of its template and no other, and the names are on it."""
    text = path.read_text()
    assert text.count("<script") == text.count("</script") == elements
    assert "<script>alert" not in text
    assert any(escaped in text for escaped in ESCAPED)


def scripts_of(page: str) -> int:
    """Of the same page without such names."""
    return page.count("<script")


def test_the_page_of_a_comparison(tmp_path: Path) -> None:
    plain = tensoropt_torch.compare(
        nn.Sequential(nn.Linear(64, 64), nn.Flatten(0)),
        (torch.empty(32, 64),),
        loss_fn=torch.sum,
        cluster="h100-8",
        memory="sums",
    )
    plain.report(tmp_path / "plain.html")
    found = tensoropt_torch.compare(example(), cluster=cluster(), memory="sums")
    counts = tensoropt_torch.profile(
        example(), cluster=cluster(), memory="sums", device_counts=[8, 4]
    )
    found.report(tmp_path / "page.html")
    assert_harmless(tmp_path / "page.html", scripts_of((tmp_path / "plain.html").read_text()))
    found.report(tmp_path / "counts.html", counts=counts)
    assert "<script>alert" not in (tmp_path / "counts.html").read_text()
    text = (tmp_path / "page.html").read_text()
    assert "&lt;script&gt;alert(1)&lt;/script&gt;.weight" in text  # of a module
    assert "<h1>&lt;/script&gt;" in text  # of the model


def test_the_page_and_the_table_of_advice(tmp_path: Path) -> None:
    found = tensoropt_torch.advise(
        {EVIL: example(), "a | b": example()},
        machines=[cluster()],
        device_counts=[8],
        steps=1,
        price=Price(2.0, EVIL, EVIL),
        memory="sums",
        beside="all",
    )
    found.report(tmp_path / "page.html")
    # Two charts, their script, and nothing else.
    assert_harmless(tmp_path / "page.html", 3)
    table = found.to_markdown()
    assert "<script" not in table and "&lt;script>" in table
    columns = {line.replace("\\|", "").count("|") for line in table.splitlines()}
    assert len(columns) == 1
    assert "<script" not in found._repr_html_()


def test_tables_on_a_terminal_show_names_as_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What looks like markup of rich is none."""
    folder = tmp_path / "a[bold]b"
    folder.mkdir()
    (folder / "config.json").write_text(
        '{"model_type": "gpt2", "n_layer": 1, "n_embd": 32, "n_head": 2, "vocab_size": 64}'
    )
    pytest.importorskip("transformers")
    asked = ["advise", "--config", str(folder), "--batch", "8x8", "--clusters", "h100"]
    assert cli.main([*asked, "--devices", "2", "--steps", "1", "--memory", "sums"]) == 0
    assert "a[bold]b 8x8 on h100" in " ".join(capsys.readouterr().out.split())
