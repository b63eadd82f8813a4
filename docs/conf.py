"""Settings of Sphinx: the site that ``make docs`` builds."""

import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import tensoropt_torch

project = "TensorOpt for PyTorch"
copyright = "the TensorOpt authors"
release = version = tensoropt_torch.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]

# The page of this name is the site's own search: search.md goes by another one, under which
# the-search.page includes it.
exclude_patterns = ["search.md"]
source_suffix = {".rst": "restructuredtext", ".md": "markdown", ".page": "markdown"}

html_theme = "furo"
html_title = f"{project} {release}"
html_copy_source = False

# Links to headings of other pages are checked as links to pages are.
myst_heading_anchors = 4

# Docstrings are of Google's style, and types stand in signatures.
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True

# PyTorch's own pages are not asked: building needs no network.
linkcheck_timeout = 20


def _rename_links(_: Any, __: str, source: list[str]) -> None:
    """Of a page that is read, those to search.md."""
    source[0] = re.sub(r"\]\(search\.md\b", "](the-search.page", source[0])


def setup(app: Any) -> None:
    """What Sphinx calls."""
    app.connect("source-read", _rename_links)
