"""Pictures of three reports for the documentation, taken in a browser.

    python -m benchmarks.report_pictures [--reports build/reports] [--only llama-8 ...]

The Transformer of the paper on 16 devices, and Llama 3 8B on 8 and on 64 H100, planned with
recomputation and simulated peaks, so that there is a plan that fits, and without measuring. Needs
one of the browsers that the tests of the report use. Writes docs/pictures, and the reports
themselves to the folder that is given.
"""

from __future__ import annotations

import argparse
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import torch
from playwright.sync_api import Page, sync_playwright

import tensoropt_torch
from benchmarks.frontier_picture import OPTIMIZER, llama
from benchmarks.models import catalogue
from benchmarks.paper.setups import h100_cluster, paper_cluster
from tensoropt_torch import Cluster, Example, PlanningOptions, StepSettings, load_cluster
from tensoropt_torch.errors import TensorOptError

ROOT = Path(__file__).resolve().parents[1]
PICTURES = ROOT / "docs" / "pictures"
BROWSERS = ("chromium-headless-shell", "chromium", "google-chrome")
WIDTH, HEIGHT = 1280, 1400  # of the window, in pixels
LARGEST = 1e6  # bytes of a page
Asked = tuple[Example, PlanningOptions]


def transformer() -> Asked:
    with torch.device("meta"):
        model, args = catalogue.transformer()
    planning = PlanningOptions(cluster=paper_cluster(), optimizer="adam", recompute=True)
    return Example(model, args), planning


def llama_on(cluster: Cluster, sequences: int) -> Asked:
    planning = PlanningOptions(cluster=cluster, optimizer=OPTIMIZER, recompute=True)
    return llama(sequences), planning


REPORTS: dict[str, Callable[[], Asked]] = {
    "transformer-16": transformer,
    "llama-8": lambda: llama_on(load_cluster("h100-8"), 16),
    "llama-64": lambda: llama_on(h100_cluster(8), 128),
}


def write(asked: Asked, report: Path) -> float:
    """Plans, and writes the page with the simulated peak of the pick; returns the seconds that
    writing took.

    Raises:
        TensorOptError: nothing fits, so that there is no plan to show.
    """
    example, planning = asked
    comparison = tensoropt_torch.compare(example, planning=planning)
    plan = comparison.plan()
    if plan is None:
        raise TensorOptError(f"{report.stem}: nothing fits: {comparison!r}")
    step = StepSettings(planning.optimizer, "cuda")
    peak = tensoropt_torch.simulate_memory(example, plan, step=step)
    began = time.perf_counter()
    comparison.report(report, peak=peak)
    return time.perf_counter() - began


def find_browser() -> str:
    """Raises TensorOptError if none is installed."""
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        raise TensorOptError(
            f"none of {', '.join(BROWSERS)} is installed; .ci/system_packages.sh test does that"
        )
    return found


def take(page: Page, report: Path, picture: Path) -> None:
    """The top of a page."""
    page.goto(report.as_uri())
    page.wait_for_selector("html.drawn")
    page.screenshot(path=picture)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--reports", type=Path, default=ROOT / "build" / "reports")
    parser.add_argument("--only", nargs="+", choices=list(REPORTS), default=list(REPORTS))
    options = parser.parse_args()
    folder = options.reports
    folder.mkdir(parents=True, exist_ok=True)
    PICTURES.mkdir(exist_ok=True)
    flags = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as player:
        browser = player.chromium.launch(executable_path=find_browser(), args=flags)
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        for name in options.only:
            report = folder / f"{name}.html"
            seconds = write(REPORTS[name](), report)
            take(page, report, PICTURES / f"report-{name}.png")
            size = report.stat().st_size
            print(f"{name}: {size / 1e6:.1f} MB, made in {seconds:.1f} s", flush=True)
            if size > LARGEST:
                raise TensorOptError(f"'{report}' has {size / 1e6:.1f} MB; make the page lighter")
        browser.close()


if __name__ == "__main__":
    main()
