"""The ``tensoropt`` command: planning without running the job."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from rich.console import Console
from rich.logging import RichHandler

from tensoropt_torch.cli.interrupts import interrupts_heard, tell_interrupted
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.logs import LIBRARY
from tensoropt_torch.version import __version__


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status (2 for a user's mistake, 130 for Ctrl-C)."""
    options = _parser().parse_args(arguments)
    try:
        with interrupts_heard(), _logged() if options.verbose else nullcontext():
            # Names of users are shown as they are.
            return options.run(options, Console(markup=False)) or 0
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
    """A command by its name: what it says of itself, and the module that has its arguments
    (``add_NAME``) and what it does (``run_NAME``, which returns the exit status, None: 0)."""

    name: str
    help: str
    module: str

    def add(self, parser: argparse.ArgumentParser) -> None:
        """Its arguments, and what it does. Its module is imported here, so that a command waits
        for what it needs itself, and the list of all commands for nothing."""
        module = import_module(f"{__name__}.{self.module}")
        suffix = self.name.replace("-", "_")
        getattr(module, f"add_{suffix}")(parser)
        parser.set_defaults(run=getattr(module, f"run_{suffix}"))


COMMANDS = (
    _Command("advise", "what training takes and costs on kinds and numbers of machines", "advise"),
    _Command("frontier", "print the cost frontier of a model", "planning"),
    _Command("plan", "pick a strategy and write it to a file", "planning"),
    _Command("profile", "step time for a range of device counts", "planning"),
    _Command("compare", "the frontier next to other systems", "planning"),
    _Command("report", "write a page of the frontier: one HTML file", "report"),
    _Command("tradeoffs", "memory, time and a third objective over device counts", "planning"),
    _Command("explain", "why operators are split as they are, or not", "explaining"),
    _Command("check-rule", "check the rule of an operator by running it", "explaining"),
    _Command(
        "profile-hardware",
        "measure the running job's devices and collectives (torchrun)",
        "measuring",
    ),
    _Command(
        "validate", "run random strategies and compare with predictions (torchrun)", "measuring"
    ),
    _Command("memory", "where the bytes of a strategy go: a simulation", "explaining"),
    _Command("clusters", "list the cluster presets", "clusters"),
    _Command("doctor", "what is missing on this machine", "doctor"),
    _Command("show", "print a saved plan", "saved"),
    _Command("diff", "what changes from one saved plan to another", "saved"),
)


class _Parser(argparse.ArgumentParser):
    """The command's own parser and those of its parts, which all know ``--verbose``. That of a
    part has its other arguments once it is asked for."""

    def __init__(self, command: _Command | None = None, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._command = command
        self.add_argument(
            "--verbose",
            action="store_true",
            default=argparse.SUPPRESS,
            help="say what is captured, measured, searched and picked",
        )

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As ever."""
        if self._command is not None:
            command, self._command = self._command, None
            command.add(self)
        return super().parse_known_args(args, namespace)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="tensoropt", description=__doc__)
    parser.set_defaults(verbose=False)
    parser.add_argument("--version", action="version", version=f"tensoropt-torch {__version__}")
    commands = parser.add_subparsers(required=True)
    for command in COMMANDS:
        commands.add_parser(command.name, help=command.help, command=command)
    return parser
