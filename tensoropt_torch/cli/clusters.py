"""The command ``tensoropt clusters``."""

from __future__ import annotations

import argparse

from rich.console import Console
from rich.table import Table

from tensoropt_torch.config import PATTERN_WORDS, list_presets, load_cluster


def add_clusters(parser: argparse.ArgumentParser) -> None:
    """It has no arguments."""
    del parser


def run_clusters(_: argparse.Namespace, console: Console) -> None:
    """Print the presets with a file of their own, and the pattern of all others."""
    table = Table()
    for column in ("preset", "devices", "description"):
        table.add_column(column)
    for name in list_presets():
        cluster = load_cluster(name)
        table.add_row(name, str(cluster.num_devices), cluster.description)
    console.print(table)
    console.print(f"others: {PATTERN_WORDS}", markup=False, highlight=False)
