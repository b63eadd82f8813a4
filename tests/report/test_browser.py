"""The page in a browser: what is clicked, moved and typed changes what is read."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from playwright.sync_api import Browser, Page, sync_playwright

import tensoropt_torch
from benchmarks.report_pictures import find_browser
from tensoropt_torch import Example, TensorOptError
from tensoropt_torch.planner.baselines import Comparison
from tensoropt_torch.planner.frontier_page import Additions, frontier_page
from tensoropt_torch.planner.points import BEST, knee_index
from tensoropt_torch.units import format_bytes, format_step
from tests.distributed.models import GPT, GPTConfig


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    config = GPTConfig(n_layer=2, n_head=12, n_embd=768, vocab_size=50304, block_size=256)
    with torch.device("meta"):
        tokens = torch.zeros(16, 256, dtype=torch.long)
        example = Example(GPT(config), (tokens, tokens))
    return tensoropt_torch.compare(example, cluster="h100-8", num_devices=8)


@pytest.fixture(scope="module")
def path(comparison: Comparison, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("browser") / "report.html"
    comparison.report(path)
    return path


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    flags = ["--no-sandbox"] if os.geteuid() == 0 else []
    try:
        executable = find_browser()
    except TensorOptError as error:
        pytest.skip(str(error))
    with sync_playwright() as player:
        browser = player.chromium.launch(executable_path=executable, args=flags)
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Browser, path: Path) -> Iterator[Page]:
    """The page, opened; at the end it has neither failed nor asked for anything else."""
    problems: list[str] = []
    page = browser.new_page(viewport={"width": 1200, "height": 900})
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda message: problems.append(message.text))
    page.on("request", lambda request: problems.append(request.url))
    page.goto(path.as_uri())
    page.wait_for_selector("html.drawn")
    yield page
    page.close()
    assert problems == [path.as_uri()]


def press(page: Page, selector: str, *keys: str) -> None:
    page.focus(selector)
    for key in keys:
        page.keyboard.press(key)


def read(page: Page, script: str) -> Any:
    return page.evaluate(f"() => {script}")


def click_marker(page: Page, index: int) -> None:
    """A point of the frontier, at the pixel where it is drawn."""
    plot = page.locator("[data-chart=frontier] .plot")
    plot.scroll_into_view_if_needed()
    at = f"{{x: charts.frontier.x.at(charts.frontier.chart.lines[0].x[{index}]),"
    at += f" y: charts.frontier.y.at(charts.frontier.chart.lines[0].y[{index}])}}"
    plot.click(position=read(page, f"({at})"))


def test_the_page_answers(page: Page, comparison: Comparison) -> None:
    points = comparison.ours.points
    assert len(points) > 2

    # It opens with what is picked.
    assert comparison.picks is not None
    pick = comparison.picks[comparison.ours.name]
    assert pick is not None
    assert f"(point {pick.index})" in page.inner_text("#pick")
    assert page.input_value("#first-point") == str(pick.index)

    # Its peak is within the limit, and others take what the table says they take.
    limit = f"the limit of {format_bytes(comparison.memory_limit)}: this is the pick"
    assert page.inner_text("#pick-peak") == (
        f"Its simulated peak is {format_bytes(pick.peak_bytes)}, within {limit}."
    )
    assert page.inner_text("#pick-beside").startswith("Others whose peaks fit the limit of ")
    for one in comparison.baselines:
        other = comparison.picks[one.name]
        if other is not None and one.name != BEST:
            share = 100 * (other.time_s / pick.time_s - 1)
            if share >= 0.5:
                assert f"{one.title} is {share:.0f}% slower" in page.inner_text("#pick-beside")

    # The slider, by keyboard: each step is a point.
    press(page, "#limit", "Home")
    assert "(point 0)" in page.inner_text("#pick")
    press(page, "#limit", "ArrowRight")
    said = page.inner_text("#pick")
    kept, step = format_bytes(points[1][0]), format_step(points[1][1])
    assert f"keeps {kept} per device and takes {step} a step" in said and "(point 1)" in said
    assert re.search(r"[\d,.]+ tokens a second", said)
    if 1 not in (pick.index, knee_index(points), len(points) - 1):
        assert page.inner_text("#pick-peak").startswith("Its peak is not simulated; by those that")
    assert page.inner_text("#pick-beside").startswith("Others that keep no more than ")
    spoken = page.get_attribute("#limit", "aria-valuetext")
    assert spoken is not None and "(point 1)" in spoken
    said = page.inner_text("#pick-outline").split(". ")[0]
    assert said and comparison.ours.plan(1).summary().startswith(said)

    # A limit that is typed, between two points.
    between = (points[1][0] + points[2][0]) / 2 / 2**30
    page.fill("#limit-gib", repr(between))
    assert "(point 1)" in page.inner_text("#pick")
    assert page.input_value("#limit") == "1"
    beside = page.inner_text("#pick-beside")
    assert re.search(r"FSDP2 \(ZeRO-3\) (is (\d|as fast)|keeps more)", beside)
    assert read(page, "charts.frontier.chart.marks[0].value") == between
    page.fill("#limit-gib", "-3")
    assert page.inner_text("#pick") == "A limit is a number of GiB above 0."
    assert page.inner_text("#pick-peak") == page.inner_text("#pick-outline") == ""
    assert not page.locator("#show-pick").is_visible()
    page.fill("#limit-gib", "")
    assert page.inner_text("#pick") == "A limit is a number of GiB above 0."

    # Below the least nothing fits; what is printed of a point is enough for it.
    page.fill("#limit-gib", repr(0.99 * points[0][0] / 2**30))
    assert page.inner_text("#pick").startswith("Nothing fits")
    assert page.inner_text("#pick-outline") == ""
    for index in (0, pick.index, len(points) - 1):
        gib = points[index][0] / 2**30
        page.fill("#limit-gib", f"{gib:.2f}" if gib >= 1 else f"{gib:.4g}")
        assert f"(point {index})" in page.inner_text("#pick")

    # A point of the chart that is clicked.
    click_marker(page, 2)
    assert "(point 2)" in page.inner_text("#pick")
    tip = page.locator("[data-chart=frontier] .tip")
    assert f"keeps {format_bytes(points[2][0])} per device" in tip.inner_text()

    # Axes.
    texts = "document.querySelectorAll('[data-chart=frontier] .axes text')"
    ticks = f"[...{texts}].map(t => t.textContent)"
    before = read(page, ticks)
    page.get_by_label("logarithmic: memory").uncheck()
    assert read(page, ticks) != before and "0" in read(page, ticks)

    # Two points side by side.
    panels = page.locator("[data-point]:visible")
    last, first = str(len(points) - 1), "0"
    page.select_option("#first-point", first)
    page.select_option("#second-point", last)
    assert panels.count() == 2
    assert page.locator("#changes tbody tr").count() > 0
    page.select_option("#first-point", last)
    assert panels.count() == 1
    assert "it is the same point" in page.inner_text("#changes tbody")
    press(page, "#limit", "Home")
    page.locator("#show-pick").click()
    assert page.input_value("#first-point") == "0"
    assert page.locator("#changes thead th").all_inner_texts()[1:] == ["point 0", f"point {last}"]
    # The other point gives way if it is the one that is asked for.
    page.select_option("#second-point", "0")
    page.locator("#show-pick").click()
    assert page.input_value("#first-point") == "0"
    assert page.input_value("#second-point") == last
    changed = page.locator("#changes tbody tr").first.locator(".words").all_inner_texts()
    assert len(set(changed)) == 2


def test_a_point_whose_peak_is_too_large_says_so(
    browser: Browser, comparison: Comparison, tmp_path: Path
) -> None:
    """Sums say that it fits, and its peak does not."""
    points = comparison.ours.points
    peaks = {0: int(points[0][0]), len(points) - 1: int(points[-1][0] * 1.5)}
    additions = Additions(points[-1][0] * 1.2, peaks=peaks, picked={comparison.ours.name: 0})
    path = tmp_path / "page.html"
    path.write_text(frontier_page(comparison.frontier.view, additions))
    page = browser.new_page()
    page.goto(path.as_uri())
    page.wait_for_selector("html.drawn")
    assert "within the limit" in page.inner_text("#pick-peak")
    press(page, "#limit", "End")
    assert re.match(
        r"Its simulated peak is [\d.]+ [GM]iB, above the limit", page.inner_text("#pick-peak")
    )
    assert read(page, "charts.frontier.chart.lines[0].faint").count(len(points) - 1) == 1
    press(page, "#limit", "ArrowLeft")
    assert "by those that are it is about" in page.inner_text("#pick-peak")
    page.close()


def test_every_plan_has_its_table(page: Page, comparison: Comparison) -> None:
    """That of the pick is written, others are filled when they are looked at."""
    body = "[data-point='{}'] details:not(.long) tbody tr"
    assert comparison.picks is not None
    pick = comparison.picks[comparison.ours.name]
    assert pick is not None
    rows = page.locator(body.format(pick.index)).all_text_contents()
    assert len(rows) > 10
    for index in page.locator("#second-point option").evaluate_all("os => os.map(o => o.value)"):
        page.select_option("#second-point", index)
        others = page.locator(body.format(index)).all_text_contents()
        assert len(others) == len(rows)
        if index != str(pick.index):
            assert others != rows
        drawn = page.locator(body.format(index)).locator("use")
        known = "us => us.map(u => document.querySelector(u.getAttribute('href')) !== null)"
        assert drawn.count() == len(rows) and all(drawn.evaluate_all(known))


@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_is_clipped(page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    root = "document.documentElement"
    assert read(page, f"{root}.scrollWidth") == width
    drawn = "[...document.querySelectorAll('.plot')].every(p => p.firstChild.viewBox.baseVal.width"
    page.wait_for_function(f"() => {drawn} === p.clientWidth)")
    if width == 1280:
        clipped = "filter(e => e.scrollWidth > e.clientWidth).map(e => e.textContent)"
        assert read(page, f"[...document.querySelectorAll('.scroll')].{clipped}") == []


def test_colours_follow_the_reader(page: Page) -> None:
    colour = "getComputedStyle(document.body).backgroundColor"
    text = "getComputedStyle(document.querySelector('.axes text')).fill"
    page.emulate_media(color_scheme="light")
    light = read(page, colour), read(page, text)
    page.emulate_media(color_scheme="dark")
    dark = read(page, colour), read(page, text)
    assert light[0] != dark[0] and light[1] != dark[1]
    page.emulate_media(media="print", color_scheme="dark")
    assert (read(page, colour), read(page, text)) == light
    assert not page.locator("#first-point").is_visible()


def test_all_controls_have_names(page: Page) -> None:
    unnamed = """[...document.querySelectorAll('button, input, select')]
        .filter((e) => !(e.labels && e.labels.length) && !e.textContent.trim())
        .map((e) => e.outerHTML)"""
    assert read(page, unnamed) == []


def test_a_page_of_many_points_is_small(tmp_path: Path) -> None:
    with torch.device("meta"):
        tokens = torch.zeros(16, 256, dtype=torch.long)
        model = GPT(GPTConfig(n_layer=4, n_head=12, n_embd=768, vocab_size=50304, block_size=256))
        frontier = tensoropt_torch.find_frontier(
            model,
            (tokens, tokens),
            cluster="h100-8",
            recompute=True,
            search=tensoropt_torch.SearchSettings(epsilon=1e-3),
        )
    assert len(frontier) > 100
    frontier.report(tmp_path / "report.html")
    assert (tmp_path / "report.html").stat().st_size < 1e6
