"""Operators of ours that PyTorch sees through."""

from __future__ import annotations

from tensoropt_torch.operators import OPS

# Operators of ours that are made of ATen calls, where no group is named.
TRACED = frozenset(
    {
        OPS.embedding_shard.default,
        OPS.gather_shard.default,
        OPS.linear_blocks.default,
        OPS.linear_sections.default,
        OPS.linear_transposed.default,
        OPS.cross_entropy_sharded.default,
        OPS.nll_loss_sharded.default,
        OPS.valid_divisor.default,
    }
)
