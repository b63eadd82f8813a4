"""Models in stages, trained beside the same models in one process."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from tensoropt_torch import (
    Example,
    StagedPlan,
    TensorOptError,
    WeightSource,
    clip_grad_norm_,
    find_stages,
    find_strategy,
    full_state_dict,
    parallelize,
    save,
    whole_model,
)
from tensoropt_torch.runtime.agreement import from_first_rank, gather
from tests.distributed.models import Case
from tests.stages.models import make

Optimizer = Callable[[Any], torch.optim.Optimizer]
OPTIMIZERS: dict[str, Optimizer] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, 0.01),
}
STEPS = 3


@dataclass(frozen=True)
class Pipeline:
    """What is trained, and how."""

    model: str
    options: dict[str, Any]
    optimizer: str = "sgd"
    rows: int = 8
    dtype: torch.dtype = torch.float64
    clip: float | None = None
    seed: int | None = None
    tolerance: float | None = None
    keywords: dict[str, Any] = field(default_factory=dict)


def whole(tensor: Any) -> torch.Tensor:
    """A tensor of a stage, whole."""
    found = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    result: torch.Tensor = found.detach().clone()
    return result


def trained(pipeline: Pipeline, module: nn.Module, case: Case) -> dict[str, torch.Tensor]:
    """Losses, gradients of the last step, parameters and buffers, by name."""
    inputs = (*case.args, *case.targets)
    is_parallel = module is not case.model
    optimizer = OPTIMIZERS[pipeline.optimizer](module.parameters())
    found: dict[str, torch.Tensor] = {}
    for step in range(STEPS):
        optimizer.zero_grad()
        if is_parallel or case.loss_fn is None:
            loss = module(*inputs)
        else:
            loss = case.loss_fn(module(*case.args), *case.targets)
        loss.backward()
        if pipeline.clip is not None:
            clip = clip_grad_norm_ if is_parallel else nn.utils.clip_grad_norm_
            found[f"norm {step}"] = clip(list(module.parameters()), pipeline.clip).detach()
        optimizer.step()
        found[f"loss {step}"] = loss.detach().clone()
    for name, parameter in module.named_parameters():
        found[f"parameter {name}"] = whole(parameter)
        if parameter.grad is not None:
            found[f"gradient {name}"] = whole(parameter.grad)
    for name, buffer in module.named_buffers():
        found[f"buffer {name}"] = whole(buffer)
    return found


def compare(pipeline: Pipeline) -> list[str]:
    """What differs between stages and one process, on any rank."""
    case = make(pipeline.model, pipeline.dtype, pipeline.rows)
    one = copy.deepcopy(case)
    options = {**pipeline.options, **pipeline.keywords}
    plan = find_stages(case.model, case.args, measure=False, **case.keywords, **options)
    parallel = parallelize(case.model, plan, case.args, **case.keywords)
    got = trained(pipeline, parallel, Case(case.model, case.args, case.loss_fn, case.targets))
    expected = trained(pipeline, one.model, one)
    tolerance = pipeline.tolerance or (1e-8 if pipeline.dtype == torch.float64 else 2e-4)
    return [f"{pipeline}: {text}" for text in differences(gather(got), expected, tolerance)]


def differences(
    by_rank: Sequence[dict[str, torch.Tensor]],
    expected: dict[str, torch.Tensor],
    tolerance: float,
) -> Iterator[str]:
    """Of what ranks have together from what one process has."""
    found: dict[str, torch.Tensor] = {}
    for rank, tensors in enumerate(by_rank):
        for name, tensor in tensors.items():
            if name in found and not torch.equal(found[name], tensor):
                yield f"{name} is another on rank {rank}"
            found[name] = tensor
    if found.keys() != expected.keys():
        yield f"only one has {sorted(found.keys() ^ expected.keys())}"
    for name in sorted(found.keys() & expected.keys()):
        a, b = found[name].double(), expected[name].double()
        scale = max(float(b.abs().max()), 1e-6) if b.numel() else 1.0
        error = float((a - b).abs().max()) if b.numel() else 0.0
        if not error <= tolerance * scale:
            yield f"{name} is off by {error} of {scale}"


def compare_all(pipelines: Sequence[Pipeline]) -> list[str]:
    """Of several."""
    return [text for pipeline in pipelines for text in compare(pipeline)]


def dropped(options: Sequence[dict[str, Any]]) -> list[list[float]]:
    """Losses of a model with dropout, by how it is cut; without cuts on one device."""
    found = []
    for one in options:
        case = make("drops")
        torch.manual_seed(7)
        if one.get("stages") is None:
            plan: Any = find_strategy(
                Example(case.model, case.args), num_devices=1, max_micro_batches=1, measure=False
            )
        else:
            plan = find_stages(case.model, case.args, measure=False, **one)
        parallel = parallelize(case.model, plan, case.args)
        optimizer = torch.optim.SGD(parallel.parameters(), 0.1)
        losses = []
        for _ in range(STEPS):
            optimizer.zero_grad()
            loss = parallel(*case.args)
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
        found.append(losses)
    return found


def states(_: Any = None) -> list[str]:
    """What is wrong with states that are saved and loaded, in any number of stages."""
    texts = []
    kept: dict[str, torch.Tensor] = {}
    for stages in (["down.1", "up.1"], ["up.0", "up.2"], ["down.2", "up.0"]):
        case = make("skips")
        plan = find_stages(
            case.model, case.args, measure=False, stages=stages, micro_batches=2, num_devices=3
        )
        parallel = parallelize(case.model, plan, case.args)
        if kept:
            parallel.load_state_dict(kept)
            again = _shared(full_state_dict(parallel))
            different = [n for n in kept if not torch.equal(kept[n], again[n])]
            texts += [f"{name} differs when it was loaded" for name in different]
        optimizer = torch.optim.AdamW(parallel.parameters(), 0.01)
        parallel(*case.args).backward()
        optimizer.step()
        kept = _shared(full_state_dict(parallel))
        expected = {n: tuple(v.shape) for n, v in case.model.state_dict().items()}
        if {n: tuple(v.shape) for n, v in kept.items()} != expected:
            texts.append(f"the state has {sorted(kept)}")
    return texts


def on_meta(_: Any = None) -> list[str]:
    """What differs where the model is on the meta device from one with the values of a file."""
    case = make("skips")
    expected = {name: value.clone() for name, value in case.model.state_dict().items()}
    parallel_on = []
    for model in (case.model, copy.deepcopy(case.model).to("meta")):
        plan = find_stages(model, case.args, measure=False, stages=2, micro_batches=2)
        weights = WeightSource(checkpoint=expected)
        parallel_on.append(parallelize(model, plan, case.args, weights=weights))
    losses = [float(parallel(*case.args).detach()) for parallel in parallel_on]
    texts = [] if losses[0] == losses[1] else [f"losses are {losses}"]
    kept = _shared(full_state_dict(parallel_on[1]))
    own = sum(parameter.numel() for parameter in parallel_on[1].parameters())
    if not own < sum(tensor.numel() for tensor in expected.values()):
        texts.append("a rank has all parameters")
    return texts + [name for name in expected if not torch.equal(kept[name], expected[name])]


def shared_states(cuts: Sequence[str]) -> list[str]:
    """What differs from the model in the state of one whose stages share tensors."""
    case = make("shares")
    expected = {name: value.clone() for name, value in case.model.state_dict().items()}
    plan = find_stages(case.model, case.args, measure=False, stages=[*cuts], micro_batches=2)
    parallel = parallelize(case.model, plan, case.args)
    texts = []
    for when in ("at first", "again"):
        kept = _shared(full_state_dict(parallel))
        texts += [f"{n} {when}" for n in expected if not torch.equal(kept[n], expected[n])]
    return texts


def _shared(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return from_first_rank(lambda: state)


def refused(_: Any = None) -> dict[str, str]:
    """What a module in stages does not do, with the words that say so."""
    case = make("skips")
    plan = find_stages(case.model, case.args, measure=False, stages=2, micro_batches=2)
    parallel = parallelize(case.model, plan, case.args)
    x, y = case.args

    def of(action: Callable[[], Any]) -> str:
        try:
            action()
        except TensorOptError as error:
            return str(error)
        return "nothing was said"

    def state_of_optimizer() -> dict[str, Any]:
        optimizer = torch.optim.AdamW(parallel.parameters())
        parallel(x, y).backward()
        optimizer.step()
        return {"optimizer": optimizer.state_dict()}

    def step_of(optimizer: torch.optim.Optimizer) -> None:
        optimizer.step(lambda: 0.0)  # type: ignore[arg-type]

    found = {
        "other calls": of(lambda: parallel(x[: 4 + dist.get_rank()], y[: 4 + dist.get_rank()])),
        "compile": of(
            lambda: parallelize(make("skips").model, plan, case.args, compile="reduce-overhead")
        ),
        "one process": of(
            lambda: parallelize(make("skips").model, plan, case.args, one_process_random=True)
        ),
        "pin": of(
            lambda: find_stages(
                case.model, case.args, measure=False, stages=2, pin={"head": "whole"}
            )
        ),
        "schedule": of(
            lambda: find_stages(case.model, case.args, measure=False, stages=2, chunks=2)
        ),
        "devices": of(lambda: find_stages(case.model, case.args, measure=False, stages=3)),
        "other options": of(
            lambda: find_stages(case.model, case.args, measure=dist.get_rank() == 0, stages=2)
        ),
        "save": of(lambda: save(state_of_optimizer(), "nowhere.pt")),
        "whole_model": of(lambda: whole_model(parallel)),
        "other inputs": of(lambda: parallel(x + dist.get_rank(), y)),
    }
    loss = parallel(x, y)
    loss.backward()
    found["lbfgs"] = of(lambda: step_of(torch.optim.LBFGS(parallel.parameters())))
    float16 = torch.autocast("cpu", torch.float16)
    found["float16"] = of(lambda: float16(parallel)(x, y))
    first = next(iter(parallel.parameters())).requires_grad_(False)
    tied = make("gpt_tied")
    plan_of_tied = find_stages(tied.model, tied.args, measure=False, stages=2, micro_batches=2)
    other_parallel = parallelize(tied.model, plan_of_tied, tied.args)
    if dist.get_rank() == 0:
        first = next(p for n, p in other_parallel.named_parameters() if "emb" in n or "wte" in n)
        first.requires_grad_(False)
    found["frozen"] = of(lambda: other_parallel(*tied.args))
    other = make("skips")
    loaded = StagedPlan.from_json(plan.to_json())
    found["loaded"] = of(lambda: parallelize(other.model, loaded))
    fixed = parallelize(other.model, loaded, other.args, shapes="fixed")
    fixed(x, y).backward()
    found["fixed"] = of(lambda: fixed(x[:4], y[:4]))
    other = make("skips")
    few = parallelize(other.model, plan, other.args, max_variants=1)
    found["few"] = of(lambda: few(x[:4], y[:4]))
    return found
