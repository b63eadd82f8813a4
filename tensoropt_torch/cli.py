"""The ``tensoropt`` command: planning without running the job."""

from __future__ import annotations

import argparse
import importlib.util
import json
import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeAlias, get_args

from rich.console import Console
from rich.logging import RichHandler
from rich.table import Table

from tensoropt_torch import api, cli_job, cli_report, doctor
from tensoropt_torch.config import list_presets, load_cluster, parse_cluster
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.logs import LIBRARY
from tensoropt_torch.plan import Plan
from tensoropt_torch.plan.description import describe
from tensoropt_torch.plan.provenance import provenance
from tensoropt_torch.planner.device_counts import Objective
from tensoropt_torch.planner.memory_limits import Predictor
from tensoropt_torch.planner.optimizers import OptimizerModel
from tensoropt_torch.planner.search_settings import SearchSettings
from tensoropt_torch.planner.why import explain_plan
from tensoropt_torch.planner.wish_costs import wish_costs
from tensoropt_torch.report.explanation import explanation_table, fallback_table
from tensoropt_torch.report.tables import (
    comparison_table,
    diff_table,
    facts_table,
    frontier_table,
    memory_table,
    plan_summary,
    plan_table,
    profile_table,
    tradeoffs_table,
    wish_table,
)
from tensoropt_torch.rules import check_rule
from tensoropt_torch.simulate import StepSettings
from tensoropt_torch.tasks import Example, PlanningOptions, model_of
from tensoropt_torch.units import format_bytes, format_seconds
from tensoropt_torch.version import __version__

Commands: TypeAlias = "argparse._SubParsersAction[_Parser]"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status (2 for a user's mistake)."""
    options = _parser().parse_args(arguments)
    try:
        with _logged() if options.verbose else nullcontext():
            return options.run(options, Console()) or 0
    except TensorOptError as error:
        print(f"tensoropt: {error}", file=sys.stderr)
        return 2


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
    _add_planning(commands)
    _add_looking(commands)
    _add_saved(commands)
    return parser


def _add_planning(commands: Commands) -> None:
    """Commands that give strategies."""
    frontier = commands.add_parser("frontier", help="print the cost frontier of a model")
    _add_model(frontier)
    frontier.add_argument("--json", type=Path, help="write the points to this file")
    frontier.set_defaults(run=_frontier)
    plan = commands.add_parser("plan", help="pick a strategy and write it to a file")
    _add_model(plan)
    plan.add_argument("--option", choices=["mini_time", "mini_parallelism"], default="mini_time")
    plan.add_argument("--memory-limit", type=_bytes, help="per device, e.g. 12GiB")
    plan.add_argument(
        "--memory",
        choices=get_args(Predictor),
        default="sums",
        help="what the limit is compared with: sums of the search, or simulated peaks",
    )
    plan.add_argument("--output", type=Path, help="write the plan to this file")
    plan.add_argument("--details", action="store_true", help="print every operator's config")
    plan.set_defaults(run=_plan)
    profile = commands.add_parser("profile", help="step time for a range of device counts")
    _add_model(profile)
    profile.add_argument("--counts", type=_counts, required=True, help="e.g. 1,2,4,8")
    profile.add_argument("--memory-limit", type=_bytes, help="per device, e.g. 12GiB")
    profile.set_defaults(run=_profile)
    compare = commands.add_parser("compare", help="the frontier next to other systems")
    _add_model(compare)
    compare.add_argument("--memory-limit", type=_bytes, help="per device, e.g. 12GiB")
    compare.set_defaults(run=_compare)
    report = commands.add_parser("report", help="write a page of the frontier: one HTML file")
    _add_model(report)
    cli_report.add_report(report, _bytes, _counts)
    report.set_defaults(run=_report)
    tradeoffs = commands.add_parser(
        "tradeoffs", help="memory, time and a third objective over device counts"
    )
    _add_model(tradeoffs)
    tradeoffs.add_argument("--counts", type=_counts, required=True, help="e.g. 1,2,4,8")
    tradeoffs.add_argument("--objective", choices=get_args(Objective), default="money")
    tradeoffs.set_defaults(run=_tradeoffs)


def _add_looking(commands: Commands) -> None:
    """Commands that explain, check and measure."""
    explain = commands.add_parser("explain", help="why operators are split as they are, or not")
    _add_model(explain)
    explain.add_argument("--json", type=Path, help="write all records to this file")
    explain.add_argument(
        "--plan", type=Path, help="why this saved plan is what it is, instead of what its space is"
    )
    explain.set_defaults(run=_explain)
    check = commands.add_parser("check-rule", help="check the rule of an operator by running it")
    check.add_argument(
        "example",
        help="file.py:function; the function returns (operator, args) or (operator, args, kwargs)",
    )
    check.set_defaults(run=_check_rule)
    hardware = commands.add_parser(
        "profile-hardware", help="measure the running job's devices and collectives (torchrun)"
    )
    cli_job.add_profile_hardware(hardware)
    validate = commands.add_parser(
        "validate", help="run random strategies and compare with predictions (torchrun)"
    )
    _add_model(validate)
    cli_job.add_validate(validate)
    validate.set_defaults(run=_validate)
    memory = commands.add_parser("memory", help="where the bytes of a strategy go: a simulation")
    _add_model(memory)
    memory.add_argument("--plan", type=Path, help="a saved plan; by default that of mini_time")
    memory.add_argument("--memory-limit", type=_bytes, help="per device, e.g. 12GiB")
    memory.add_argument("--device", choices=["cpu", "cuda"], help="by default the cluster's")
    memory.add_argument("--rank", type=int, default=0)
    memory.set_defaults(run=_memory)
    clusters = commands.add_parser("clusters", help="list the cluster presets")
    clusters.set_defaults(run=_clusters)
    examined = commands.add_parser("doctor", help="what is missing on this machine")
    doctor.add_doctor(examined)
    examined.set_defaults(run=_doctor)


def _add_saved(commands: Commands) -> None:
    """Commands that look at plans in files."""
    show = commands.add_parser("show", help="print a saved plan")
    show.add_argument("plan", type=Path)
    diff = commands.add_parser("diff", help="what changes from one saved plan to another")
    diff.add_argument("before", type=Path)
    diff.add_argument("after", type=Path)
    for parser, run in ((show, _show), (diff, _diff)):
        parser.add_argument(
            "--model", help="file.py:function of the plan's model: operators are then named"
        )
        parser.set_defaults(run=run)


def _add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model",
        help="file.py:function; the function returns (module, args), (module, args, kwargs) or "
        "a tensoropt_torch.Example",
    )
    parser.add_argument("--cluster", default="cpu", help="preset or cluster file")
    parser.add_argument("--devices", type=int, help="by default all of the cluster")
    parser.add_argument("--optimizer", default="adamw")
    parser.add_argument(
        "--state-dtype", help="of the optimizer's states, e.g. float32; default: the parameter's"
    )
    parser.add_argument(
        "--master-weights", action="store_true", help="copies of parameters in --state-dtype"
    )
    parser.add_argument("--inputs", choices=["replicated", "sharded"], default="replicated")
    parser.add_argument("--space", choices=["ordered", "full"], default="ordered")
    parser.add_argument(
        "--split-spatial", action="store_true", help="may split spatial dims of convolutions"
    )
    parser.add_argument(
        "--recompute",
        action=argparse.BooleanOptionalAction,
        help="operators may run again in backward instead of keeping what they make (default: "
        "where the model calls torch.utils.checkpoint)",
    )
    parser.add_argument(
        "--max-micro-batches",
        type=int,
        default=1,
        help="the batch may be run as up to so many micro-batches, one after the other",
    )
    parser.add_argument(
        "--overlap",
        action=argparse.BooleanOptionalAction,
        help="reshard parameters while the device computes (default: where it is faster)",
    )
    parser.add_argument(
        "--reduce-dtype",
        choices=["parameter", "compute"],
        default="parameter",
        help="sum gradients in the dtype of the parameter or in that of its use under autocast",
    )
    for name, meaning in (("pin", "split so"), ("forbid", "not split so")):
        parser.add_argument(
            f"--{name}",
            action="append",
            default=[],
            metavar="NAME=SPLIT",
            help=f"parameters or operators that are {meaning}, e.g. embed.weight=S0, "
            "'blocks.*.attn=h'; may be repeated (docs/why-this-plan.md, Pins)",
        )
    parser.add_argument("--epsilon", type=float, default=SearchSettings().epsilon)


def _bytes(text: str) -> float:
    """``12GiB``, ``16e9``, ``800MB``."""
    units = {"GiB": 2**30, "MiB": 2**20, "KiB": 2**10, "GB": 1e9, "MB": 1e6, "KB": 1e3}
    for unit, factor in units.items():
        if text.endswith(unit):
            return float(text.removesuffix(unit)) * factor
    return float(text)


def _counts(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def _load_model(spec: str) -> Example:
    """The module with example inputs that ``file.py:function`` returns."""
    found = _call_user("model", spec)
    if isinstance(found, Example):
        return found
    if not isinstance(found, (tuple, list)) or len(found) not in (2, 3):
        raise TensorOptError(
            f"model '{spec}' gives {type(found).__name__}; the function must return "
            "(module, args), (module, args, kwargs) or a tensoropt_torch.Example"
        )
    return Example(*found)


def _call_user(what: str, spec: str) -> Any:
    """What ``file.py:function`` returns."""
    path, _, name = spec.rpartition(":")
    if not Path(path).is_file():
        raise TensorOptError(f"{what} '{spec}': there is no file '{path}'; give file.py:function")
    module_spec = importlib.util.spec_from_file_location("tensoropt_user_model", path)
    assert module_spec is not None and module_spec.loader is not None
    module = importlib.util.module_from_spec(module_spec)
    sys.modules[module_spec.name] = module
    sys.path.insert(0, str(Path(path).resolve().parent))
    module_spec.loader.exec_module(module)
    if not hasattr(module, name):
        raise TensorOptError(f"{what} '{spec}': '{path}' has no function '{name}'")
    return getattr(module, name)()


def _write(path: Path, record: Any) -> None:
    try:
        path.write_text(json.dumps(record, indent=1))
    except OSError as error:
        raise TensorOptError(f"'{path}' cannot be written: {error}") from error


def _optimizer(options: argparse.Namespace) -> OptimizerModel:
    return OptimizerModel.of(
        OptimizerModel(options.optimizer, options.state_dtype, options.master_weights)
    )


def _wishes(option: str, given: Sequence[str]) -> dict[str, str]:
    """``NAME=SPLIT`` of ``--pin`` or ``--forbid``, by name."""
    found: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or name in found:
            what = "is given twice" if equals else "has no '='"
            raise TensorOptError(f"--{option} {text} {what}; give NAME=SPLIT, once for each name")
        found[name] = value
    return found


def _planning(options: argparse.Namespace) -> PlanningOptions:
    return PlanningOptions(
        cluster=options.cluster,
        optimizer=_optimizer(options),
        inputs=options.inputs,
        space=options.space,
        split_spatial=options.split_spatial,
        recompute=options.recompute,
        max_micro_batches=options.max_micro_batches,
        overlap=options.overlap,
        reduce_dtype=options.reduce_dtype,
        pin=_wishes("pin", options.pin),
        forbid=_wishes("forbid", options.forbid),
        search=SearchSettings(epsilon=options.epsilon),
    )


def _frontier(options: argparse.Namespace, console: Console) -> None:
    frontier = api.find_frontier(
        _load_model(options.model), num_devices=options.devices, planning=_planning(options)
    )
    points = [(p.memory_bytes, p.time_s) for p in frontier]
    console.print(frontier_table(points, frontier.title, rows=20))
    if options.json:
        record = {
            "num_devices": frontier.num_devices,
            "guarantee": asdict(frontier.guarantee),
            "points": frontier.to_records(),
        }
        _write(options.json, record)


def _plan(options: argparse.Namespace, console: Console) -> None:
    plan = api.find_strategy(
        _load_model(options.model),
        option=options.option,
        memory_limit=options.memory_limit,
        num_devices=options.devices,
        planning=_planning(options),
        memory=options.memory,
    )
    description = describe(plan)
    peak = "" if plan.peak_bytes is None else f" ({format_bytes(plan.peak_bytes)} at the peak)"
    console.print(
        f"{options.option}: {plan.num_devices} devices, {format_seconds(plan.time_s)} a step, "
        f"{format_bytes(plan.memory_bytes)} per device{peak}; {plan_summary(description)}"
    )
    for origin in provenance(plan.settings):
        console.print(f"  {origin}", soft_wrap=True)
    if options.details:
        console.print(plan_table(description))
    if plan.settings.wishes:
        costs = wish_costs(plan, memory_limit=options.memory_limit)
        console.print(wish_table(costs))
    if options.output:
        plan.save(options.output)


def _profile(options: argparse.Namespace, console: Console) -> None:
    rows = api.profile(
        _load_model(options.model),
        device_counts=options.counts,
        memory_limit=options.memory_limit,
        planning=_planning(options),
    )
    console.print(profile_table(rows))


def _compare(options: argparse.Namespace, console: Console) -> None:
    comparison = api.compare(
        _load_model(options.model),
        memory_limit=options.memory_limit,
        num_devices=options.devices,
        planning=_planning(options),
    )
    console.print(comparison_table(comparison))


def _report(options: argparse.Namespace, console: Console) -> None:
    cli_report.report(options, console, _load_model(options.model), _planning(options))


def _tradeoffs(options: argparse.Namespace, console: Console) -> None:
    found = api.find_tradeoffs(
        _load_model(options.model),
        device_counts=options.counts,
        objective=options.objective,
        planning=_planning(options),
    )
    console.print(tradeoffs_table(found))


def _explain(options: argparse.Namespace, console: Console) -> None:
    if options.plan:
        if options.json:
            raise TensorOptError("--json has the records of a space; leave it or --plan out")
        why = explain_plan(_load_plan(options.plan, options.model))
        console.print(str(why), markup=False, highlight=False, soft_wrap=True)
        return
    explanation = api.explain(
        _load_model(options.model), num_devices=options.devices, planning=_planning(options)
    )
    console.print(explanation_table(explanation))
    if explanation.fallbacks:
        console.print(fallback_table(explanation))
    else:
        console.print("All operators and parameters can be split over all devices")
    if options.json:
        _write(options.json, explanation.to_records())


def _check_rule(options: argparse.Namespace, console: Console) -> None:
    operator, args, *rest = _call_user("example", options.example)
    report = check_rule(operator, args, rest[0] if rest else {})
    console.print(
        f"{report.operator}: '{report.rule}' holds in {report.num_configs} configs "
        f"(splits: {', '.join(report.splits) or 'none'}), "
        + ("outputs and gradients" if report.gradients else "outputs; it has no gradients")
    )


def _validate(options: argparse.Namespace, console: Console) -> None:
    cli_job.validate(options, console, _load_model(options.model), _planning(options))


def _memory(options: argparse.Namespace, console: Console) -> None:
    example = _load_model(options.model)
    if options.plan:
        plan = Plan.load(options.plan)
    else:
        plan = api.find_strategy(
            example,
            memory_limit=options.memory_limit,
            num_devices=options.devices,
            planning=_planning(options),
        )
    device = options.device or parse_cluster(plan.settings.cluster, "the plan").device.type
    step = StepSettings(_optimizer(options), device, options.rank)
    profile = api.simulate_memory(example, plan, step=step)
    console.print(memory_table(profile))
    console.print(f"the search counted {format_bytes(plan.memory_bytes)}")
    if profile.unknown:
        console.print(f"workspaces not counted: {', '.join(profile.unknown)}")


def _load_plan(path: Path, model: str | None) -> Plan:
    """A saved plan, with its model if that is given."""
    plan = Plan.load(path)
    if model is None:
        return plan
    captured = model_of(plan, _load_model(model))
    plan.check_model(captured)
    return plan.with_model(captured)


def _show(options: argparse.Namespace, console: Console) -> None:
    plan = _load_plan(options.plan, options.model)
    console.print(facts_table(plan))
    for origin in provenance(plan.settings):
        console.print(f"  {origin}", soft_wrap=True)
    if plan.captured is not None:
        description = describe(plan)
        console.print(plan_table(description))
        console.print(plan_summary(description))


def _diff(options: argparse.Namespace, console: Console) -> None:
    before, after = (_load_plan(path, options.model) for path in (options.before, options.after))
    console.print(diff_table(before.diff(after)))


def _doctor(options: argparse.Namespace, _: Console) -> int:
    return doctor.examine(options.json)


def _clusters(_: argparse.Namespace, console: Console) -> None:
    table = Table()
    for column in ("preset", "devices", "description"):
        table.add_column(column)
    for name in list_presets():
        cluster = load_cluster(name)
        table.add_row(name, str(cluster.num_devices), cluster.description)
    console.print(table)


if __name__ == "__main__":
    sys.exit(main())
