"""Pages are one file, and what they need is asked for by name."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tensoropt_torch import TensorOptError
from tensoropt_torch.pages.charts import Chart, Line, Mark
from tensoropt_torch.pages.optional import needed_for
from tensoropt_torch.pages.page import Page, in_json, write_page


def test_what_is_missing_is_named_with_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(TensorOptError, match=r"'jinja2.*pip install jinja2 matplotlib"):
        Page("validation.html.jinja", "title").html([])


def test_other_errors_are_not_hidden() -> None:
    with pytest.raises(KeyError), needed_for("a report"):
        raise KeyError("other")


def test_data_in_a_page_cannot_end_its_script() -> None:
    data = {"name": "</script>", "rows": ["<b>"]}
    inside = in_json(data)
    assert "<" not in inside
    assert json.loads(inside) == data


def test_charts_say_what_is_beyond_their_first_view() -> None:
    line = Line("a", [1, 2, 30], [3.0, 2.0, 1.23456789], ["one", "two", "three"])
    near = Chart("c", "label", [line], "x", "y", most_x=30)
    far = Chart("c", "label", [line], "x", "y", most_x=29, marks=[Mark("x", 2, "limit", "limit")])
    assert far.hides and not near.hides and not Chart("c", "label", [line], "x", "y").hides
    assert far.data()["lines"][0]["y"] == [3.0, 2.0, 1.23457]
    assert far.data()["marks"] == [{"axis": "x", "value": 2, "label": "limit", "name": "limit"}]


def test_a_page_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(TensorOptError, match=r"report '.*missing/r.html' cannot be written"):
        write_page(tmp_path / "missing" / "r.html", "")
