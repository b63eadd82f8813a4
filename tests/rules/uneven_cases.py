"""Operators that split a size which does not divide: prime ones."""

from collections.abc import Iterator

from tests.rules.case import Case, integers, real, weights

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


def uneven_cases() -> Iterator[Case]:
    yield from linear_cases()
    yield from embedding_cases()
    yield from loss_cases()
    yield from attention_cases()
    yield from convolution_cases()
