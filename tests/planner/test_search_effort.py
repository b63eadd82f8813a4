"""How much the search looks at, where many values are read by many layers."""

import pytest
import torch

from tensoropt_torch import Example, find_frontier

transformers = pytest.importorskip("transformers")


def encoder_decoder(layers: int) -> Example:
    """All layers of a half read one learned table of biases, those of the decoder what the
    encoder made, too."""
    config = transformers.T5Config(
        d_model=768, d_ff=3072, num_layers=layers, num_heads=12, decoder_start_token_id=0
    )
    config.use_cache = False
    with torch.device("meta"):
        ids = torch.zeros(64, 512, dtype=torch.long)
        labels = torch.zeros(64, 128, dtype=torch.long)
        model = transformers.T5ForConditionalGeneration(config)
    return Example(model, (), {"input_ids": ids, "labels": labels})


@pytest.mark.parametrize(("layers", "micro_batches", "pairs"), [(4, 8, 200_000), (6, 1, 20_000)])
def test_recombinations_of_shared_values_stay_small(
    layers: int, micro_batches: int, pairs: int
) -> None:
    """54,000 and 1,800 pairs of frontiers. What all known strategies allow together would be
    1,800,000, and with the hubs of the whole problem 206,000."""
    frontier = find_frontier(
        encoder_decoder(layers),
        cluster="rtx4090-4",
        optimizer="adamw",
        recompute=True,
        max_micro_batches=micro_batches,
    )
    assert frontier.guarantee.exact and frontier.guarantee.epsilon <= 0.01
    assert frontier.stats["pairs"] < pairs
