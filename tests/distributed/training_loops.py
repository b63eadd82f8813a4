"""Training loops as users write them, for a module on several ranks as for one process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.optim import SGD, Adam, AdamW, Optimizer, lr_scheduler

from tests.distributed.accumulation_loops import Run

Loop = Callable[[Run], None]


def batches(run: Run, optimizer: Optimizer, count: int = 2) -> Iterator[None]:
    """Gradients of some batches; a step of the optimizer after each."""
    for _ in range(count):
        run.loss().backward()
        yield
        optimizer.step()
        optimizer.zero_grad()


def clipped(run: Run) -> None:
    for _ in batches(run, run.optimizer, 3):
        norm = nn.utils.clip_grad_norm_(run.module.parameters(), 0.1)
        run.figures.append(norm)


def clipped_by_other_norms(run: Run) -> None:
    for kind, foreach in ((1.0, True), (float("inf"), False)):
        for _ in batches(run, run.optimizer, 1):
            parameters = run.module.parameters()
            norm = nn.utils.clip_grad_norm_(parameters, 0.1, norm_type=kind, foreach=foreach)
            run.figures.append(norm)
    for _ in batches(run, run.optimizer):
        nn.utils.clip_grad_value_(run.module.parameters(), 1e-3)


def clipped_and_accumulated(run: Run) -> None:
    for _ in range(2):
        run.kept_loss().backward()
        for _ in batches(run, run.optimizer, 1):
            norm = nn.utils.clip_grad_norm_(run.module.parameters(), 0.1)
            run.figures.append(norm)


def groups_by_name(run: Run) -> None:
    named = dict(run.module.named_parameters())
    decayed = [p for name, p in named.items() if p.ndim > 1 and "embed" not in name]
    others = [p for p in named.values() if all(p is not q for q in decayed)]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "lr": 1e-3}]
    for _ in batches(run, AdamW(groups, lr=1e-2, weight_decay=0.0, eps=1e-4), 3):
        pass


def schedulers(run: Run) -> None:
    optimizer = AdamW(run.module.parameters(), lr=1e-2, eps=1e-4)
    warmup = lr_scheduler.LinearLR(optimizer, 0.1, total_iters=2)
    cosine = lr_scheduler.CosineAnnealingLR(optimizer, 4)
    schedule = lr_scheduler.SequentialLR(optimizer, [warmup, cosine], [2])
    plateau = lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=1.0)
    for _ in range(4):
        loss = run.loss()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        plateau.step(loss.detach())
        run.figures.append(torch.tensor(optimizer.param_groups[0]["lr"]))


def with_optimizer(run: Run, make: Callable[..., Optimizer]) -> None:
    for _ in batches(run, make(run.module.parameters(), lr=1e-3)):
        pass


def gradients_of_zeros(run: Run) -> None:
    for set_to_none in (False, True, False):
        run.loss().backward()
        run.optimizer.step()
        run.module.zero_grad(set_to_none=set_to_none)
    run.loss().backward()


def steps_in_backward(run: Run) -> None:
    """An optimizer of each parameter, which steps where the gradient is ready."""
    trained = [p for p in run.module.parameters() if p.requires_grad]
    optimizers = {p: SGD([p], lr=0.05) for p in trained}

    def step(parameter: torch.Tensor) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    handles = [p.register_post_accumulate_grad_hook(step) for p in optimizers]
    for _ in range(2):
        run.loss().backward()
    for handle in handles:
        handle.remove()


def frozen_and_thawed(run: Run) -> None:
    parameters = [p for p in run.module.parameters() if p.requires_grad][1::2]
    for frozen in (True, False):
        for parameter in parameters:
            parameter.requires_grad_(not frozen)
        for _ in batches(run, run.optimizer):
            pass
        run.loss().backward()


def optimizer_states(run: Run) -> None:
    """Saved and loaded in the middle."""
    first, second = (AdamW(run.module.parameters(), lr=1e-3, eps=1e-4) for _ in range(2))
    for optimizer in (first, second):
        for _ in batches(run, optimizer):
            pass
        second.load_state_dict(first.state_dict())


def scaled_losses(run: Run, fused: bool, unscales: bool) -> None:
    """Steps with an infinite gradient are left out, also if it is one number of one of them."""
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2)
    optimizer = AdamW(run.module.parameters(), lr=1e-3, eps=1e-4, fused=fused)
    for infinite in (None, 0, None, -1, None, None):
        scaler.scale(run.kept_loss()).backward()
        scaler.scale(run.loss()).backward()
        if infinite is not None:
            trained = [p for p in run.module.parameters() if p.grad is not None]
            make_first_infinite(trained[infinite])
        if unscales:
            scaler.unscale_(optimizer)
            norm = nn.utils.clip_grad_norm_(run.module.parameters(), 0.1)
            run.figures.append(norm.nan_to_num(posinf=-1.0))
        before = [p.detach().clone() for p in run.module.parameters()]
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        same = all(torch.equal(p, q) for p, q in zip(before, run.module.parameters(), strict=True))
        run.figures += [torch.tensor(float(same)), torch.tensor(scaler.get_scale())]


def make_first_infinite(parameter: nn.Parameter) -> None:
    """The first number of its gradient, on the ranks that have it."""
    gradient = parameter.grad
    if isinstance(gradient, DTensor):
        coordinate = gradient.device_mesh.get_coordinate()
        assert coordinate is not None
        splits = zip(coordinate, gradient.placements, strict=True)
        if any(place and placement.is_shard() for place, placement in splits):
            return
        gradient = gradient.to_local()
    assert gradient is not None
    gradient.view(-1)[0] = float("inf")


OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {
    f"{kind.__name__} {options}": partial(kind, **options)
    for kind, options in [
        (SGD, {"momentum": 0.9, "nesterov": True, "foreach": True}),
        (SGD, {"weight_decay": 0.1, "foreach": False}),
        (Adam, {"eps": 1e-4, "foreach": True}),
        (Adam, {"eps": 1e-4, "amsgrad": True}),
        (Adam, {"eps": 1e-4, "fused": True}),
        (AdamW, {"eps": 1e-4, "foreach": True}),
        (AdamW, {"eps": 1e-4, "fused": True}),
        (AdamW, {"eps": 1e-4, "capturable": False, "foreach": False}),
    ]
}

LOOPS: dict[str, Loop] = {
    loop.__name__: loop
    for loop in (
        clipped,
        clipped_by_other_norms,
        clipped_and_accumulated,
        groups_by_name,
        schedulers,
        gradients_of_zeros,
        steps_in_backward,
        frozen_and_thawed,
        optimizer_states,
    )
} | {name: partial(with_optimizer, make=make) for name, make in OPTIMIZERS.items()}
LOOPS |= {
    f"scaled_losses {options}": partial(scaled_losses, **options)
    for options in (
        {"fused": False, "unscales": True},
        {"fused": True, "unscales": False},
    )
}
