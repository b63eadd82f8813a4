"""Losses, look-ups and normalisations over several ranks against one process."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode

from tensoropt_torch.runtime import ops
from tensoropt_torch.runtime.groups import AxisGroups
from tests import operators
from tests.distributed.harness import run_ranks

HERE = "tests.distributed.runtime.test_ops"
IGNORED = -100
# bfloat16 keeps 8 bits; sums of a few of them are off by some units of these.
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 3e-2}
REDUCTIONS = {ops.MEAN: "mean", ops.SUM: "sum"}


def close(got: torch.Tensor, expected: torch.Tensor, what: object) -> None:
    tolerance = TOLERANCE[got.dtype]
    torch.testing.assert_close(
        got, expected.to(got.dtype), rtol=tolerance, atol=tolerance, msg=lambda m: f"{what}: {m}"
    )


def sum_over_ranks(tensor: torch.Tensor, group: dist.ProcessGroup | None = None) -> torch.Tensor:
    # in double precision, so that only the operator's own rounding counts
    total = tensor.detach().double().clone()
    dist.all_reduce(total, group=group)
    return total.to(tensor.dtype)


def case(
    n: int, classes: int, dtype: torch.dtype, seed: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits and targets; the first quarter of the targets is ignored entirely."""
    generator = torch.Generator().manual_seed(seed)
    logits = (3 * torch.randn(n, classes, generator=generator, dtype=torch.float64)).to(dtype)
    target = torch.randint(0, classes, (n,), generator=generator)
    target[: n // 4] = IGNORED
    target[n // 2] = IGNORED
    return logits, target


def reference(
    logits: torch.Tensor, target: torch.Tensor, reduction: int, smoothing: float = 0.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Loss and gradient of one process, in double precision."""
    whole = logits.double().clone().requires_grad_()
    loss = F.cross_entropy(
        whole, target, reduction=REDUCTIONS[reduction], label_smoothing=smoothing
    )
    loss.backward()
    assert whole.grad is not None
    return loss.detach(), whole.grad


# --- positions split ---------------------------------------------------------


def check_sharded(dtype: torch.dtype) -> None:
    world = AxisGroups((4,))
    world.create([1])
    rank = dist.get_rank()
    logits, target = case(16, 10, dtype)
    for reduction in REDUCTIONS:
        for smoothing in (0.0, 0.2):
            what = (dtype, reduction, smoothing)
            loss, gradient = reference(logits, target, reduction, smoothing)
            part = logits.chunk(4)[rank].clone().requires_grad_()
            got = operators.cross_entropy_sharded(
                part, target.chunk(4)[rank], reduction, IGNORED, smoothing, world.name(1)
            )
            assert got.dtype == dtype
            close(got if reduction == ops.MEAN else sum_over_ranks(got), loss, what)
            got.backward()
            assert part.grad is not None
            close(part.grad, gradient.chunk(4)[rank], what)


@pytest.mark.parametrize("dtype", list(TOLERANCE))
def test_split_positions_give_the_loss_with_unequal_counts(dtype: torch.dtype):
    run_ranks(4, f"{HERE}:check_sharded", dtype)


def check_sharded_images(_: None) -> None:
    """Logits [n, classes, h, w], and log-probabilities."""
    world = AxisGroups((2,))
    world.create([1])
    rank = dist.get_rank()
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(4, 5, 3, 2, generator=generator, dtype=torch.float64)
    target = torch.randint(0, 5, (4, 3, 2), generator=generator)
    target[0] = IGNORED
    loss, gradient = reference(logits, target, ops.MEAN)
    part = logits.chunk(2)[rank].clone().requires_grad_()
    target_part = target.chunk(2)[rank]
    got = operators.cross_entropy_sharded(part, target_part, count_group=world.name(1))
    close(got, loss, "images")
    got.backward()
    assert part.grad is not None
    close(part.grad, gradient.chunk(2)[rank], "images")
    log_probs = part.detach().log_softmax(1).requires_grad_()
    got = operators.nll_loss_sharded(log_probs, target_part, count_group=world.name(1))
    close(got, loss, "nll")
    got.backward()
    assert log_probs.grad is not None
    valid = (target != IGNORED).sum()
    assert log_probs.grad.sum().item() == pytest.approx(
        -(target_part != IGNORED).sum().item() / valid.item()
    )


def check_sharded_weights(_: None) -> None:
    """A mean divides by the weights of all ranks' targets."""
    world = AxisGroups((2,))
    world.create([1])
    rank = dist.get_rank()
    logits, target = case(12, 5, torch.float64, seed=3)
    weight = torch.linspace(0.1, 2, 5, dtype=torch.float64)
    whole = logits.clone().requires_grad_()
    expected = F.cross_entropy(whole, target, weight, label_smoothing=0.1)
    expected.backward()
    assert whole.grad is not None
    part, target_part = logits.chunk(2)[rank].clone().requires_grad_(), target.chunk(2)[rank]
    got = operators.cross_entropy_sharded(
        part, target_part, ops.MEAN, IGNORED, 0.1, world.name(1), weight=weight
    )
    close(got, expected.detach(), "weights")
    got.backward()
    assert part.grad is not None
    close(part.grad, whole.grad.chunk(2)[rank], "weights")
    log_probs = logits.log_softmax(1)
    got = operators.nll_loss_sharded(
        log_probs.chunk(2)[rank], target_part, count_group=world.name(1), weight=weight
    )
    close(got, F.nll_loss(log_probs, target, weight), "weights of nll")


def test_positions_of_weighted_classes():
    run_ranks(2, f"{HERE}:check_sharded_weights")


def test_positions_with_more_dims():
    run_ranks(2, f"{HERE}:check_sharded_images", None)


def check_nothing_valid(_: None) -> tuple[float, float]:
    world = AxisGroups((2,))
    world.create([1])
    logits = torch.randn(4, 3)
    nothing = torch.full((4,), IGNORED)
    some = nothing if dist.get_rank() == 0 else torch.tensor([0, 1, 2, IGNORED])
    name = world.name(1)
    here = operators.cross_entropy_sharded(logits, some, count_group=name)
    nowhere = operators.cross_entropy_sharded(logits, nothing, count_group=name)
    return here.item(), nowhere.item()


def test_a_rank_without_valid_targets_adds_nothing():
    (idle, first), (busy, second) = run_ranks(2, f"{HERE}:check_nothing_valid")
    assert idle == busy > 0.0
    assert first != first  # as one process: 0 / 0
    assert second != second


def test_without_a_group_it_is_the_loss_of_one_process():
    logits, target = case(8, 6, torch.float64)
    loss, _ = reference(logits, target, ops.MEAN)
    close(operators.cross_entropy_sharded(logits, target), loss, "no group")


# --- classes split -----------------------------------------------------------


def check_vocab(payload: tuple[torch.dtype, int, float]) -> ops.CollectiveCounts:
    """Axis 0 splits positions, axis 1 classes."""
    dtype, reduction, smoothing = payload
    groups = AxisGroups((2, 2))
    groups.create([0b01, 0b10])
    row, column = divmod(dist.get_rank(), 2)
    logits, target = case(16, 10, dtype)
    loss, gradient = reference(logits, target, reduction, smoothing)
    part = logits.chunk(2)[row].chunk(2, 1)[column].clone().requires_grad_()
    ops.reset_collective_counts()
    got = operators.cross_entropy_vocab(
        part,
        target.chunk(2)[row],
        reduction,
        IGNORED,
        10,
        5 * column,
        groups.name(0b10),
        groups.name(0b01),
        smoothing,
    )
    assert got.dtype == dtype
    same = [torch.empty_like(got.detach()) for _ in range(2)]
    dist.all_gather(same, got.detach(), group=groups.group(0b10))
    assert torch.equal(same[0], same[1])  # replicated over the classes
    over_positions = groups.group(0b01)
    close(sum_over_ranks(got, over_positions) if reduction == ops.SUM else got, loss, payload)
    got.backward()
    assert part.grad is not None
    close(part.grad, gradient.chunk(2)[row].chunk(2, 1)[column], payload)
    return ops.collective_counts()


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("reduction", list(REDUCTIONS))
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_split_classes_give_the_loss(dtype: torch.dtype, reduction: int, smoothing: float):
    counts = run_ranks(4, f"{HERE}:check_vocab", (dtype, reduction, smoothing))
    for count in counts:  # maxima, sums, and the count of valid targets
        assert count.collectives == count.all_reduce == (3 if reduction == ops.MEAN else 2)


def check_vocab_images(_: None) -> None:
    """Logits [n, classes, h, w]."""
    groups = AxisGroups((2,))
    groups.create([1])
    rank = dist.get_rank()
    generator = torch.Generator().manual_seed(2)
    logits = torch.randn(4, 6, 3, 2, generator=generator, dtype=torch.float64)
    target = torch.randint(0, 6, (4, 3, 2), generator=generator)
    target[1] = IGNORED
    loss, gradient = reference(logits, target, ops.MEAN, 0.1)
    part = logits.chunk(2, 1)[rank].clone().requires_grad_()
    name = groups.name(1)
    got = operators.cross_entropy_vocab(
        part, target, ops.MEAN, IGNORED, 6, 3 * rank, name, label_smoothing=0.1
    )
    close(got, loss, "images")
    got.backward()
    assert part.grad is not None
    close(part.grad, gradient.chunk(2, 1)[rank], "images")


def test_split_classes_of_images():
    run_ranks(2, f"{HERE}:check_vocab_images")


def check_extreme_logits(_: None) -> None:
    groups = AxisGroups((2,))
    groups.create([1])
    rank = dist.get_rank()
    infinite = float("-inf")
    logits = torch.tensor(
        [[1e4, 0.0, -1e4, 5.0], [infinite, infinite, 1.0, 2.0], [-1e30, 0.0, infinite, 1.0]]
    )
    target = torch.tensor([2, 3, 1])
    loss, gradient = reference(logits, target, ops.SUM)
    part = logits.chunk(2, 1)[rank].clone().requires_grad_()
    got = operators.cross_entropy_vocab(part, target, ops.SUM, IGNORED, 4, 2 * rank, groups.name(1))
    close(got, loss, "extreme")
    got.backward()
    assert part.grad is not None
    close(part.grad, gradient.chunk(2, 1)[rank], "extreme")


def test_large_and_infinite_logits():
    run_ranks(2, f"{HERE}:check_extreme_logits")


def check_ignored_class(_: None) -> None:
    """ignore_index may be the number of a class, as for padding tokens."""
    groups = AxisGroups((2,))
    groups.create([1])
    rank = dist.get_rank()
    logits = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    target = torch.tensor([0, 1, 2, 0, 3, 0])
    whole = logits.clone().requires_grad_()
    loss = F.cross_entropy(whole, target, ignore_index=0)
    loss.backward()
    assert whole.grad is not None
    part = logits.chunk(2, 1)[rank].clone().requires_grad_()
    got = operators.cross_entropy_vocab(part, target, ops.MEAN, 0, 4, 2 * rank, groups.name(1))
    close(got, loss.detach(), "padding")
    got.backward()
    assert part.grad is not None
    close(part.grad, whole.grad.chunk(2, 1)[rank], "padding")


def test_an_ignored_class():
    run_ranks(2, f"{HERE}:check_ignored_class")


def check_saved_bytes(_: None) -> list[int]:
    """Sizes in bytes of what autograd saves, storages counted once."""
    groups = AxisGroups((2,))
    groups.create([1])
    logits = torch.randn(64, 32, requires_grad=True)
    saved: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        operators.cross_entropy_vocab(
            logits, torch.zeros(64, dtype=torch.long), ops.MEAN, -100, 64, 0, groups.name(1)
        )
    return sorted(saved.values())


def test_nothing_the_size_of_the_logits_is_saved_but_the_logits():
    for sizes in run_ranks(2, f"{HERE}:check_saved_bytes"):
        assert sizes[-1] == 64 * 32 * 4
        assert sizes[-2] <= 64 * 8


def test_operands_that_do_not_fit_are_refused():
    logits = torch.zeros(4, 3)
    target = torch.zeros(4, dtype=torch.long)
    with pytest.raises(ValueError, match="logits have to be"):
        operators.cross_entropy_vocab(logits[None], target, ops.MEAN, -100, 6, 0, "g")
    with pytest.raises(ValueError, match="4 classes in all, but this rank has 3 from 2 on"):
        operators.cross_entropy_vocab(logits, target, ops.MEAN, -100, 4, 2, "g")
    with pytest.raises(ValueError, match="reduction"):
        operators.cross_entropy_vocab(logits, target, 0, -100, 6, 0, "g")
    with pytest.raises(ValueError, match="reduction"):
        operators.cross_entropy_sharded(logits, target, 0)
    with pytest.raises(ValueError, match="class indices"):
        operators.cross_entropy_sharded(logits, torch.zeros(4, 3))
    with pytest.raises(ValueError, match=r"weight has to be \[rows, \.\.\.\]"):
        operators.embedding_shard(logits[0, 0], target, 0)


# --- look-ups ----------------------------------------------------------------


def check_embedding(payload: tuple[torch.dtype, Any]) -> None:
    dtype, index_dtype = payload
    rank = dist.get_rank()
    generator = torch.Generator().manual_seed(2)
    table = torch.randn(12, 5, generator=generator).to(dtype)
    index = torch.randint(0, 12, (3, 7), generator=generator).to(index_dtype)
    gradient = torch.randn(3, 7, 5, generator=generator).to(dtype)
    for padding_idx in (None, 4):
        whole = table.clone().requires_grad_()
        expected = F.embedding(index, whole, padding_idx=padding_idx)
        expected.backward(gradient)
        assert whole.grad is not None
        part = table.chunk(4)[rank].clone().requires_grad_()
        padding = -1 if padding_idx is None else padding_idx
        got = operators.embedding_shard(part, index, 3 * rank, padding)
        got.backward(gradient)
        assert part.grad is not None
        assert torch.equal(sum_over_ranks(got), expected)  # one summand is not zero
        close(part.grad, whole.grad.chunk(4)[rank], payload)


@pytest.mark.parametrize(
    ("dtype", "index_dtype"),
    [
        (torch.float64, torch.int64),
        (torch.float32, torch.int32),
        (torch.bfloat16, torch.int64),
    ],
)
def test_sum_over_ranks_is_the_look_up(dtype: torch.dtype, index_dtype: torch.dtype):
    run_ranks(4, f"{HERE}:check_embedding", (dtype, index_dtype))


# --- statistics of a split batch ---------------------------------------------

MOMENTUM, EPS = 0.3, 1e-3


def batch_norm_case(
    dtype: torch.dtype, mean: float, channels: int = 6, batch: int = 8
) -> list[torch.Tensor]:
    """Input [batch, channels, 5, 3] whose samples and channels differ, weight, bias, running
    statistics, and the gradient of the output."""
    generator = torch.Generator().manual_seed(4)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    x = mean + draw(batch, 1, 1, 1) + draw(1, channels, 1, 1) + draw(batch, channels, 5, 3)
    per_channel = [draw(channels) for _ in range(4)]
    per_channel[3].square_()
    tensors = [x, *per_channel, draw(batch, channels, 5, 3)]
    return [tensor.to(dtype) for tensor in tensors]


def batch_norm_of_one(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Output, gradients of input, weight and bias, and new running statistics, in
    double precision."""
    *operands, gradient = (tensor.double().clone() for tensor in tensors)
    x, weight, bias, running_mean, running_var = operands
    trained = [tensor.requires_grad_() for tensor in (x, weight, bias)]
    output = F.batch_norm(x, running_mean, running_var, weight, bias, True, MOMENTUM, EPS)
    found = torch.autograd.grad(output, trained, gradient)
    return [output.detach(), *found, running_mean, running_var]


def check_batch_norm(payload: tuple[torch.dtype, int, int]) -> ops.CollectiveCounts:
    """Axis 0 splits the batch, axis 1 the channels."""
    groups = AxisGroups((2, 2))
    groups.create([0b01, 0b10])
    row, column = divmod(dist.get_rank(), 2)
    dtype, batch, channels = payload
    tensors = batch_norm_case(dtype, 0.0, channels, batch)
    expected = batch_norm_of_one(tensors)
    begin = column * -(-channels // 2)

    def part(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dim() == 1:
            return tensor.chunk(2)[column].clone()
        return tensor.chunk(2)[row].chunk(2, 1)[column].clone()

    x, weight, bias = (part(tensor).requires_grad_() for tensor in tensors[:3])
    running = [
        tensor.float().clone() if tensor.dtype == torch.bfloat16 else tensor.clone()
        for tensor in tensors[3:5]
    ]
    versions = [tensor._version for tensor in running]
    ops.reset_collective_counts()
    samples = [len(rows) for rows in tensors[0].chunk(2)] if batch % 2 else []
    names = (groups.name(0b01), groups.name(0b10))
    output = operators.batch_norm_sharded(
        x, weight, bias, *running, MOMENTUM, EPS, begin, samples, *names
    )
    assert output.dtype == x.dtype
    output.backward(part(tensors[5]))
    counts = ops.collective_counts()
    assert x.grad is not None
    assert weight.grad is not None
    assert bias.grad is not None
    close(output.detach(), part(expected[0]), "output")
    close(x.grad, part(expected[1]), "gradient of the input")
    for gradient, whole in ((weight.grad, expected[2]), (bias.grad, expected[3])):
        total = sum_over_ranks(gradient.double(), groups.group(0b01)).to(x.dtype)
        scale = whole.abs().max()
        close(total / scale.to(x.dtype), part(whole) / scale, "gradient of a parameter")
    for tensor, whole in zip(running, expected[4:], strict=True):
        close(tensor, whole, "running statistics")
    # As ATen's: autograd may have saved them elsewhere.
    assert versions == [tensor._version for tensor in running]
    return counts


@pytest.mark.parametrize("dtype", list(TOLERANCE))
def test_statistics_are_those_of_the_whole_batch(dtype: torch.dtype):
    for counts in run_ranks(4, f"{HERE}:check_batch_norm", (dtype, 8, 6)):
        assert (counts.all_gather, counts.all_reduce, counts.collectives) == (2, 1, 3)


def test_parts_of_the_channels_may_differ():
    for counts in run_ranks(4, f"{HERE}:check_batch_norm", (torch.float64, 8, 7)):
        assert (counts.all_gather, counts.all_reduce, counts.collectives) == (1, 2, 3)


def test_shares_of_the_batch_may_differ():
    run_ranks(4, f"{HERE}:check_batch_norm", (torch.float64, 5, 6))


def test_statistics_of_a_large_mean_keep_their_digits():
    """Sums of squares would lose all of them in single precision."""
    run_ranks(4, f"{HERE}:check_large_mean")


def check_large_mean(_: None) -> None:
    group = AxisGroups((4,))
    group.create([1])
    x = batch_norm_case(torch.float32, 1e5)[0]
    expected = F.batch_norm(x.double(), None, None, training=True)
    got = operators.batch_norm_sharded(
        x.chunk(4)[dist.get_rank()], None, None, None, None, batch_group=group.name(1)
    )
    # Numbers near 1e5 are 0.008 apart.
    torch.testing.assert_close(
        got.double(), expected.chunk(4)[dist.get_rank()], rtol=1e-2, atol=1e-2
    )


def test_batch_norm_without_groups_is_that_of_one_process():
    x, weight, bias, running_mean, running_var, _ = batch_norm_case(torch.float64, 0.0)
    expected = batch_norm_of_one([x, weight, bias, running_mean, running_var, x])
    got = operators.batch_norm_sharded(x, weight, bias, running_mean, running_var, MOMENTUM, EPS)
    close(got, expected[0], "output")
    close(running_var, expected[5], "running variance")


# --- without data ------------------------------------------------------------


def test_fake_tensors_need_no_group():
    with FakeTensorMode():
        logits = torch.empty(4, 3, dtype=torch.bfloat16, requires_grad=True)
        target = torch.empty(4, dtype=torch.long)
        weight = torch.empty(6, 2, requires_grad=True)
        for loss in (
            operators.cross_entropy_vocab(logits, target, ops.MEAN, -100, 6, 0, "no", "group", 0.1),
            operators.cross_entropy_sharded(logits, target, count_group="none"),
        ):
            assert (loss.shape, loss.dtype) == ((), torch.bfloat16)
            (gradient,) = torch.autograd.grad(loss, logits)
            assert (gradient.shape, gradient.dtype) == ((4, 3), torch.bfloat16)
        rows = operators.embedding_shard(weight, target, 0)
        assert rows.shape == (4, 2)
        rows.sum().backward()
        assert weight.grad is not None
        assert weight.grad.shape == (6, 2)
        images = torch.empty(4, 3, 5, requires_grad=True)
        nothing = (None, None, None, None)
        output = operators.batch_norm_sharded(images, *nothing, 0.1, 1e-5, 0, [], "no", "group")
        assert output.shape == images.shape


def check_forward_sums(seed: int) -> None:
    """Losses of ranks, and buffers of which every second rank changes other entries."""
    rank, world = dist.get_rank(), dist.get_world_size()
    groups = AxisGroups((world,))
    groups.create([1])
    shared = torch.Generator().manual_seed(seed)
    values = torch.randn(world, 2, generator=shared, dtype=torch.float64)
    wholes = torch.randn(world, 7, generator=shared)
    halves = torch.randn(world, 6, generator=shared).bfloat16()

    single = values[rank, 0].float().requires_grad_()
    double = values[rank, 1].clone().requires_grad_()
    whole, half = wholes[rank].clone(), halves[rank].clone()
    arguments = ([whole, half], [0, 3 * (rank % 2)], [7, 3], [world, world // 2], groups.name(1))
    sums = torch.ops.tensoropt.forward_sums([single, double], *arguments)
    wholes_of = [
        ops.OPS.sum_of(s, share, groups.name(1))
        for s, share in zip(sums, (single, double), strict=True)
    ]
    (3 * wholes_of[0]).backward()

    close(sums[0].detach(), values[:, 0].sum(), f"seed {seed}: float32")
    close(sums[1].detach(), values[:, 1].sum(), f"seed {seed}: float64")
    assert single.grad is not None and float(single.grad) == 3.0
    assert double.grad is None  # nothing came to its sum
    wholes_of[1].mul_(2).backward()
    assert double.grad is not None and float(double.grad) == 2.0
    close(whole, wholes.mean(0), f"seed {seed}: whole buffer")
    parts = [halves[start::2, 3 * start : 3 * start + 3].float().mean(0) for start in (0, 1)]
    close(half, torch.cat(parts), f"seed {seed}: buffer in parts")


@pytest.mark.parametrize("seed", range(3))
def test_sums_where_forward_ends(seed: int) -> None:
    run_ranks(4, f"{HERE}:check_forward_sums", seed)
