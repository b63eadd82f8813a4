"""Models in stages on several processes, against one."""

from __future__ import annotations

import pytest
import torch

from tests.distributed.harness import run_ranks
from tests.distributed.staged import Pipeline

STAGED = "tests.distributed.staged:"
TIMEOUT_S = 400

ON_TWO = [
    Pipeline("skips", {"stages": 2, "micro_batches": 4}, "adamw", clip=0.1),
    Pipeline("masked", {"stages": 2, "micro_batches": 4, "schedule": "gpipe"}, "adamw"),
    Pipeline("gpt_tied", {"stages": 2, "micro_batches": 4}, "adamw", clip=0.1),
    Pipeline(
        "gpt_tied",
        {"stages": 2, "micro_batches": 3, "schedule": "interleaved", "chunks": 2},
        "adamw",
        rows=9,
        clip=0.1,
    ),
    Pipeline("llama", {"stages": ["layers.1"], "micro_batches": 1}, "adamw"),
    Pipeline("llama", {"max_micro_batches": 4}, "adamw"),
    Pipeline("transformer", {"stages": 2, "micro_batches": 4}, dtype=torch.float32),
    Pipeline("normalised", {"stages": ["layers.3"]}),
    Pipeline("frozen_ends", {"stages": 2, "micro_batches": 4}, "adamw", clip=0.1),
    Pipeline("weighed", {"stages": 2, "micro_batches": 4}, "adamw", clip=0.1),
    Pipeline("texts", {"stages": 2, "micro_batches": 4}, "adamw", clip=0.1),
    Pipeline("mixed", {"stages": 2, "micro_batches": 2}, tolerance=1e-5),
]
ON_FOUR = [
    Pipeline("skips", {"stages": 2, "micro_batches": 2}, "adamw", clip=0.1),
    Pipeline("skips", {"stages": ["down.1", "up.0", "up.1"], "micro_batches": 4}, clip=0.1),
    Pipeline("gpt_tied", {"stages": 2, "micro_batches": 4}, "adamw", clip=0.1),
    Pipeline("gpt_tied", {"stages": 2, "micro_batches": 3}, "adamw", rows=9, clip=0.1),
    Pipeline("masked", {"stages": 4, "micro_batches": 2}, "adamw"),
    Pipeline("shares", {"stages": 4, "micro_batches": 2}, "adamw", clip=0.1),
    Pipeline("gpt_tied", {"max_micro_batches": 4}, "adamw", clip=0.1),
    Pipeline("normalised", {"stages": ["layers.3"]}),
    Pipeline("normalised", {"stages": ["layers.3"]}, rows=7),
    Pipeline("transformer", {"stages": 4, "micro_batches": 4}, dtype=torch.float32),
    Pipeline("lstm", {"stages": 2, "micro_batches": 2}),
]


@pytest.mark.parametrize(("world", "pipelines"), [(2, ON_TWO), (4, ON_FOUR)], ids=["2", "4"])
def test_stages_train_as_one_process(world: int, pipelines: list[Pipeline]) -> None:
    found = run_ranks(world, f"{STAGED}compare_all", pipelines, TIMEOUT_S)
    assert found[0] == [], "\n".join(found[0])


def test_dropout_is_that_of_the_graph_wherever_it_is_cut() -> None:
    options = [
        {"stages": ["layers.1"]},
        {"stages": ["layers.3"]},
        {"stages": ["layers.2"], "schedule": "gpipe"},
    ]
    first, *others = run_ranks(2, f"{STAGED}dropped", options, TIMEOUT_S)[0]
    assert all(losses == pytest.approx(first, rel=1e-12) for losses in others)
    (alone,) = run_ranks(1, f"{STAGED}dropped", [{}], TIMEOUT_S)[0]
    assert alone == pytest.approx(first, rel=1e-12)
    in_micro_batches = [{**one, "micro_batches": 4} for one in options]
    first, *others = run_ranks(2, f"{STAGED}dropped", in_micro_batches, TIMEOUT_S)[0]
    assert all(losses == pytest.approx(first, rel=1e-12) for losses in others)
    assert first != pytest.approx(alone, rel=1e-6)  # each micro-batch draws by itself


def test_states_have_the_names_of_the_model() -> None:
    assert run_ranks(3, f"{STAGED}states", None, TIMEOUT_S)[0] == []


def test_models_on_the_meta_device_get_their_values() -> None:
    assert run_ranks(2, f"{STAGED}on_meta", None, TIMEOUT_S)[0] == []


@pytest.mark.parametrize(
    "cuts", [["layers.1", "wide"], ["layers.1", "wide", "narrow"]], ids=["3", "4"]
)
def test_states_have_each_tensor_that_later_stages_share_once(cuts: list[str]) -> None:
    assert run_ranks(len(cuts) + 1, f"{STAGED}shared_states", cuts, TIMEOUT_S)[0] == []


WORDS = {
    "other options": "the stages that are asked for differs between ranks",
    "other calls": "the ranks call the module differently: rank 0 with training mode",
    "compile": "runs steps as CUDA graphs, and the device is 'cpu'",
    "one process": "one_process_random=True is not for plans in stages",
    "pin": "pin= is not for plans in stages",
    "schedule": "the interleaved schedule has 2 chunks or more",
    "devices": "2 devices cannot be shared out to 3 stages",
    "save": "give it full_optimizer_state_dict(optimizer)",
    "whole_model": "whole_model sees the parameters of this rank's stage alone",
    "other inputs": "is not the same on rank 0 and on rank 1",
    "lbfgs": "LBFGS sees the parameters of this rank's stage alone",
    "float16": "are made before a GradScaler scales the loss",
    "frozen": "is False on rank 0 and True on rank 1; set it alike",
    "loaded": "the plan was loaded without its model; give example inputs",
    "fixed": "give inputs of these shapes, plan again for others",
    "few": "as many as max_variants allows",
}


def test_what_stages_do_not_do_is_refused() -> None:
    for found in run_ranks(2, f"{STAGED}refused", None, TIMEOUT_S):
        assert found.keys() == WORDS.keys()
        for name, words in WORDS.items():
            assert words in found[name], f"{name}: {found[name]}"
