"""The command ``tensoropt doctor``."""

from __future__ import annotations

import argparse

from rich.console import Console

from tensoropt_torch import doctor


def add_doctor(parser: argparse.ArgumentParser) -> None:
    """Its arguments."""
    doctor.add_arguments(parser)


def run_doctor(options: argparse.Namespace, console: Console) -> int:
    """Say what is missing. It is printed without the packages that may be."""
    del console
    return doctor.examine(options.json)
