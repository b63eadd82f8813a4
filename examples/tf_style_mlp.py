"""Train a classifier that is written as in TensorFlow 1.

    torchrun --nproc-per-node 2 examples/tf_style_mlp.py

The data are points around random centres, so nothing is downloaded.
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist

import tensoropt_torch.tf_style as to

BATCH, WIDTH, HIDDEN, CLASSES = 256, 784, 512, 10


def parse_arguments() -> argparse.Namespace:
    """What may be changed on the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--memory-limit", type=float, help="bytes per device")
    return parser.parse_args()


def dense(x: to.Tensor, name: str, width: int) -> to.Tensor:
    """A layer with variables ``name/w`` and ``name/b``."""
    with to.variable_scope(name):
        w = to.get_variable("w", [x.shape[-1], width])
        b = to.get_variable("b", [width], initializer=to.zeros_initializer())
    return to.matmul(x, w) + b


def main() -> None:
    """Build the graph, plan it, train it."""
    options = parse_arguments()
    to.init(seed=0)
    x = to.placeholder([BATCH, WIDTH], name="x")
    y = to.placeholder([BATCH], dtype=to.int64, name="y")
    logits = dense(to.relu(dense(x, "hidden", HIDDEN)), "output", CLASSES)
    loss = to.softmax_cross_entropy(y, logits)
    train_op = to.MomentumOptimizer(0.05, 0.9).minimize(loss)
    plan = to.find_strategy(option="mini_time", memory_limit=options.memory_limit)
    graph = to.build_execution_graph(engine="torch", plan=plan)

    random = torch.Generator().manual_seed(0)  # the same batches on every rank
    centres = torch.randn(CLASSES, WIDTH, generator=random)
    losses: list[float] = []
    for _ in range(options.steps):
        labels = torch.randint(CLASSES, (BATCH,), generator=random)
        points = centres[labels] + 3 * torch.randn(BATCH, WIDTH, generator=random)
        value, _ = graph.run([loss, train_op], feed_dict={x: points, y: labels})
        losses.append(float(value))
    if dist.get_rank() == 0:
        print(f"loss {losses[0]:.4f} at the start, {losses[-1]:.4f} at the end")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
