"""Models of config files and of sizes: which are built, and which are refused."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

from tensoropt_torch import TensorOptError, cli
from tensoropt_torch.model_configs import BatchSize, example_of_config, parse_batch

transformers = pytest.importorskip("transformers")

SIZES = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 128}
LLAMA = SIZES | {"intermediate_size": 96, "num_key_value_heads": 2}
BATCH = BatchSize(2, 16)


def written(path: Path, **record: object) -> Path:
    path.write_text(json.dumps(record))
    return path


def count(model: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def test_a_file_a_folder_and_sizes_give_the_same_model(tmp_path: Path) -> None:
    file = written(tmp_path / "config.json", model_type="llama", torch_dtype="bfloat16", **LLAMA)
    sizes = ",".join(f"{name}={value}" for name, value in LLAMA.items())
    for config in (file, str(file), tmp_path, f"hf:llama,{sizes},dtype=bfloat16"):
        example = example_of_config(config, BATCH)
        model = example.model
        assert type(model).__name__ == "LlamaForCausalLM", config
        # By hand: embedding and head, then for each layer q, o, k, v, three of the MLP, two norms.
        layer = 2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 96 + 2 * 64
        assert count(model) == 2 * 128 * 64 + 2 * layer + 64, config
        assert {(p.device.type, p.dtype) for p in model.parameters()} == {("meta", torch.bfloat16)}
        assert example.kwargs is not None
        assert {tuple(value.shape) for value in example.kwargs.values()} == {(2, 16)}


def test_the_class_that_is_named_is_built(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    for named, built in (
        ("BertForMaskedLM", "BertForMaskedLM"),
        ("BertLMHeadModel", "BertLMHeadModel"),
        ("BertModel", "BertForMaskedLM"),
    ):
        written(file, model_type="bert", architectures=[named], intermediate_size=96, **SIZES)
        assert type(example_of_config(file, BATCH).model).__name__ == built
    assert len(example_of_config(file, BATCH).capture().parameters) > 10


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"model_type": "lama"}, "knows no model type 'lama'; did you mean 'llama'"),
        ({"hidden_size": 64}, "has no 'model_type'"),
        ({"model_type": "vit"}, "is no causal or masked language model: of type 'vit'"),
        ({"model_type": "t5"}, "is no causal or masked language model: of type 't5'"),
        (
            {"model_type": "bert", "architectures": ["BertForSequenceClassification"]},
            "is no causal or masked language model: BertForSequenceClassification of type 'bert'",
        ),
        ({"model_type": "gpt2", "n_positions": 8}, "has positions for 8 tokens"),
        ({"model_type": "gpt2", "dtype": "int8"}, "has dtype"),
        (
            {"model_type": "bert", "hidden_size": 65, "num_attention_heads": 4},
            "cannot be built of it",
        ),
    ],
)
def test_other_configs_are_refused(tmp_path: Path, record: dict[str, object], message: str) -> None:
    with pytest.raises(TensorOptError, match=message):
        example_of_config(written(tmp_path / "config.json", **record), BATCH)


def test_what_is_no_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TensorOptError, match=r"cannot be read.*nothing is fetched"):
        example_of_config("meta-llama/Meta-Llama-3-8B", BATCH)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(TensorOptError, match="is no JSON"):
        example_of_config(tmp_path, BATCH)
    with pytest.raises(TensorOptError, match="has no 'hidden'; did you mean 'hidden_"):
        example_of_config("hf:llama,hidden=3", BATCH)
    with pytest.raises(TensorOptError, match="'3' has no '='"):
        example_of_config("hf:llama,3", BATCH)


def test_without_transformers_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(TensorOptError, match=r"needs the package .transformers..*pip install"):
        example_of_config("hf:llama", BATCH)


@pytest.mark.parametrize("text", ["8", "8x", "8*8", "x8", "8x8x8", "-1x8"])
def test_batches_are_rows_and_tokens(text: str) -> None:
    assert parse_batch("8x8192") == BatchSize(8, 8192)
    with pytest.raises(TensorOptError, match="rows x tokens"):
        parse_batch(text)
    with pytest.raises(TensorOptError, match="rows of a batch"):
        parse_batch("0x8")


def test_commands_take_a_config(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ",".join(f"{name}={value}" for name, value in LLAMA.items())
    config = ["--config", f"hf:llama,{sizes}"]
    assert cli.main(["frontier", *config, "--batch", "8x16", "--cluster", "h100-2"]) == 0
    assert "Cost frontier on 2 devices" in " ".join(capsys.readouterr().out.split())
    assert cli.main(["frontier", *config]) == 2
    assert "needs --batch: rows x tokens" in capsys.readouterr().err
    assert cli.main(["plan", "m.py:f", *config]) == 2
    assert "one of them: both are given" in capsys.readouterr().err
    assert cli.main(["plan", "m.py:f", "--batch", "8x16"]) == 2
    assert "--batch 8x16 is of a --config" in capsys.readouterr().err
    for model in ("hf:gpt2", "config.json"):
        assert cli.main(["plan", model]) == 2
        told = " ".join(capsys.readouterr().err.split())
        assert f"give --config {model} --batch ROWSxTOKENS" in told
    assert cli.main(["plan"]) == 2
    assert "one of them: neither is given" in capsys.readouterr().err


def test_a_loss_that_transformers_does_not_name_is_told() -> None:
    """Else it takes the same one, with a warning."""
    example = example_of_config("hf:gpt2,n_layer=1,n_embd=64,n_head=2", BatchSize(2, 8))
    assert example.model.loss_type == "ForCausalLM"
    example = example_of_config("hf:bert,num_hidden_layers=1", BatchSize(2, 8))
    assert example.model.loss_type == "ForMaskedLM"
