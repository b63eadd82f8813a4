"""Operators that split a size which does not divide, prime ones: where odd_cases.py has no
such case, or several things come together."""

from collections.abc import Iterator

import torch

from tests.rules.case import Case, Random, integers, real, weights
from tests.rules.loss_cases import sign
from tests.rules.spectral_cases import definite_cases

IGNORE = -100


def linear_cases() -> Iterator[Case]:
    linear = "aten.linear.default"
    yield Case(linear, (real(4, 13), real(7, 13), real(7)), name="uneven, bias")
    yield Case(linear, (real(2, 4, 11), real(13, 11)), name="uneven, 3-D")
    yield Case("aten.mm.default", (real(4, 7), real(7, 11)), name="uneven")
    yield Case("aten.addmm.default", (real(11), real(4, 7), real(7, 11)), name="uneven")
    yield Case("aten.matmul.default", (real(2, 4, 7), real(7, 11)), name="uneven")


def embedding_cases() -> Iterator[Case]:
    embedding = "aten.embedding.default"
    yield Case(embedding, (real(13, 7), integers(13, 4, 6)), name="uneven")
    yield Case(embedding, (real(13, 7), integers(13, 12), 5), name="uneven, padding")
    bag = "aten.embedding_bag.padding_idx"
    args = (real(13, 7), integers(13, 12), integers(1, 1), False, 0, False, None, False, None)
    yield Case(bag, args, name="uneven", used=1)


def loss_cases() -> Iterator[Case]:
    loss = "aten.cross_entropy_loss.default"
    for code, reduction in ((1, "mean"), (2, "sum")):
        args = (real(12, 11), integers(11, 12), None, code, IGNORE, 0.1)
        yield Case(loss, args, name=f"uneven, {reduction}")
    images = (real(4, 5, 2, 6), integers(5, 4, 2, 6), None, 1, 1)
    yield Case(loss, images, name="uneven, 4-D")
    labels, lengths = Random((7, 4), 1, 5, torch.int64), torch.tensor([9, 8, 7, 9, 8, 7, 9])
    args = (real(9, 7, 5), labels, lengths, lengths // 3, 0, False)
    yield Case("tensoropt.ctc_losses.default", args, name="uneven")


def attention_cases() -> Iterator[Case]:
    attention = "aten.scaled_dot_product_attention.default"
    heads = (real(2, 7, 4, 6), real(2, 7, 4, 6), real(2, 7, 4, 6))
    yield Case(attention, heads, name="uneven heads")
    yield Case(attention, (*heads, None, 0.0, True), name="uneven heads, causal")
    mask = (*heads, real(7, 4, 4))
    yield Case(attention, mask, name="uneven heads, mask of heads")


def convolution_cases() -> Iterator[Case]:
    images, filters, bias = real(2, 7, 4, 4), real(11, 7, 3, 3), real(11)
    yield Case("aten.conv2d.default", (images, filters, bias), name="uneven channels")
    yield Case("aten.conv1d.default", (real(2, 5, 4), real(7, 5, 2)), name="uneven channels")
    transposed = (images, real(7, 5, 2, 2), real(5))
    yield Case("aten.conv_transpose2d.input", transposed, name="uneven channels")
    depthwise = (images, real(7, 1, 3, 3), real(7), [1, 1], [1, 1], [1, 1], 7)
    yield Case("aten.conv2d.default", depthwise, name="uneven groups")
    for name in ("max_pool2d", "avg_pool2d", "adaptive_avg_pool2d"):
        yield Case(f"aten.{name}.default", (images, [2, 2]), name="uneven channels")
    running = (real(7), real(7), weights(7), weights(7))
    for training in (True, False):
        name = f"uneven channels, {'training' if training else 'evaluation'}"
        args = (images, *running, training, 0.3, 1e-3, False)
        yield Case("aten.batch_norm.default", args, name=name)


def recurrent_cases() -> Iterator[Case]:
    x, state = real(4, 7, 3), real(1, 7, 2)
    options = (True, 1, 0.0, True, False, False)
    for gates, states, name in ((4, [state, state], "lstm"), (3, state, "gru")):
        rows = 2 * gates
        weights = [real(rows, 3), real(rows, 2), real(rows), real(rows)]
        yield Case(f"aten.{name}.input", (x, states, weights, *options), name="uneven batch")
        apart = [real(gates, 2, *weight.shape[1:]) for weight in weights]
        args = (x, *([state] if name == "gru" else states), *apart, False, True)
        yield Case(f"tensoropt.{name}.default", args, name="uneven batch")


# Of these a dim has several entries for each index of another: they stay together.
def unit_cases() -> Iterator[Case]:
    yield Case("aten.view.default", (real(7, 4, 2), [28, 2]), name="units, merge")
    yield Case("aten.view.default", (real(28, 2), [7, 4, 2]), name="units, split")
    yield Case("aten.reshape.default", (real(7, 4, 2), [7, 8]), name="units, last two")
    yield Case("aten.reshape.default", (real(14, 6), [21, 4]), name="units of both")
    yield Case("aten.flatten.using_ints", (real(7, 4, 2),), name="units, all")
    yield Case("aten.unflatten.int", (real(28, 2), 0, [7, 4]), name="units")
    yield Case("aten.ravel.default", (real(7, 4),), name="units")
    yield Case("aten.repeat_interleave.self_int", (real(7, 4), 3, 0), name="units")


def batch_cases() -> Iterator[Case]:
    x = real(7, 6, 4, 2)
    norm = (real(7, 6, 4), 3, real(6), real(6), 1e-5)
    yield Case("aten.group_norm.default", norm, name="uneven batch")
    yield Case("aten.glu.default", (real(7, 4), -1), name="uneven batch")
    for shuffle, images in (("channel_shuffle", x), ("native_channel_shuffle", weights(7, 6, 4))):
        yield Case(f"aten.{shuffle}.default", (images, 3), name="uneven batch")
    yield Case("aten.pixel_shuffle.default", (real(7, 4, 3, 2), 2), name="uneven batch")
    yield Case("aten.pixel_unshuffle.default", (real(7, 3, 4, 2), 2), name="uneven batch")
    for target in ("split_with_sizes.default", "unsafe_split_with_sizes.default", "split.sizes"):
        yield Case(f"aten.{target}", (real(7, 12), [2, 4, 6], 1), name="uneven batch")
    written = (real(7, 4, 5), 1, integers(4, 7, 3, 5))
    yield Case("aten.scatter.src", (*written, weights(7, 3, 5)), name="uneven batch")
    yield Case("aten.scatter.value", (*written, 1.5), name="uneven batch")
    signs, pair = sign(7, 3), (real(7, 4), real(7, 4))
    for code, name in ((1, "mean"), (2, "sum")):
        name = f"uneven batch, {name}"
        yield Case("aten.soft_margin_loss.default", (real(7, 3), signs, code), name=name)
        yield Case("aten.hinge_embedding_loss.default", (real(7, 3), signs, 0.5, code), name=name)
        args = (real(7), real(7), sign(7), 0.5, code)
        yield Case("aten.margin_ranking_loss.default", args, name=name)
        args = (*pair, sign(7), 0.1, code)
        yield Case("aten.cosine_embedding_loss.default", args, name=name)
    ends = torch.tensor([0, 3, 7, 11, 12])
    grouped = (real(12, 4), real(5, 4, 2), ends)
    yield Case("transformers.grouped_mm_fallback.default", grouped, name="uneven groups")
    half = (Random(shape, -1, 1, torch.bfloat16, True) for shape in ((12, 96), (5, 96, 48)))
    args = (*half, ends.to(torch.int32))
    yield Case("aten._grouped_mm.default", args, name="uneven groups", tolerance=0.2)


def uneven_cases() -> Iterator[Case]:
    yield from linear_cases()
    yield from embedding_cases()
    yield from loss_cases()
    yield from attention_cases()
    yield from convolution_cases()
    yield from recurrent_cases()
    yield from unit_cases()
    yield from batch_cases()
    yield from definite_cases(7)
