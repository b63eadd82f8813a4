"""The pages of the documentation: links lead somewhere, all are in the menu, the site builds."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import tensoropt_torch
from tests.documents import ROOT

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
MOST_LINES_OF_README = 150


def anchors(page: str) -> set[str]:
    """Of the headings of a page, as GitHub makes them."""
    headings = HEADING.findall(FENCED.sub("", page))
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {heading.replace(" ", "-") for heading in plain}


def dead_links(path: Path) -> Iterator[str]:
    """Relative links of a page to files or headings that are not there."""
    for link in LINK.findall(FENCED.sub("", path.read_text())):
        if re.match(r"\w+:", link):
            continue  # another site: make links
        name, _, anchor = link.partition("#")
        target = (path.parent / name).resolve() if name else path
        if not target.exists():
            yield f"{path.name}: there is no '{name}'"
        elif anchor and anchor not in anchors(target.read_text()):
            yield f"{path.name}: '{name}' has no heading '{anchor}'"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    assert not list(dead_links(path))


def test_dead_links_are_found(tmp_path: Path) -> None:
    page = tmp_path / "a.md"
    (tmp_path / "b.md").write_text("# One `word`, and two\n\n```sh\n# no heading\n```\n")
    page.write_text("[x](b.md#one-word-and-two) [y](c.md) [z](b.md#no-heading) [w](#nothing)\n")
    assert len(list(dead_links(page))) == 3


def test_pages_that_the_code_names_are_there() -> None:
    for folder in ("tensoropt_torch", "csrc", "benchmarks", "examples", "tests"):
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in (".py", ".h", ".cc", ".toml", ".jinja"):
                for name in re.findall(r"\bdocs/([\w-]+\.md)\b", path.read_text()):
                    assert (ROOT / "docs" / name).exists(), f"{path}: docs/{name}"


def test_the_api_page_has_all_public_names() -> None:
    text = (ROOT / "docs" / "api.rst").read_text()
    listed = re.findall(r"^\.\. auto\w+:: (\w+)$", text, re.MULTILINE)
    assert sorted(listed) == sorted(set(tensoropt_torch.__all__) - {"__version__"})


def test_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= MOST_LINES_OF_README


def test_versions_agree() -> None:
    version = tensoropt_torch.__version__
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"({version})" in (ROOT / "CHANGELOG.md").read_text()


@pytest.mark.slow
def test_site_builds_without_warnings(tmp_path: Path) -> None:
    options = ("--quiet", "--fail-on-warning", "--keep-going", "-E", "-b", "html")
    command = [sys.executable, "-m", "sphinx", *options, str(ROOT / "docs"), str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    assert "Frontier-Tracking" in (tmp_path / "the-search.html").read_text()
    assert 'href="the-search.html#baselines"' in (tmp_path / "report.html").read_text()
    api = (tmp_path / "api.html").read_text()
    assert "The whole cost frontier of a model" in api and "memory_limit" in api
