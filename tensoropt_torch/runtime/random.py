"""Random operators on shards: equal shards draw equal numbers, different ones
different numbers. Or every rank draws what one process draws, and takes its part."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch._ops import OpOverload

from tensoropt_torch.runtime.agreement import agree_or_raise

Bounds = Sequence[tuple[int, int]]  # where a part begins and how long it is, by dim

# How many numbers they draw depends on the values of their operands.
DRAW_BY_VALUE = frozenset(
    {
        "aten.rrelu.default",
        "aten.poisson.default",
        "aten.binomial.default",
        "aten._standard_gamma.default",
        "aten._sample_dirichlet.default",
    }
)


def draws(op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call of the operator with these arguments draws random numbers. Attention without
    dropout does not, which is without where it is left out."""
    if torch.Tag.nondeterministic_seeded not in op.tags:
        return False
    schema = op._schema.arguments
    given = {a.name: a.default_value for a in schema if a.has_default_value()}
    given |= dict(zip((a.name for a in schema), args, strict=False)) | {**kwargs}
    return bool(given.get("dropout_p", 1.0) != 0.0)


def stream_seed(step_seed: int, stream: tuple[int, ...]) -> int:
    """A seed for one operator and shard in one step, the same on all ranks."""
    text = f"{step_seed}:{stream}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1


def call_seeded(
    target: OpOverload, step_seed: int, stream: tuple[int, ...], *args: Any, **kwargs: Any
) -> Any:
    """Call ``target`` with the default generators seeded for ``stream``; their
    states are restored afterwards."""
    arguments = (*args, *kwargs.values())
    devices = {
        a.device if isinstance(a, torch.Tensor) else a
        for a in arguments
        if isinstance(a, (torch.Tensor, torch.device))
    }
    forked = [device for device in devices if device.type == "cuda"]
    with torch.random.fork_rng(devices=forked):
        torch.manual_seed(stream_seed(step_seed, stream))
        return target(*args, **kwargs)


def seed_tensor(step_seed: int) -> torch.Tensor:
    """The seed of a step for ``seeded_dropout``."""
    return torch.tensor(step_seed)


def seeded_dropout(
    x: torch.Tensor, p: float, train: bool, step_seed: torch.Tensor, stream: Sequence[int]
) -> torch.Tensor:
    """``call_seeded`` of dropout in operators that a compiler can trace; on CPUs bit for bit."""
    if not train or p == 0:
        return x
    if p == 1:
        return x * 0.0
    kept: torch.Tensor = keep_mask(x.detach(), p, step_seed, stream)
    noise = kept.to(x.dtype) / (1 - p)
    return x * noise


@torch.library.custom_op("tensoropt::keep_mask", mutates_args=())
def keep_mask(
    x: torch.Tensor, p: float, step_seed: torch.Tensor, stream: Sequence[int]
) -> torch.Tensor:
    """Which elements of ``x`` dropout keeps, one of them with the probability 1 - p: the same
    ones for the same seed and stream."""
    generator = torch.Generator(x.device)
    generator.manual_seed(stream_seed(int(step_seed), tuple(stream)))
    return torch.empty_like(x).bernoulli_(1 - p, generator=generator).to(torch.bool)


@keep_mask.register_fake
def _(x: torch.Tensor, p: float, step_seed: torch.Tensor, stream: Sequence[int]) -> torch.Tensor:
    return torch.empty_like(x, dtype=torch.bool)


def agree_on_random_state(device: torch.device) -> None:
    """Raise TensorOptError on every rank unless the default generators of all ranks
    will draw the same numbers. Collective."""
    states = [torch.random.get_rng_state()]
    if device.type == "cuda":
        states.append(torch.cuda.get_rng_state(device))
    digest = hashlib.blake2b(b"".join(s.numpy().tobytes() for s in states), digest_size=8)
    agree_or_raise(
        "state of the random generators",
        digest.hexdigest(),
        "with one_process_random=True call torch.manual_seed with one number on all ranks",
    )


def embed_part(
    part: torch.Tensor, shape: Sequence[int], strides: Sequence[int], bounds: Bounds
) -> torch.Tensor:
    """A tensor of this shape and these strides that holds ``part``, and ones elsewhere:
    numbers that are drawn for it lie as they do in one process."""
    whole = torch.empty_strided(shape, strides, dtype=part.dtype, device=part.device)
    whole.fill_(1)
    _narrowed(whole, bounds).copy_(part)
    return whole


def gather_part(
    part: torch.Tensor, shape: Sequence[int], strides: Sequence[int], bounds: Bounds, owns: bool
) -> torch.Tensor:
    """The whole tensor, of which gradients reach this rank's part. One of the ranks that have
    the same part ``owns`` it. Collective."""
    values = torch.zeros(shape, dtype=part.dtype, device=part.device)
    if owns:
        _narrowed(values, bounds).copy_(part.detach())
    dist.all_reduce(values)
    whole = torch.empty_strided(shape, strides, dtype=part.dtype, device=part.device)
    whole.copy_(values)
    _narrowed(whole, bounds).copy_(part)
    return whole


def take_part(outputs: Any, bounds: Sequence[Bounds]) -> Any:
    """The part of each output that is this rank's; a tuple if the operator gives one."""
    if isinstance(outputs, torch.Tensor):
        return _narrowed(outputs, bounds[0])
    return tuple(_narrowed(t, place) for t, place in zip(outputs, bounds, strict=True))


def _narrowed(tensor: torch.Tensor, bounds: Bounds) -> torch.Tensor:
    for dim, (start, length) in enumerate(bounds):
        tensor = tensor.narrow(dim, start, length)
    return tensor
