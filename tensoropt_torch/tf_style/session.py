"""Planning a graph, and running it under a plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Unpack, cast, get_args, overload

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from tensoropt_torch import api
from tensoropt_torch.errors import TensorOptError, check_choice
from tensoropt_torch.frontend import capture
from tensoropt_torch.module import ParallelModule
from tensoropt_torch.plan import Plan
from tensoropt_torch.planner.device_counts import ProfileRow
from tensoropt_torch.planner.frontier import Frontier
from tensoropt_torch.planner.searched import without_stages
from tensoropt_torch.runtime.agreement import on_all_ranks
from tensoropt_torch.strategy import Option
from tensoropt_torch.tasks import PlanningKeywords, PlanningOptions, takes_keywords
from tensoropt_torch.tf_style.graph import Graph, current_graph, reset_default_graph
from tensoropt_torch.tf_style.optimizers import TrainOp
from tensoropt_torch.tf_style.tensor import Placeholder, Tensor

Fetch = Tensor | TrainOp
Feeds = Mapping[Placeholder | str, Any]


def init(backend: str | None = None, *, seed: int = 0) -> torch.device:
    """Start a new graph, and join the process group that torchrun describes
    (``tensoropt_torch.init``). Initial values of variables depend on ``seed``."""
    reset_default_graph(seed)
    return api.init(backend)


@takes_keywords(planning=PlanningOptions)
def find_frontier(
    *,
    fetches: Sequence[Tensor] = (),
    num_devices: int | None = None,
    **keywords: Unpack[PlanningKeywords],
) -> Frontier:
    """The whole cost frontier of the training step; arguments as for
    ``tensoropt_torch.find_frontier``."""
    step = _Step(current_graph(), fetches)
    keywords.setdefault("optimizer", step.train_op.optimizer.kind)
    return api.find_frontier(step.module, step.example, num_devices=num_devices, **keywords)


@overload
def find_strategy(
    option: Option = ...,
    *,
    fetches: Sequence[Tensor] = ...,
    memory_limit: float | None = ...,
    num_devices: int | None = ...,
    **keywords: Unpack[PlanningKeywords],
) -> Plan: ...
@overload
def find_strategy(
    option: Literal["profiling"],
    *,
    fetches: Sequence[Tensor] = ...,
    memory_limit: float | None = ...,
    device_counts: Sequence[int],
    **keywords: Unpack[PlanningKeywords],
) -> list[ProfileRow]: ...
@takes_keywords(collective=True, planning=PlanningOptions)
def find_strategy(
    option: str = "mini_time",
    *,
    fetches: Sequence[Tensor] = (),
    memory_limit: float | None = None,
    num_devices: int | None = None,
    device_counts: Sequence[int] = (),
    **keywords: Unpack[PlanningKeywords],
) -> Plan | list[ProfileRow]:
    """Plan the training step of the graph.

    Args:
        option: ``mini_time`` or ``mini_parallelism``: gives a plan; ``profiling``: the
            least step time for each of ``device_counts``.
        fetches: tensors besides the loss that ``run`` shall give.
        others: as for ``tensoropt_torch.find_strategy`` and ``profile``.

    Raises:
        TensorOptError: no loss is minimized, the option is not known, or planning fails.
    """
    step = _Step(current_graph(), fetches)
    keywords.setdefault("optimizer", step.train_op.optimizer.kind)
    check_choice("option", option, (*get_args(Option), "profiling"))
    if (option == "profiling") != bool(device_counts) or (device_counts and num_devices):
        raise TensorOptError(
            f"option '{option}' with device_counts={device_counts} and num_devices={num_devices}; "
            "give device_counts for 'profiling', num_devices for other options"
        )
    if option == "profiling":
        return api.profile(
            step.module,
            step.example,
            device_counts=device_counts,
            memory_limit=memory_limit,
            **keywords,
        )
    plan = api.find_strategy(
        step.module,
        step.example,
        option=cast(Option, option),
        memory_limit=memory_limit,
        num_devices=num_devices,
        **keywords,
    )
    return without_stages(plan, "a graph in this style")


def build_execution_graph(
    engine: str = "torch", *, plan: Plan, fetches: Sequence[Tensor] = ()
) -> ExecutionGraph:
    """What runs the graph under a plan on this rank. Collective.

    Args:
        engine: ``"torch"``.
        plan: of ``find_strategy`` for this graph, or a saved one.
        fetches: as the plan was made with.

    Raises:
        TensorOptError: another engine; or the plan does not fit the graph, the fetches
            or the number of processes.
    """
    if engine != "torch":
        raise TensorOptError(f"engine '{engine}' is not known; the engine is 'torch'")
    return ExecutionGraph(_Step(current_graph(), fetches), plan)


class _Step:
    """The training step of a graph as a module on the meta device."""

    def __init__(self, graph: Graph, fetches: Sequence[Tensor]) -> None:
        if graph.train_op is None:
            raise TensorOptError(
                "the graph minimizes no loss; call e.g. AdamOptimizer().minimize(loss) first"
            )
        self.graph = graph
        self.train_op: TrainOp = graph.train_op
        loss = self.train_op.loss
        self.outputs = [loss, *(fetch for fetch in fetches if fetch is not loss)]
        self.computation = graph.module(self.outputs)
        self.example = [
            torch.empty(p.shape, dtype=p.dtype, device="meta") for p in self.placeholders
        ]

    @property
    def module(self) -> torch.nn.Module:
        return self.computation.module

    @property
    def placeholders(self) -> list[Placeholder]:
        return self.computation.placeholders


class ExecutionGraph:
    """One rank's part of a graph; ``run`` is called alike on all ranks."""

    def __init__(self, step: _Step, plan: Plan) -> None:
        device = api.init()
        self._step = step
        if plan.captured is None:
            captured = on_all_ranks(lambda: capture(step.module, step.example))
            plan = plan.with_model(captured)
        real = step.graph.materialise(step.computation, device)
        self._module = api.parallelize(real, plan, device=device)
        trained = [p for p in self._module.parameters() if p.requires_grad]
        self._optimizer = step.train_op.optimizer.make(trained)
        self._device = device

    @property
    def module(self) -> ParallelModule:
        """The module, for checkpoints. Scopes of variables are separated by dots; weights of
        products and convolutions are stored as layers of ``torch.nn`` store them."""
        return self._module

    @property
    def plan(self) -> Plan:
        """The plan that is run."""
        return self._module.plan

    def value(self, variable: Tensor | str) -> torch.Tensor:
        """The whole value of a variable, by name or as ``get_variable`` gave it. Collective.

        Raises:
            TensorOptError: no such variable takes part in the step.
        """
        name = variable if isinstance(variable, str) else variable.name
        path = name.replace("/", ".")
        found = dict(self._module.named_parameters()).get(path)
        if found is None:
            names = [n.replace(".", "/") for n, _ in self._module.named_parameters()]
            raise TensorOptError(
                f"there is no variable '{name}' in the execution graph; it has {', '.join(names)}"
            )
        whole = found.full_tensor() if isinstance(found, DTensor) else found
        given = self._step.computation.as_given(path, whole.detach())
        return given.clone(memory_format=torch.contiguous_format)

    @overload
    def run(self, fetches: Fetch, feed_dict: Feeds) -> torch.Tensor | None: ...
    @overload
    def run(self, fetches: Sequence[Fetch], feed_dict: Feeds) -> list[torch.Tensor | None]: ...
    def run(self, fetches: Fetch | Sequence[Fetch], feed_dict: Feeds) -> Any:
        """Compute ``fetches``; a training step changes the variables and gives None.

        Tensors are those before the step. Without a training step nothing is trained,
        but dropout and the running statistics of ``batch_norm`` are those of training.

        Args:
            feed_dict: a tensor, array or nested list for each placeholder (or its
                name): the global batch, or the rank's share with ``inputs="sharded"``.

        Raises:
            TensorOptError: a placeholder is not fed or with another shape or kind of
                numbers; what is fed or fetched is not in the graph.
        """
        several = isinstance(fetches, Sequence)
        wanted = list(fetches) if isinstance(fetches, Sequence) else [fetches]
        indices = [self._index(fetch) for fetch in wanted]
        feeds = self._feeds(feed_dict)
        values = self._run(feeds, training=None in indices)
        results = [None if index is None else values[index] for index in indices]
        return results if several else results[0]

    def _run(self, feeds: list[torch.Tensor], training: bool) -> list[torch.Tensor]:
        with torch.set_grad_enabled(training):
            outputs = self._module(*feeds)
        values = [outputs] if isinstance(outputs, torch.Tensor) else list(outputs)
        if training:
            values[0].backward()
            self._optimizer.step()
            self._optimizer.zero_grad()
        return [value.detach() for value in values]

    def _index(self, fetch: Fetch) -> int | None:
        """Which output of the module is fetched; None for the training step."""
        if fetch is self._step.train_op:
            return None
        for index, output in enumerate(self._step.outputs):
            if output is fetch:
                return index
        name = fetch.name if isinstance(fetch, Tensor) else type(fetch).__name__
        raise TensorOptError(
            f"'{name}' is not computed by the execution graph, which gives "
            f"{', '.join(repr(output.name) for output in self._step.outputs)} and the training "
            "step; name it in fetches= of find_strategy and build_execution_graph"
        )

    def _feeds(self, feed_dict: Feeds) -> list[torch.Tensor]:
        """The feeds in the order of the placeholders."""
        known = {p.name: p for p in self._step.graph.placeholders.values()}
        by_name: dict[str, Any] = {}
        for key, value in feed_dict.items():
            name = key if isinstance(key, str) else key.name
            if name not in known or (not isinstance(key, str) and known[name] is not key):
                raise TensorOptError(
                    f"feed_dict has '{name}', which is no placeholder of the graph; these are "
                    f"{', '.join(known)}"
                )
            by_name[name] = value
        missing = [p.name for p in self._step.placeholders if p.name not in by_name]
        if missing:
            raise TensorOptError(
                f"placeholder '{missing[0]}' is not fed; give feed_dict={{{missing[0]}: ...}}"
            )
        return [self._feed(p, by_name[p.name]) for p in self._step.placeholders]

    def _feed(self, placeholder: Placeholder, value: Any) -> torch.Tensor:
        tensor = torch.as_tensor(value)
        expected = list(placeholder.shape)
        if self.plan.settings.is_shared_out(placeholder.name) and expected:
            expected[0] //= dist.get_world_size()
        if list(tensor.shape) != expected:
            raise TensorOptError(
                f"placeholder '{placeholder.name}' is fed with shape {list(tensor.shape)}, it has "
                f"{expected} on each rank; plans are made for fixed shapes"
            )
        if not torch.can_cast(tensor.dtype, placeholder.dtype):
            raise TensorOptError(
                f"placeholder '{placeholder.name}' of {placeholder.dtype} is fed with "
                f"{tensor.dtype}; convert the values first"
            )
        return tensor.to(self._device, placeholder.dtype)
