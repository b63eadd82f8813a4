"""Where the inputs of a step have the rows of the batch, and batches of different lengths."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset
from transformers import default_data_collator

from tensoropt_torch import TensorOptError
from tensoropt_torch.integrations.joint_batches import (
    LITTLE,
    SAMPLES,
    JointBatches,
    lengths_seen,
    may_differ,
)
from tensoropt_torch.integrations.loaders import recording
from tensoropt_torch.integrations.row_dims import (
    Sampled,
    batch_with_more,
    first_batch,
    rows_of_trials,
)
from tests.distributed.harness import run_ranks

HERE = "tests.integrations.test_rows"
COUNTS = ({4}, {5}, {6})


def trial(*shapes: tuple[int, ...]) -> list[Tensor]:
    return [torch.empty(shape) for shape in shapes]


def rows(*shapes: tuple[tuple[int, ...], ...]) -> dict[str, int | None]:
    """Of inputs whose shapes in the three trials are these."""
    names = [f"input_{index}" for index in range(len(shapes))]
    return rows_of_trials(names, [trial(*of) for of in zip(*shapes, strict=True)], COUNTS)


def test_dims_that_have_as_many_entries_as_samples_have_the_rows() -> None:
    batch_first = ((4, 7), (5, 7), (6, 7))
    time_major = ((7, 4, 2), (7, 5, 2), (7, 6, 2))
    table = ((4, 2), (4, 2), (4, 2))  # which has four entries by chance
    scalar = ((), (), ())
    found = rows(batch_first, time_major, table, scalar)
    assert found == {"input_0": 0, "input_1": 1, "input_2": None, "input_3": None}


def test_lengths_that_are_drawn_are_no_rows() -> None:
    assert rows(((4, 9), (5, 7), (6, 11))) == {"input_0": 0}


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        (((24, 2), (30, 2), (36, 2)), "grows along dim 0 by another number"),
        (((5, 2), (6, 2), (7, 2)), "grows along dim 0 by another number"),
        (((4, 4), (5, 5), (6, 6)), r"each of dims \[0, 1\]"),
        (((4, 24), (5, 30), (6, 36)), "grows along dim 1"),
        (((4, 2), (5, 2, 1), (6, 2)), "has other dims each time"),
        (((7, 2), (7, 2), (7, 2)), "no input of the module"),
    ],
)
def test_what_is_not_clear_is_refused(shapes: tuple[tuple[int, ...], ...], words: str) -> None:
    with pytest.raises(TensorOptError, match=words) as caught:
        rows(shapes)
    assert "inputs={'x': 0" in str(caught.value)


def test_a_number_that_is_that_of_samples_is_refused() -> None:
    trials = [[torch.empty(count, 2), count, 7] for count in (4, 5, 6)]
    with pytest.raises(TensorOptError, match=r"'n' is the number of samples of a process \(4\)"):
        rows_of_trials(["x", "n", "m"], trials, COUNTS)


@pytest.mark.parametrize("options", [{}, {"num_workers": 1, "persistent_workers": True}])
def test_a_loader_tells_samples_and_is_itself_again(options: dict[str, Any]) -> None:
    loader = DataLoader(TensorDataset(torch.arange(8)), 4, **options)
    collate = loader.collate_fn
    with recording([loader]):
        drawn = next(iter(loader))
    assert isinstance(drawn, Sampled) and first_batch(drawn)[0].tolist() == [0, 1, 2, 3]
    more, counts = batch_with_more({"a": drawn}, 2)
    assert more["a"][0].tolist() == [0, 1, 2, 3, 0, 0] and counts == {6}
    assert loader.collate_fn is collate
    assert next(iter(loader))[0].tolist() == [0, 1, 2, 3]


def test_batches_of_unknown_samples_repeat_their_first_row() -> None:
    batch, counts = batch_with_more({"x": torch.tensor([[1], [2]]), "n": 3}, 1)
    assert batch["x"].tolist() == [[1], [2], [1]] and batch["n"] == 3 and counts == {3}
    with pytest.raises(TensorOptError, match="does not tell the samples"):
        batch_with_more([torch.ones(3, 4), torch.ones(4)], 1)


def collate(samples: list[dict[str, Any]]) -> dict[str, Any]:
    """Padded ids, (3, rows, time) positions, and names; takes entries out of the samples."""
    names = [sample.pop("name") for sample in samples]
    longest = max(len(sample["ids"]) for sample in samples)
    ids = torch.full((len(samples), longest), -1)
    for row, sample in zip(ids, samples, strict=True):
        row[: len(sample["ids"])] = torch.tensor(sample["ids"])
    positions = torch.arange(longest).expand(3, len(samples), longest).contiguous()
    return {"ids": ids, "positions": positions, "names": names, "kind": "text"}


def samples(rank: int, lengths: list[int]) -> list[dict[str, Any]]:
    return [{"ids": [rank] * length, "name": f"{rank}.{length}"} for length in lengths]


def joint_batch(lengths: list[list[int]]) -> list[Any]:
    rank = dist.get_rank()
    joint = JointBatches(collate)
    loader = DataLoader(samples(rank, lengths[rank]), len(lengths[rank]), collate_fn=collate)  # type: ignore[arg-type]
    joint.keep(loader)
    joint.keep(loader)  # changes nothing
    batch = joint.of_all(next(iter(loader)))
    assert SAMPLES not in batch
    return [batch["ids"].tolist(), list(batch["positions"].shape), batch["names"], batch["kind"]]


def test_batches_of_other_lengths_are_padded_as_in_one_process() -> None:
    first, second = run_ranks(2, f"{HERE}:joint_batch", [[2, 1], [3]], 60)
    assert first == [[[0, 0, -1], [0, -1, -1]], [3, 2, 3], ["0.2", "0.1"], "text"]
    assert second == [[[1, 1, 1]], [3, 1, 3], ["1.3"], "text"]


def test_lengths_are_seen_of_each_sample_and_of_some_of_the_data() -> None:
    alike = samples(0, [2, 2, 2])
    assert len(lengths_seen(Sampled(None, alike, collate))) == 1
    assert len(lengths_seen(Sampled(None, samples(0, [2, 2, 3]), collate))) == 2
    later = samples(0, [2] * 40 + [5] * 60)
    assert len(lengths_seen(Sampled(None, alike, collate), later)) == 2
    assert len(lengths_seen(Sampled(None, alike, collate), iter(later))) == 1
    assert "name" in alike[0] and "name" in later[0]


def graph_collate(nodes: list[list[int]]) -> dict[str, Tensor]:
    return {"x": torch.tensor([node for graph in nodes for node in graph])}


def joint_graphs(_: None) -> None:
    JointBatches(graph_collate).rows_of([[1] * (2 + dist.get_rank())])


def test_batches_whose_rows_are_not_clear_are_refused() -> None:
    with pytest.raises(AssertionError, match="input 'x' grows along dim 0 by another number"):
        run_ranks(2, f"{HERE}:joint_graphs", None, 60)


RUNS = "tests.integrations.rows_runs"


@pytest.mark.parametrize("accumulated", [1, 2])
def test_lightning_trains_chained_calls_with_rows_in_several_dims(accumulated: int) -> None:
    assert run_ranks(2, f"{RUNS}:with_lightning", accumulated, 200) == [[]] * 2


@pytest.mark.parametrize("options", [{}, {"dataloader_num_workers": 1}])
def test_trainer_trains_on_lengths_that_differ_between_ranks(options: dict[str, Any]) -> None:
    assert run_ranks(2, f"{RUNS}:with_trainer", options, 200) == [[]] * 2


def test_a_length_that_comes_later_is_padded_on_all_ranks() -> None:
    assert run_ranks(2, f"{RUNS}:with_rare_lengths", None, 200) == [[]] * 2


def test_collators_that_stack_make_batches_of_one_shape() -> None:
    batch = {"ids": torch.zeros(2, 3)}
    assert may_differ(Sampled(batch, [], collate))
    assert not may_differ(Sampled(batch, [], default_data_collator))
    assert not may_differ(Sampled({"pixels": torch.zeros(LITTLE)}, [], collate))
    assert not may_differ(Sampled([torch.zeros(2, 3)], [], collate))


def test_nodes_of_graphs_are_refused_unless_the_user_names_their_dim() -> None:
    for text in run_ranks(2, f"{RUNS}:refused", None, 100):
        assert "TensorOptError: input 'input1' grows along dim 0" in text and "inputs={" in text
    assert (
        run_ranks(2, f"{RUNS}:refused", {"input1": 0, "input2": "sharded"}, 100) == ["nothing"] * 2
    )
