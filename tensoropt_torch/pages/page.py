"""Pages in one HTML file: no network, no other files.

::

    page = Page("validation.html.jinja", "Predicted and measured")
    write_page(path, page.html(validation=validation, charts=[...]))

Templates lie in ``templates``; what they show is given as plain data. Texts are escaped.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.layer_names import listed_names
from tensoropt_torch.pages.charts import Chart
from tensoropt_torch.pages.mesh import Drawings
from tensoropt_torch.pages.optional import needed_for
from tensoropt_torch.units import (
    format_bytes,
    format_part,
    format_seconds,
    format_share,
    format_step,
)

if TYPE_CHECKING:
    from markupsafe import Markup


@dataclass(frozen=True)
class Page:
    """A page by its template and its title."""

    template: str
    title: str

    def html(self, charts: Sequence[Chart], **shown: Any) -> str:
        """The whole page.

        Args:
            charts: by whose names the template places them.
            shown: what else the template shows, by name.

        Raises:
            TensorOptError: a package that pages need is not installed.
        """
        with needed_for("a report"):
            import jinja2

        environment = jinja2.Environment(
            loader=jinja2.FunctionLoader(_text),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        environment.filters |= {
            "bytes": format_bytes,
            "seconds": format_seconds,
            "step": format_step,
            "part": format_part,
            "share": format_share,
            "in_json": in_json,
            "listed": listed_names,
        }
        return environment.get_template(self.template).render(
            title=self.title,
            charts={chart.name: chart for chart in charts},
            drawings=Drawings(),
            asset=_text,
            **shown,
        )


def in_json(value: Any) -> Markup:
    """Plain data as JSON, which a script element may hold: no text in it can end the element."""
    from markupsafe import Markup

    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c"))


def write_page(path: str | Path, html: str) -> None:
    """Write a page to a file.

    Raises:
        TensorOptError: the file cannot be written.
    """
    try:
        Path(path).write_text(html, encoding="utf-8")
    except OSError as error:
        raise TensorOptError(
            f"report '{path}' cannot be written: {error}; give the path of a file in a folder "
            "that exists"
        ) from error


def _text(name: str) -> str:
    """A template, or a file that templates include as it is."""
    folder = resources.files("tensoropt_torch.pages") / "templates"
    return (folder / name).read_text(encoding="utf-8")
