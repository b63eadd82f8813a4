"""Weights of Hugging Face's models, in and out: what ``from_pretrained`` would give."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

import tensoropt_torch
from tensoropt_torch import ParallelModule, TensorOptError, WeightSource
from tests.distributed.harness import run_ranks

pytest.importorskip("transformers")
safetensors = pytest.importorskip("safetensors")

HERE = "tests.distributed.values.test_pretrained"
SHARD = "12KB"  # several files


def make(name: str) -> Any:
    """A small model of Hugging Face, by the name of its class."""
    import transformers

    sizes = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 48}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    if name.startswith("GPT2"):
        config = transformers.GPT2Config(
            vocab_size=64, n_positions=16, n_embd=32, n_layer=2, n_head=4
        )
    elif name.startswith("Llama"):
        config = transformers.LlamaConfig(**sizes, **heads)
    else:
        config = transformers.MixtralConfig(**sizes, **heads, num_local_experts=4)
    config.pad_token_id = 0
    config.use_cache = False
    torch.manual_seed(0)
    return getattr(transformers, name)(config)


def on_meta(name: str, dtype: torch.dtype = torch.float32) -> Any:
    with torch.device("meta"), default_dtype(dtype):
        return make(name)


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


def parallel(model: nn.Module, weights: WeightSource) -> ParallelModule:
    """Under the plan of least memory, whose parameters are sharded."""
    tokens = {"input_ids": torch.arange(16).view(2, 8)}
    frontier = tensoropt_torch.find_frontier(model, (), tokens)
    return tensoropt_torch.parallelize(model, frontier.smallest.plan, weights=weights)


def whole(module: nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and buffers, also those that are not saved."""
    tensors = {
        **dict(module.named_parameters(remove_duplicate=False)),
        **dict(module.named_buffers()),
    }
    return {n: t.full_tensor() if isinstance(t, DTensor) else t for n, t in tensors.items()}


def different(a: nn.Module, b: nn.Module) -> list[str]:
    """The tensors whose bits differ."""
    a_tensors, b_tensors = whole(a), whole(b)
    assert a_tensors.keys() == b_tensors.keys()
    return [name for name, t in a_tensors.items() if not torch.equal(t, b_tensors[name])]


class Counting:
    """A file of which only slices can be read, which are counted."""

    elements = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._file = ORIGINAL_OPEN(*args, **kwargs)

    def keys(self) -> Any:
        return self._file.keys()

    def get_slice(self, name: str) -> Any:
        return CountedSlice(self._file.get_slice(name))


class CountedSlice:
    def __init__(self, slices: Any) -> None:
        self._slices = slices
        self.get_shape = slices.get_shape

    def __getitem__(self, part: Any) -> torch.Tensor:
        tensor: torch.Tensor = self._slices[part]
        Counting.elements += tensor.numel()
        return tensor


ORIGINAL_OPEN = safetensors.safe_open


def load_gpt2(folder: Path) -> None:
    """Each rank reads its parts, from one file and from several."""
    from transformers import GPT2LMHeadModel

    safetensors.safe_open = Counting
    expected = GPT2LMHeadModel.from_pretrained(folder / "sharded")
    for source in (
        folder / "sharded",
        folder / "sharded" / "model.safetensors.index.json",
        folder / "one",
        str(folder / "one" / "model.safetensors"),
    ):
        Counting.elements = 0
        module = parallel(on_meta("GPT2LMHeadModel"), WeightSource(checkpoint=source))
        assert different(module, expected) == []
        assert module.get_parameter("lm_head.weight") is module.get_parameter(
            "transformer.wte.weight"
        )
        parts = [p.to_local().numel() for p in module.parameters()]
        assert Counting.elements == sum(parts) < 0.6 * expected.num_parameters()


def test_each_rank_reads_its_parts_only(tmp_path: Path) -> None:
    model = make("GPT2LMHeadModel")
    model.save_pretrained(tmp_path / "sharded", max_shard_size=SHARD)
    assert len(list((tmp_path / "sharded").glob("*.safetensors"))) > 2
    model.save_pretrained(tmp_path / "one")
    run_ranks(2, f"{HERE}:load_gpt2", tmp_path, 90)


# The class that is loaded, the one that was saved, and the dtype.
LOADED = [
    ("GPT2Model", "GPT2LMHeadModel", torch.float32),  # names without the prefix
    ("GPT2LMHeadModel", "GPT2Model", torch.float32),  # names with it
    ("LlamaForCausalLM", "LlamaForCausalLM", torch.bfloat16),
    ("MixtralForCausalLM", "MixtralForCausalLM", torch.float32),  # experts are put together
]


def load_others(folder: Path) -> None:
    import transformers

    for name, saved, dtype in LOADED:
        module = parallel(on_meta(name, dtype), WeightSource(checkpoint=folder / saved))
        expected = getattr(transformers, name).from_pretrained(folder / saved, dtype=dtype)
        assert different(module, expected) == [], name
    check_new_head(folder / "LlamaForCausalLM")


def check_new_head(folder: Path) -> None:
    """What a checkpoint lacks is an error, or initialised if that is asked for."""
    model = on_meta("LlamaForSequenceClassification")
    with pytest.raises(TensorOptError, match=r"no 'score\.weight'.*initialise="):
        parallel(model, WeightSource(checkpoint=folder))
    source = WeightSource(checkpoint=folder, initialise=model._init_weights)
    module = parallel(model, source)
    head = module.get_parameter("score.weight").full_tensor()  # type: ignore[operator]
    assert 0 < float(head.detach().std()) < 0.1
    expected = type(model).from_pretrained(folder)
    assert set(different(module, expected)) <= {"score.weight"}


def test_values_are_those_of_from_pretrained(tmp_path: Path) -> None:
    for saved in {saved for _, saved, _ in LOADED}:
        make(saved).save_pretrained(tmp_path / saved)
    run_ranks(2, f"{HERE}:load_others", tmp_path, 120)


def check_errors(module: ParallelModule, folder: Path) -> None:
    """On each rank."""
    with pytest.raises(TensorOptError, match="Linear has no save_pretrained"):
        tensoropt_torch.save_pretrained(module, folder, nn.Linear(2, 2))
    with pytest.raises(TensorOptError, match="is a file"):
        tensoropt_torch.save_pretrained(module, __file__)


def save(folder: Path) -> None:
    """What is trained and saved is what ``from_pretrained`` then gives."""
    import transformers

    for name in ("GPT2LMHeadModel", "MixtralForCausalLM"):
        model = on_meta(name)
        module = parallel(model, WeightSource(checkpoint=folder / f"{name}0"))
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        module(input_ids=torch.arange(16).view(2, 8)).logits.square().mean().backward()
        optimizer.step()
        check_errors(module, folder)
        tensoropt_torch.save_pretrained(module, folder / name, max_shard_size=SHARD)
        again = getattr(transformers, name).from_pretrained(folder / name)
        assert different(module, again) == []
        state = tensoropt_torch.full_state_dict(module)
        if dist.get_rank() == 0:
            plain = make(name)
            assert list(state) == list(plain.state_dict())
            plain.load_state_dict(state)
            plain.save_pretrained(folder / f"{name}1", max_shard_size=SHARD)
        else:
            assert state == {}


def test_saved_models_are_those_that_the_model_itself_saves(tmp_path: Path) -> None:
    names = ("GPT2LMHeadModel", "MixtralForCausalLM")
    for name in names:
        make(name).save_pretrained(tmp_path / f"{name}0")
    run_ranks(2, f"{HERE}:save", tmp_path, 120)
    for name in names:
        ours, theirs = (
            {path.name: path.read_bytes() for path in (tmp_path / folder).iterdir()}
            for folder in (name, f"{name}1")
        )
        assert ours.keys() == theirs.keys()
        assert [n for n in ours if ours[n] != theirs[n]] == []
