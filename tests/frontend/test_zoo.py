"""Common models: the normalised graph computes the very bits of the module."""

import pytest
import torch

from benchmarks.coverage.bits import differing_bits
from benchmarks.coverage.zoo import MODELS, make

FAST = ("mlp", "mlp_mse", "gru", "nanogpt_autocast", "moe_scatter", "dlrm", "llama", "t5")

# Gradients of heads come back without a copy, so that biases sum them in another order.
OTHER_SUMS = ("transformer_post_norm", "transformer_pre_norm")


@pytest.mark.filterwarnings("ignore:operator '")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in FAST else pytest.mark.slow) for name in MODELS]
)
def test_normalised_model_has_the_same_bits(name: str) -> None:
    torch.set_num_threads(1)
    rounding = 1e-5 if name in OTHER_SUMS else 0.0
    assert differing_bits(make(name), rounding=rounding) == []
