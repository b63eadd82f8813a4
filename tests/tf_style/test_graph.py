"""The functions compute what their names say, and mistakes are named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import tensoropt_torch.tf_style as to
from tensoropt_torch import TensorOptError
from tensoropt_torch.tf_style.graph import current_graph


@pytest.fixture(autouse=True)
def _new_graph() -> None:
    to.reset_default_graph()


def evaluate(output: to.Tensor, *inputs: torch.Tensor) -> torch.Tensor:
    """The value of a tensor, in one process and without a plan."""
    computation = current_graph().module([output])
    result = current_graph().materialise(computation, torch.device("cpu"))(*inputs)
    assert isinstance(result, torch.Tensor)
    return result


def feeds(*shapes: tuple[int, ...]) -> tuple[list[to.Placeholder], list[torch.Tensor]]:
    torch.manual_seed(0)
    return [to.placeholder(shape) for shape in shapes], [torch.randn(shape) for shape in shapes]


# --- What functions compute --------------------------------------------------

UNARY: list[tuple[str, Callable[..., Any], Callable[..., torch.Tensor]]] = [
    ("relu", to.relu, torch.relu),
    ("tanh", to.tanh, torch.tanh),
    ("sigmoid", to.sigmoid, torch.sigmoid),
    ("gelu", to.gelu, F.gelu),
    ("gelu tanh", lambda x: to.gelu(x, True), lambda x: F.gelu(x, approximate="tanh")),
    ("softmax", lambda x: to.softmax(x, 1), lambda x: x.softmax(1)),
    ("numbers", lambda x: 2 - (1 + x * 3) / 4, lambda x: 2 - (1 + x * 3) / 4),
    ("over", lambda x: 2 / (x * x + 1), lambda x: 2 / (x * x + 1)),
    ("negative", lambda x: -x, lambda x: -x),
    ("reshape", lambda x: to.reshape(x, [-1, 2]), lambda x: x.reshape(-1, 2)),
    ("transpose", to.transpose, lambda x: x.permute(2, 1, 0)),
    ("transpose perm", lambda x: to.transpose(x, [1, 0, 2]), lambda x: x.permute(1, 0, 2)),
    ("concat", lambda x: to.concat([x, x * 2], 1), lambda x: torch.cat([x, x * 2], 1)),
    ("split", lambda x: to.split(x, 2, 2)[1], lambda x: x.chunk(2, 2)[1]),
    ("split sizes", lambda x: to.split(x, [1, 4, 1], 2)[1], lambda x: x.split([1, 4, 1], 2)[1]),
    ("mean", to.reduce_mean, torch.mean),
    ("mean axis", lambda x: to.reduce_mean(x, 1, keepdims=True), lambda x: x.mean(1, True)),
    ("sum", lambda x: to.reduce_sum(x, [0, 2]), lambda x: x.sum((0, 2))),
    ("sum keepdims", lambda x: to.reduce_sum(x, keepdims=True), lambda x: x.sum((0, 1, 2), True)),
    ("constant", lambda x: x + to.constant(0.5, shape=[3, 6]), lambda x: x + 0.5),
]


@pytest.mark.parametrize(("name", "ours", "theirs"), UNARY, ids=[u[0] for u in UNARY])
def test_functions_of_one_tensor(name: str, ours: Any, theirs: Any) -> None:
    del name
    (x,), (value,) = feeds((4, 3, 6))
    result = ours(x)
    expected = theirs(value)
    assert result.shape == tuple(expected.shape)
    torch.testing.assert_close(evaluate(result, value), expected)


def test_products() -> None:
    (a, b, c), (va, vb, vc) = feeds((2, 3, 4), (2, 4, 5), (2, 5, 4))
    torch.testing.assert_close(evaluate(to.matmul(a, b), va, vb), va @ vb)
    torch.testing.assert_close(evaluate(a @ b, va, vb), va @ vb)
    product = to.matmul(a, c, transpose_b=True)
    torch.testing.assert_close(evaluate(product, va, vc), va @ vc.mT)
    product = to.matmul(b, c, transpose_a=True, transpose_b=True)
    torch.testing.assert_close(evaluate(product, vb, vc), vb.mT @ vc.mT)


def test_cross_entropy_of_indices_and_of_probabilities() -> None:
    (logits, soft), (value, _) = feeds((4, 5, 6), (4, 5, 6))
    index = torch.randint(6, (4, 5))
    labels = to.placeholder([4, 5], dtype=to.int64)
    expected = F.cross_entropy(value.reshape(20, 6), index.reshape(20))
    got = evaluate(to.softmax_cross_entropy(labels, logits), value, index)
    torch.testing.assert_close(got, expected)
    one_hot = F.one_hot(index, 6).float()
    got = evaluate(to.softmax_cross_entropy(soft, logits), value, one_hot)
    torch.testing.assert_close(got, expected)


def test_dropout_keeps_the_expectation() -> None:
    x = to.placeholder([1000])
    got = evaluate(to.dropout(x, rate=0.75), torch.ones(1000))
    assert set(got.tolist()) == {0.0, 4.0}
    assert 150 < int((got > 0).sum()) < 350


@pytest.mark.parametrize("data_format", ["NHWC", "NCHW"])
@pytest.mark.parametrize("padding", ["SAME", "VALID"])
@pytest.mark.parametrize(("size", "stride"), [(7, 1), (7, 2), (8, 2), (8, 3)])
@pytest.mark.parametrize("window", [2, 3])
def test_images(data_format: Any, padding: Any, size: int, stride: int, window: int) -> None:
    """Against windows cut out one by one."""
    torch.manual_seed(size)
    image = torch.randn(2, 3, size, size + 1)
    filters = torch.randn(window, window, 3, 4)
    given = image if data_format == "NCHW" else image.permute(0, 2, 3, 1)
    x = to.placeholder(list(given.shape))
    kernel = to.get_variable("kernel", initializer=filters)
    common: dict[str, Any] = {"padding": padding, "data_format": data_format}
    results = {
        "conv": to.conv2d(x, kernel, stride, **common),
        "max": to.max_pool(x, window, stride, **common),
        "avg": to.avg_pool(x, window, stride, **common),
    }
    for name, result in results.items():
        expected = windows(image, filters, window, stride, padding, name)
        if data_format == "NHWC":
            expected = expected.permute(0, 2, 3, 1)
        assert result.shape == tuple(expected.shape)
        torch.testing.assert_close(evaluate(result, given), expected, rtol=1e-4, atol=1e-4)


def windows(
    image: torch.Tensor, filters: torch.Tensor, window: int, stride: int, padding: str, kind: str
) -> torch.Tensor:
    """Each output from the part of its window that is inside the image, as TensorFlow
    defines SAME and VALID."""
    starts = []
    for size in image.shape[2:]:
        if padding == "SAME":
            count = -(-size // stride)
            before = max((count - 1) * stride + window - size, 0) // 2
        else:
            count, before = (size - window) // stride + 1, 0
        starts.append([i * stride - before for i in range(count)])
    rows = []
    for top in starts[0]:
        cells = []
        for left in starts[1]:
            ys = [y for y in range(top, top + window) if 0 <= y < image.shape[2]]
            xs = [c for c in range(left, left + window) if 0 <= c < image.shape[3]]
            part = image[:, :, ys][:, :, :, xs]
            if kind == "conv":
                weight = filters[[y - top for y in ys]][:, [c - left for c in xs]]
                cells.append(torch.einsum("bchw,hwco->bo", part, weight))
            else:
                cells.append(part.amax((2, 3)) if kind == "max" else part.mean((2, 3)))
        rows.append(torch.stack(cells, -1))
    return torch.stack(rows, -2)


def test_sizes_for_each_dim() -> None:
    x = to.placeholder([2, 8, 8, 3])
    assert to.max_pool(x, [1, 2, 4, 1], [1, 2, 4, 1]).shape == (2, 4, 2, 3)
    assert to.max_pool(x, [2, 4], [2, 4]).shape == (2, 4, 2, 3)


def test_norms() -> None:
    (x, flat), (image, rows) = feeds((4, 5, 5, 3), (6, 7))
    got = evaluate(to.batch_norm(x), image)
    channels = image.permute(0, 3, 1, 2)
    expected = F.batch_norm(channels, None, None, training=True, eps=1e-3).permute(0, 2, 3, 1)
    torch.testing.assert_close(got, expected)
    got = evaluate(to.batch_norm(flat), rows)
    torch.testing.assert_close(got, F.batch_norm(rows, None, None, training=True, eps=1e-3))
    got = evaluate(to.layer_norm(flat), rows)
    torch.testing.assert_close(got, F.layer_norm(rows, [7]))


def test_images_mix_with_other_functions() -> None:
    """They may be stored with their channels first, but are used as they look."""
    (x, y), (image, other) = feeds((2, 4, 6, 3), (2, 4, 6, 3))
    pooled = to.max_pool(x, 1, 1)
    for result, expected in (
        (pooled + y, image + other),
        (y - pooled, other - image),
        (pooled * to.constant([1.0, 2.0, 3.0]), image * torch.tensor([1.0, 2.0, 3.0])),
        (to.reduce_sum(pooled, 3), image.sum(3)),
        (to.reshape(to.relu(pooled), [2, -1]), image.relu().reshape(2, -1)),
        (to.concat([pooled, y], 3), torch.cat([image, other], 3)),
        (-(1 - pooled * 2), -(1 - image * 2)),
    ):
        computation = current_graph().module([result])
        inputs = [image if p is x else other for p in computation.placeholders]
        got = current_graph().materialise(computation, torch.device("cpu"))(*inputs)
        torch.testing.assert_close(got, expected)


def test_a_bias_joins_its_product_only_if_nobody_else_uses_that() -> None:
    x = to.placeholder([4, 8])
    product = to.matmul(x, to.get_variable("w", [8, 6]))
    biased = product + to.get_variable("b", [6], initializer=to.ones_initializer())
    value = torch.randn(4, 8)
    module = current_graph().module([biased]).module
    assert len([n for n in module.graph.nodes if n.op == "call_function"]) == 1
    plain, both = evaluate(product, value), evaluate(biased, value)
    torch.testing.assert_close(both, plain + 1)
    module = current_graph().module([biased, product]).module
    assert len([n for n in module.graph.nodes if n.op == "call_function"]) == 2


def test_initializers() -> None:
    torch.manual_seed(0)
    shape = (40, 60)
    for initializer, deviation, bound in (
        (to.zeros_initializer(), 0.0, 0.0),
        (to.constant_initializer(2.0), 0.0, 2.0),
        (to.random_normal_initializer(0.0, 0.5), 0.5, 3.0),
        (to.truncated_normal_initializer(0.0, 0.5), 0.44, 1.0),
        (to.random_uniform_initializer(-1, 1), 3**-0.5, 1.0),
        (to.glorot_uniform_initializer(), 0.02**0.5, 0.06**0.5),
        (to.glorot_normal_initializer(), 0.44 / 0.5 * 0.02**0.5, 2 * 0.02**0.5),
    ):
        value = torch.empty(shape)
        initializer(value)
        assert float(value.std()) == pytest.approx(deviation, rel=0.05)
        assert float(value.abs().max()) <= bound
    # The receptive field counts: fans are 9 * 2 and 9 * 4.
    value = torch.empty(3, 3, 2, 4)
    to.glorot_uniform_initializer()(value)
    assert 0.2 < float(value.abs().max()) <= (6 / 54) ** 0.5


def test_nothing_is_allocated_before_execution() -> None:
    x = to.placeholder([8, 2**20])
    w = to.get_variable("w", [2**20, 2**20])  # 4 TiB
    loss = to.reduce_mean(to.matmul(x, w))
    to.AdamOptimizer().minimize(loss)
    plan = to.find_strategy(option="mini_time", cluster="h100-8", memory_limit=1e15)
    assert plan.num_devices == 8
    rows = to.find_strategy(
        option="profiling", cluster="h100-8", device_counts=[2, 8], memory_limit=1e15
    )
    assert [row.num_devices for row in rows] == [2, 8]


# --- Names -------------------------------------------------------------------


def test_scopes_prefix_names_and_reuse() -> None:
    with to.variable_scope("a"), to.variable_scope("b"):
        w = to.get_variable("w", [2])
    assert w.name == "a/b/w"
    with to.variable_scope("a", reuse=True), to.variable_scope("b"):
        assert to.get_variable("w", [2]) is w
        with pytest.raises(TensorOptError, match=r"'a/b/w' has shape \[2\].*\[3\]"):
            to.get_variable("w", [3])


def test_layers_are_numbered() -> None:
    x = to.placeholder([4, 8])
    to.layer_norm(to.layer_norm(x))
    module = current_graph().module([to.layer_norm(to.layer_norm(x), name="last")]).module
    names = {name for name, _ in module.named_parameters()}
    assert names == {"layer_norm_2.weight", "layer_norm_2.bias", "last.weight", "last.bias"}


# --- Mistakes ----------------------------------------------------------------


def test_mistakes_are_named() -> None:
    x = to.placeholder([4, 8], name="x")
    w = to.get_variable("w", [6, 2])
    with pytest.raises(TensorOptError, match=r"matmul of 'x' \[4, 8\] and 'w' \[6, 2\]"):
        to.matmul(x, w)
    with pytest.raises(TensorOptError, match=r"variable 'w' already"):
        to.get_variable("w", [6, 2])
    with pytest.raises(TensorOptError, match="placeholder 'x' already"):
        to.placeholder([4], name="x")
    with pytest.raises(TensorOptError, match="give every size"):
        to.placeholder([None, 8])  # type: ignore[list-item]
    with pytest.raises(TensorOptError, match="'a b' is no name"):
        to.get_variable("a b", [2])
    to.layer_norm(x, name="norm")
    for taken in ("w", "norm"):
        with pytest.raises(TensorOptError, match=f"'{taken}' is a variable or layer"):
            to.get_variable(f"{taken}/inner", [2])
    for taken in ("w", "norm"):
        with pytest.raises(TensorOptError, match=f"variable or layer '{taken}' already"):
            to.layer_norm(x, name=taken)
    with pytest.raises(TensorOptError, match="'v' has no shape"):
        to.get_variable("v")
    with pytest.raises(TensorOptError, match=r"shape \[2\].*initializer has \[3\]"):
        to.get_variable("v", [2], initializer=torch.ones(3))
    with pytest.raises(TensorOptError, match=r"add.*\[4, 8\], \[6, 2\]"):
        x + w
    with pytest.raises(TensorOptError, match="equal parts"):
        to.split(x, 3, 1)
    with pytest.raises(TensorOptError, match=r"need labels \[4\] of integers"):
        to.softmax_cross_entropy(x, to.matmul(x, to.get_variable("u", [8, 3])))
    with pytest.raises(TensorOptError, match="another graph"), to.Graph().as_default():
        to.relu(x)


def test_mistakes_with_images_are_named() -> None:
    x = to.placeholder([2, 3, 8, 8], name="x")
    kernel = to.get_variable("kernel", [3, 3, 3, 4])
    with pytest.raises(TensorOptError, match=r"'x' .*\(NHWC\) has 8 channels.*data_format"):
        to.conv2d(x, kernel)
    with pytest.raises(TensorOptError, match="padding 'FULL'"):
        to.max_pool(x, 2, 2, padding="FULL")  # type: ignore[arg-type]
    with pytest.raises(TensorOptError, match="data_format 'CHW'"):
        to.max_pool(x, 2, 2, data_format="CHW")  # type: ignore[arg-type]


def test_mistakes_in_planning_are_named() -> None:
    x = to.placeholder([4, 8], name="x")
    out = to.matmul(x, to.get_variable("w", [8, 2]))
    with pytest.raises(TensorOptError, match="minimizes no loss"):
        to.find_strategy()
    with pytest.raises(TensorOptError, match="a loss is a scalar"):
        to.AdamOptimizer().minimize(out)
    to.AdamOptimizer().minimize(to.reduce_mean(out))
    with pytest.raises(TensorOptError, match="minimizes a loss already"):
        to.AdamOptimizer().minimize(to.reduce_sum(out))
    with pytest.raises(TensorOptError, match=r"option='fastest'.*mini_time"):
        to.find_strategy(option="fastest")  # type: ignore[call-overload]
    with pytest.raises(TensorOptError, match="give device_counts for 'profiling'"):
        to.find_strategy(option="profiling")  # type: ignore[call-overload]
    with pytest.raises(TensorOptError, match="num_devices for other options"):
        to.find_strategy(device_counts=[1, 2])  # type: ignore[call-overload]
    plan = to.find_strategy(cluster="h100-8", num_devices=1)
    with pytest.raises(TensorOptError, match=r"engine 'tf'.*'torch'"):
        to.build_execution_graph(engine="tf", plan=plan)
