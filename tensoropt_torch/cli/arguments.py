"""Arguments that several commands have, and what they mean."""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from tensoropt_torch.cli.flags import add_flags, flags_of
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.model_configs import SIZES, BatchSize, example_of_config, parse_batch
from tensoropt_torch.plan import InputMode, Plan, StagedPlan, load_any
from tensoropt_torch.planner.memory_limits import Predictor
from tensoropt_torch.planner.optimizer_model import OptimizerModel
from tensoropt_torch.planner.search_settings import SearchSettings
from tensoropt_torch.tasks import AutocastDType, Example, PlanningOptions, model_of

DEFAULTS = PlanningOptions()


def add_model(
    parser: argparse.ArgumentParser, *, no_devices: str | None = None, in_job: bool = False
) -> None:
    """A model, and how it is planned for: what ``load_example`` and ``planning_of`` read.
    ``no_devices``: why a command takes no ``--devices``. ``in_job``: whether a job runs it, whose
    machine is the cluster if none is given."""
    add_model_source(parser)
    _add_batch(parser)
    default, words = (None, "; by default the job's") if in_job else ("cpu", "")
    parser.add_argument("--cluster", default=default, help=f"preset or cluster file{words}")
    if no_devices is None:
        parser.add_argument("--devices", type=int, help="by default all of the cluster")
    else:
        parser.add_argument("--devices", type=_refused(no_devices), help=argparse.SUPPRESS)
    add_planning(parser)


def _refused(why: str) -> Callable[[str], None]:
    """The type of an argument that other commands have."""

    def refuse(text: str) -> None:
        raise argparse.ArgumentTypeError(f"{text} is not for this command: {why}")

    return refuse


def add_model_source(parser: argparse.ArgumentParser) -> None:
    """Where a model is from: a function, or a config."""
    parser.add_argument(
        "model",
        nargs="?",
        help="file.py:function; the function returns (module, args), (module, args, kwargs) or "
        "a tensoropt_torch.Example",
    )
    _add_config(parser)


def add_model_of_plan(parser: argparse.ArgumentParser) -> None:
    """The model of a saved plan, which may be left out: what ``load_plan`` reads."""
    parser.add_argument(
        "--model", help="file.py:function of the plan's model: work and collectives are then told"
    )
    _add_config(parser)
    _add_batch(parser)
    _add_autocast(parser)


def _add_batch(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--batch", type=read_batch, help="of a --config: rows x tokens of the global batch, 8x8192"
    )


def _add_autocast(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--autocast",
        choices=get_args(AutocastDType),
        help="plan the step as under a torch.autocast with this dtype",
    )


def _add_config(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config",
        help="instead of a model: a config.json of Hugging Face, its folder, or sizes, such as "
        "hf:llama,hidden_size=4096,num_hidden_layers=32; nothing is fetched",
    )


def add_planning(parser: argparse.ArgumentParser) -> None:
    """How a model is planned for, wherever it runs."""
    parser.add_argument("--optimizer", default=DEFAULTS.optimizer)
    parser.add_argument(
        "--state-dtype", help="of the optimizer's states, e.g. float32; default: the parameter's"
    )
    parser.add_argument(
        "--master-weights", action="store_true", help="copies of parameters in --state-dtype"
    )
    _add_autocast(parser)
    parser.add_argument("--inputs", choices=get_args(InputMode), default=DEFAULTS.inputs)
    add_flags(parser)
    for name, meaning in (("pin", "split so"), ("forbid", "not split so")):
        parser.add_argument(
            f"--{name}",
            action="append",
            default=[],
            metavar="NAME=SPLIT",
            help=f"parameters or operators that are {meaning}, e.g. embed.weight=S0, "
            "'blocks.*.attn=h'; may be repeated (docs/why-this-plan.md, Pins)",
        )
    parser.add_argument("--epsilon", type=float, default=DEFAULTS.search.epsilon)


def add_memory_limit(parser: argparse.ArgumentParser) -> None:
    """A limit in bytes, None without one, and what it is compared with."""
    parser.add_argument("--memory-limit", type=read_bytes, help="per device, e.g. 12GiB")
    parser.add_argument(
        "--memory",
        choices=get_args(Predictor),
        help="what the limit is compared with: simulated peaks (default), or sums of the search, "
        "which is faster",
    )


def read_bytes(text: str) -> float:
    """``12GiB``, ``16e9``, ``800MB``."""
    units = {"GiB": 2**30, "MiB": 2**20, "KiB": 2**10, "GB": 1e9, "MB": 1e6, "KB": 1e3}
    unit = next((unit for unit in units if text.endswith(unit)), "")
    try:
        return float(text.removesuffix(unit)) * units.get(unit, 1)
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"'{text}' is no number of bytes; give one such as 12GiB, 800MB or 16e9"
        ) from error


def read_counts(text: str) -> list[int]:
    """``1,2,4,8``."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"'{text}' are no numbers of devices; give them such as 1,2,4,8"
        ) from error


def read_batch(text: str) -> BatchSize:
    """``8x8192``."""
    try:
        return parse_batch(text)
    except TensorOptError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def load_model(spec: str) -> Example:
    """The module with example inputs that ``file.py:function`` returns."""
    return example_from(call_user("model", spec), spec)


def example_from(found: Any, spec: str) -> Example:
    """What a user's function returned."""
    if isinstance(found, Example):
        return found
    if not isinstance(found, (tuple, list)) or len(found) not in (2, 3):
        raise TensorOptError(
            f"model '{spec}' gives {type(found).__name__}; the function must return "
            "(module, args), (module, args, kwargs) or a tensoropt_torch.Example"
        )
    return Example(*found)


def load_example(options: argparse.Namespace) -> Example:
    """The model of the options of ``add_model``, in the precision that they ask for."""
    check_one_source(options)
    if options.config is None:
        if options.batch is not None:
            raise TensorOptError(
                f"--batch {options.batch} is of a --config: the function of "
                f"'{options.model}' returns its own batch; leave it out"
            )
        example = load_model(options.model)
    elif options.batch is None:
        raise TensorOptError(
            f"--config {options.config} needs --batch: rows x tokens of the global batch, such as "
            "--batch 8x8192"
        )
    else:
        example = example_of_config(options.config, options.batch)
    return replace(example, autocast=options.autocast) if options.autocast else example


def check_one_source(options: argparse.Namespace) -> None:
    """Raises TensorOptError unless there is a model or a config, and not both."""
    if (options.model is None) == (options.config is None):
        got = "both are given" if options.model else "neither is given"
        raise TensorOptError(
            f"give file.py:function or --config, one of them: {got} (tensoropt COMMAND --help)"
        )


def call_user(what: str, spec: str, *arguments: Any) -> Any:
    """What ``file.py:function`` returns."""
    path, _, name = spec.rpartition(":")
    if not Path(path).is_file():
        is_config = what == "model" and (spec.startswith(SIZES) or spec.endswith(".json"))
        way = f"--config {spec} --batch ROWSxTOKENS" if is_config else "file.py:function"
        raise TensorOptError(f"{what} '{spec}': there is no file '{path}'; give {way}")
    module_spec = importlib.util.spec_from_file_location("tensoropt_user_model", path)
    assert module_spec is not None and module_spec.loader is not None
    module = importlib.util.module_from_spec(module_spec)
    sys.modules[module_spec.name] = module
    sys.path.insert(0, str(Path(path).resolve().parent))
    module_spec.loader.exec_module(module)
    if not hasattr(module, name):
        raise TensorOptError(f"{what} '{spec}': '{path}' has no function '{name}'")
    return getattr(module, name)(*arguments)


def load_plan(path: Path, options: argparse.Namespace) -> Plan | StagedPlan:
    """A saved plan of either kind, with its model if that is given."""
    plan = load_any(path)
    if options.model is None and options.config is None:
        return plan
    captured = model_of(plan, load_example(options))
    plan.check_model(captured)
    return plan.with_model(captured)


def check_beside_plan(options: argparse.Namespace, *allowed: str) -> None:
    """Raises TensorOptError if an argument of ``add_model`` or ``add_memory_limit`` is given that
    a saved plan has of its own: another one than those of its model and those ``allowed``."""
    parser = argparse.ArgumentParser()
    add_model(parser)
    add_memory_limit(parser)
    own = {"model", "config", "batch", "autocast", *allowed}
    for name, default in vars(parser.parse_args([])).items():
        if name not in own and getattr(options, name, default) != default:
            raise TensorOptError(
                f"--{name.replace('_', '-')} is not for a saved plan, which has that of its own; "
                "leave it or --plan out"
            )


def write_json(path: Path, record: Any) -> None:
    """Raises TensorOptError if the file cannot be written."""
    write_text(path, json.dumps(record, indent=1))


def write_text(path: Path, text: str) -> None:
    """Raises TensorOptError if the file cannot be written."""
    try:
        path.write_text(text)
    except OSError as error:
        raise TensorOptError(f"'{path}' cannot be written: {error}") from error


def optimizer_of(options: argparse.Namespace) -> OptimizerModel:
    """What the options of ``add_model`` say of it."""
    return OptimizerModel.of(
        OptimizerModel(options.optimizer, options.state_dtype, options.master_weights)
    )


def _constraints(option: str, given: Sequence[str]) -> dict[str, str]:
    """``NAME=SPLIT`` of ``--pin`` or ``--forbid``, by name."""
    found: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or name in found:
            what = "is given twice" if equals else "has no '='"
            raise TensorOptError(f"--{option} {text} {what}; give NAME=SPLIT, once for each name")
        found[name] = value
    return found


def planning_of(options: argparse.Namespace) -> PlanningOptions:
    """What the options of ``add_model`` say."""
    return PlanningOptions(
        cluster=options.cluster,
        optimizer=optimizer_of(options),
        inputs=options.inputs,
        **flags_of(options),
        pin=_constraints("pin", options.pin),
        forbid=_constraints("forbid", options.forbid),
        memory=getattr(options, "memory", None),  # of add_memory_limit
        search=SearchSettings(epsilon=options.epsilon),
    )
