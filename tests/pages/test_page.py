"""Pages are one file, and what they need is asked for by name."""

from __future__ import annotations

import base64
import gzip
import sys
from pathlib import Path

import pytest

from tensoropt_torch import TensorOptError
from tensoropt_torch.pages.charts import Chart, Line, figure_json
from tensoropt_torch.pages.optional import needed_for
from tensoropt_torch.pages.page import in_json, packed, write_page


def test_what_is_missing_is_named_with_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plotly", None)
    monkeypatch.setitem(sys.modules, "plotly.graph_objects", None)
    chart = Chart("c", "label", [Line("a", [1], [2], ["point"])], "x", "y")
    with pytest.raises(TensorOptError, match=r"'plotly.*pip install jinja2 matplotlib plotly"):
        figure_json(chart)


def test_other_errors_are_not_hidden() -> None:
    with pytest.raises(KeyError), needed_for("a report"):
        raise KeyError("other")


def test_data_in_a_page_cannot_end_its_script() -> None:
    text = in_json({"name": "</script>", "rows": ["<b>"] * 1000})
    inside = packed(text)
    assert "<" not in inside and len(inside) < len(text) / 10
    assert gzip.decompress(base64.b64decode(inside)).decode() == text


def test_a_page_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(TensorOptError, match=r"report '.*missing/r.html' cannot be written"):
        write_page(tmp_path / "missing" / "r.html", "")
