"""The ``tensoropt`` command: planning without running the job."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.logging import RichHandler

from tensoropt_torch import doctor
from tensoropt_torch.cli import advise, explaining, measuring, planning, report, saved
from tensoropt_torch.cli.interrupts import interrupts_heard, tell_interrupted
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.logs import LIBRARY
from tensoropt_torch.version import __version__


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status (2 for a user's mistake, 130 for Ctrl-C)."""
    options = _parser().parse_args(arguments)
    try:
        with interrupts_heard(), _logged() if options.verbose else nullcontext():
            return options.run(options, Console()) or 0
    except TensorOptError as error:
        print(f"tensoropt: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return tell_interrupted()


@contextmanager
def _logged() -> Iterator[None]:
    """Inside, what the library says of its work goes to standard error."""
    logger = logging.getLogger(LIBRARY)
    handler = RichHandler(console=Console(stderr=True), show_path=False)
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.setLevel(before)
        logger.removeHandler(handler)


@dataclass(frozen=True)
class _Command:
    """A command by its name: what it says of itself, its arguments, and what it does, which
    returns the exit status (None: 0)."""

    name: str
    help: str
    add: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace, Console], int | None]


def _no_arguments(parser: argparse.ArgumentParser) -> None:
    del parser


def _examine(options: argparse.Namespace, console: Console) -> int:
    del console  # what is found is printed without the packages that may be missing
    return doctor.examine(options.json)


_COMMANDS = (
    _Command(
        "advise",
        "what training takes and costs on kinds and numbers of machines",
        advise.add_advise,
        advise.run_advise,
    ),
    _Command(
        "frontier",
        "print the cost frontier of a model",
        planning.add_frontier,
        planning.run_frontier,
    ),
    _Command(
        "plan", "pick a strategy and write it to a file", planning.add_plan, planning.run_plan
    ),
    _Command(
        "profile",
        "step time for a range of device counts",
        planning.add_profile,
        planning.run_profile,
    ),
    _Command(
        "compare",
        "the frontier next to other systems",
        planning.add_compare,
        planning.run_compare,
    ),
    _Command(
        "report",
        "write a page of the frontier: one HTML file",
        report.add_report,
        report.run_report,
    ),
    _Command(
        "tradeoffs",
        "memory, time and a third objective over device counts",
        planning.add_tradeoffs,
        planning.run_tradeoffs,
    ),
    _Command(
        "explain",
        "why operators are split as they are, or not",
        explaining.add_explain,
        explaining.run_explain,
    ),
    _Command(
        "check-rule",
        "check the rule of an operator by running it",
        explaining.add_check_rule,
        explaining.run_check_rule,
    ),
    _Command(
        "profile-hardware",
        "measure the running job's devices and collectives (torchrun)",
        measuring.add_profile_hardware,
        measuring.run_profile_hardware,
    ),
    _Command(
        "validate",
        "run random strategies and compare with predictions (torchrun)",
        measuring.add_validate,
        measuring.run_validate,
    ),
    _Command(
        "memory",
        "where the bytes of a strategy go: a simulation",
        explaining.add_memory,
        explaining.run_memory,
    ),
    _Command("clusters", "list the cluster presets", _no_arguments, explaining.run_clusters),
    _Command("doctor", "what is missing on this machine", doctor.add_doctor, _examine),
    _Command("show", "print a saved plan", saved.add_show, saved.run_show),
    _Command("diff", "what changes from one saved plan to another", saved.add_diff, saved.run_diff),
)


class _Parser(argparse.ArgumentParser):
    """The command's own parser and those of its parts, which all know ``--verbose``."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.add_argument(
            "--verbose",
            action="store_true",
            default=argparse.SUPPRESS,
            help="say what is captured, measured, searched and picked",
        )


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="tensoropt", description=__doc__)
    parser.set_defaults(verbose=False)
    parser.add_argument("--version", action="version", version=f"tensoropt-torch {__version__}")
    commands = parser.add_subparsers(required=True)
    for command in _COMMANDS:
        part = commands.add_parser(command.name, help=command.help)
        command.add(part)
        part.set_defaults(run=command.run)
    return parser
