"""Ways to misuse a parallel module: each is one clear error on all ranks, after which all
ranks go on."""

from __future__ import annotations

import copy
import io
import pickle
import warnings
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor, Replicate
from torch.nn import functional as F

import tensoropt_torch
from tensoropt_torch import ParallelModule
from tests.distributed.harness import run_ranks

HERE = "tests.distributed.calls.test_misuse"


class Net(nn.Module):
    """A regression with a number that changes it."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.drop, self.head = nn.Linear(16, 32), nn.Dropout(0.0), nn.Linear(32, 4)

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        """(b, 16) -> (b, 4)."""
        return self.head(self.drop(self.body(x).relu())) * scale


class Tokens(nn.Module):
    """Takes ids, and a pair of tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(32, 16), nn.Linear(16, 4)

    def forward(self, ids: torch.Tensor, pair: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """(b, t), (b,), (b,) -> a number."""
        gain, bias = pair
        return (self.head(self.table(ids)).mean((1, 2)) * gain + bias).square().mean()


@dataclass
class Setup:
    """A parallel module with what it is called with, and the original."""

    parallel: ParallelModule
    original: nn.Module
    args: tuple[Any, ...]

    @property
    def x(self) -> torch.Tensor:
        found: torch.Tensor = self.args[0]
        return found

    @property
    def is_last(self) -> bool:
        return dist.get_rank() == dist.get_world_size() - 1


def net(**options: Any) -> Setup:
    torch.manual_seed(0)
    model, x, y = Net(), torch.randn(8, 16), torch.randn(8, 4)
    parallel = tensoropt_torch.auto_parallel(
        model, (x,), loss_fn=F.mse_loss, targets=(y,), measure=False, **options
    )
    return Setup(parallel, model, (x, y))


def tokens() -> Setup:
    torch.manual_seed(0)
    model, ids = Tokens(), torch.randint(32, (4, 6))
    args = ids, (torch.rand(4), torch.rand(4))
    return Setup(tensoropt_torch.auto_parallel(model, args, measure=False), model, args)


class Strange:
    """Says nothing of itself."""


def stepped(setup: Setup) -> None:
    optimizer = torch.optim.SGD(setup.original.parameters(), lr=0.1)
    setup.parallel(*setup.args).backward()
    optimizer.step()


def distributed_input(setup: Setup) -> Any:
    mesh = next(setup.parallel.parameters()).device_mesh
    x = DTensor.from_local(setup.x, mesh, [Replicate()] * mesh.ndim)
    return setup.parallel(x, setup.args[1])


def on_last(setup: Setup, context: Any) -> Any:
    with context if setup.is_last else nullcontext():
        return setup.parallel(*setup.args)


def eval_on_one(setup: Setup) -> Any:
    try:
        setup.parallel.train(not setup.is_last)
        return setup.parallel(*setup.args)
    finally:
        setup.parallel.train()


def trained_adam() -> torch.optim.Optimizer:
    model = Net()
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(2, 16)).sum().backward()
    optimizer.step()
    return optimizer


def reversed_adam(setup: Setup) -> None:
    optimizer = torch.optim.Adam(reversed(list(setup.parallel.parameters())))
    tensoropt_torch.load_optimizer(optimizer, trained_adam().state_dict())


def shares() -> Setup:
    """With ``inputs="sharded"``: this rank's rows."""
    setup = net(inputs="sharded")
    world, rank = dist.get_world_size(), dist.get_rank()
    args = tuple(whole.chunk(world)[rank] for whole in setup.args)
    return Setup(setup.parallel, setup.original, args)


def uneven(setup: Setup, rows_of_target: int) -> Any:
    """The last rank has a row less, and other rows of the target."""
    x, y = setup.args
    return setup.parallel(x[: 4 - setup.is_last], y[: rows_of_target - setup.is_last])


def uneven_with_gradient(setup: Setup) -> Any:
    x = setup.x[: 4 - setup.is_last].clone().requires_grad_()
    return setup.parallel(x, setup.args[1][: 4 - setup.is_last])


Action = Callable[[Setup], Any]
# By name: what is done wrong, and what the error says on every rank.
Cases = Mapping[str, tuple[Action, list[str]]]
UNLIKE = ["TensorOptError", "ranks call the module differently", "rank 0 with", "rank 1 with"]
FIT = ["TensorOptError", "cannot be called with these inputs", "give what it takes"]
COPIED = ["TensorOptError", "neither copied nor pickled", "parallelize", "full_state_dict"]
NET: Cases = {
    "another dtype": (
        lambda s: s.parallel(s.x.double(), s.args[1]),
        ["RuntimeError", "same dtype", "Double and Float"],  # PyTorch's own
    ),
    "another device": (
        lambda s: s.parallel(s.x.to("meta"), s.args[1]),
        ["TensorOptError", "args[0]", "on meta", "the module on cpu", "x.to('cpu')"],
    ),
    "another device on one rank": (
        lambda s: s.parallel(s.x.to("meta") if s.is_last else s.x, s.args[1]),
        ["TensorOptError", "rank 1", "args[0]", "on meta"],
    ),
    "another number on one rank": (
        lambda s: s.parallel(s.x, scale=1.0 + s.is_last),
        [*UNLIKE, "scale: 1.0", "scale: 2.0", "alike on all ranks"],
    ),
    "eval on one rank": (eval_on_one, [*UNLIKE, "training mode", "evaluation mode"]),
    "no_grad on one rank": (lambda s: on_last(s, torch.no_grad()), [*UNLIKE, "no gradients"]),
    "autocast on one rank": (
        lambda s: on_last(s, torch.autocast("cpu", torch.bfloat16)),
        [*UNLIKE, "autocast to bfloat16 on cpu"],
    ),
    "different batches": (
        lambda s: s.parallel(s.x[:4] + s.is_last, s.args[1][:4]),
        ["TensorOptError", "'x' is not the same on rank 0 and on rank 1", "inputs='sharded'"],
    ),
    "different shapes": (
        lambda s: s.parallel(s.x[: 6 + s.is_last], s.args[1][: 6 + s.is_last]),
        [*UNLIKE, "[6, 16]", "[7, 16]"],
    ),
    "a wrong width": (
        lambda s: s.parallel(s.x[:, :3], s.args[1]),
        ["TensorOptError", "forward pass of Net raises", "[8, 3] X [16, 32]", "test_misuse.py"],
    ),
    "a missing input": (lambda s: s.parallel(), [*FIT, "Net.forward(x:", "'x'"]),
    "an unknown keyword": (lambda s: s.parallel(*s.args, scael=2.0), [*FIT, "'scael'"]),
    "an unknown keyword on one rank": (
        lambda s: s.parallel(*s.args, **({"scael": 2.0} if s.is_last else {})),
        [*UNLIKE, "scael: 2.0"],
    ),
    "too many inputs on one rank": (
        lambda s: s.parallel(*s.args, *([s.x] * 8 if s.is_last else [])),
        [*UNLIKE, "args_3: float32 [8, 16]"],
    ),
    "an unknown object": (
        lambda s: s.parallel(*s.args, scale=Strange()),
        ["TensorOptError", "'scale' is a Strange", "tensors, numbers"],
    ),
    "an array": (
        lambda s: s.parallel(s.x.numpy(), s.args[1]),
        ["TensorOptError", "args[0] is a ndarray", "give tensors"],
    ),
    "a DTensor": (distributed_input, ["TensorOptError", "args[0] is a DTensor", "to_local()"]),
    "a hook on a submodule": (
        lambda s: s.parallel.body.register_forward_hook(print),
        ["TensorOptError", "hook on a submodule (Linear)", "on the parallel module itself"],
    ),
    "a call of a submodule": (
        lambda s: s.parallel.head(s.x),
        ["TensorOptError", "submodule (Linear)", "was called", "call the parallel module"],
    ),
    "half": (
        lambda s: s.parallel.half(),
        ["TensorOptError", "torch.float32", "torch.float16", "before parallelize"],
    ),
    "another device for the module": (
        lambda s: s.parallel.to("meta"),
        ["TensorOptError", "stays on cpu", "before parallelize"],
    ),
    "a state dict of another model": (
        lambda s: s.parallel.load_state_dict(nn.Linear(2, 2).state_dict()),
        ["RuntimeError", "Missing key(s)", "body.weight", "Unexpected key(s)"],  # PyTorch's own
    ),
    "an optimizer of the original": (
        stepped,
        ["TensorOptError", "before it was parallel", "parallel.parameters()"],
    ),
    "states of other parameters": (
        reversed_adam,
        ["TensorOptError", "'exp_avg'", "(4,)", "(32, 16)", "in the order"],
    ),
    "deepcopy": (lambda s: copy.deepcopy(s.parallel), COPIED),
    "pickle": (lambda s: pickle.dumps(s.parallel), COPIED),
    "torch.save": (lambda s: torch.save(s.parallel, io.BytesIO()), COPIED),
    "a sampler of a model": (
        lambda s: tensoropt_torch.sampler_arguments(s.original),  # type: ignore[arg-type]
        ["TensorOptError", "a parallel module or a plan", "Net"],
    ),
}
TOKENS: Cases = {
    "float ids": (
        lambda s: s.parallel(s.x.float(), s.args[1]),
        ["TensorOptError", "forward pass of Tokens raises", "torch.float32", "test_misuse.py"],
    ),
    "a short tuple": (
        lambda s: s.parallel(s.x, s.args[1][:1]),
        ["TensorOptError", "expected 2, got 1", "gain, bias = pair"],
    ),
    "all inputs in a tuple": (lambda s: s.parallel((s.x, *s.args[1])), [*FIT, "'pair'"]),
    "an id out of range": (lambda s: s.parallel(s.x + 31, s.args[1]), ["IndexError"]),
}
SHARES: Cases = {
    "another length on one rank": (
        lambda s: s.parallel(s.x[:, : 16 - s.is_last], s.args[1]),
        [*UNLIKE, "[4, 16]", "[4, 15]"],
    ),
    "rows that do not fit": (
        lambda s: uneven(s, 3),
        ["TensorOptError", "different shares of a batch", "same dim 0", "replicated"],
    ),
    "rows that do not fit on one rank": (
        lambda s: s.parallel(s.x[: 4 - s.is_last], s.args[1][: 4 - 2 * s.is_last]),
        ["TensorOptError", "rank 1: ", "different shares of a batch", "(3, 16), (2, 4)"],
    ),
    "a gradient of unequal shares": (
        uneven_with_gradient,
        ["TensorOptError", "4, 3 rows", "requires a gradient", "drop_last=True"],
    ),
}
ALL: dict[str, tuple[Callable[[], Setup], Cases]] = {
    "net": (net, NET),
    "tokens": (tokens, TOKENS),
    "shares": (shares, SHARES),
}


def errors_of(name: str) -> dict[str, str]:
    """What each case raises; after each of them the module runs as before."""
    warnings.filterwarnings("ignore", "the ranks have")
    make, cases = ALL[name]
    setup = make()
    expected = setup.parallel(*setup.args).detach()
    found = {}
    for case, (action, _) in cases.items():
        try:
            found[case] = f"no error: {action(setup)}"
        except Exception as error:
            found[case] = f"{type(error).__name__}: {error}"
        torch.testing.assert_close(setup.parallel(*setup.args).detach(), expected, msg=case)
    return found


@pytest.mark.parametrize("name", list(ALL))
def test_misuse_is_one_clear_error_on_all_ranks(name: str) -> None:
    for found in run_ranks(2, f"{HERE}:errors_of", name, 100):
        for case, (_, parts) in ALL[name][1].items():
            for part in parts:
                assert part in found[case], f"{case}: {found[case]}"


def check_unusual(_: None) -> None:
    """What looks like misuse, and is what one process does."""
    setup = tokens()
    close = torch.testing.assert_close
    ids, pair = setup.args
    close(setup.parallel(ids, list(pair)), setup.original(ids, list(pair)))
    empty = net()
    assert empty.parallel(empty.x[:0], empty.args[1][:0]).isnan()
    assert empty.parallel(empty.x[:0]).shape == (0, 4)
    close(empty.parallel(*empty.args), F.mse_loss(empty.original(empty.x), empty.args[1]))
    optimizer = torch.optim.SGD(empty.original.parameters(), lr=0.1)
    empty.original(empty.x).sum().backward()
    optimizer.step()  # the original may be trained for itself


def test_what_is_unusual_is_as_in_one_process() -> None:
    run_ranks(2, f"{HERE}:check_unusual", None, 100)


def check_equal_shares(_: None) -> None:
    setup = shares()
    with pytest.warns(UserWarning, match=r"equal inputs \(x, target\).*DistributedSampler"):
        setup.parallel(torch.ones(4, 16), torch.ones(4, 4))


def test_equal_shares_are_warned_of() -> None:
    run_ranks(2, f"{HERE}:check_equal_shares", None, 60)
