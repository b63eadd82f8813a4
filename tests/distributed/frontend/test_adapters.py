"""Adapters of ``peft`` that parametrise weights in forward (of experts) or decide by a random
number whether they act (LoHa, LoKr) train as in one process."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.distributed.harness import run_ranks
from tests.distributed.kinds import Kind
from tests.distributed.parity import TOLERANCE

HERE = "tests.distributed.frontend.test_adapters"
SIZES: dict[str, Any] = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 1,
    "vocab_size": 32,
    "use_cache": False,
}
EXPERTS: dict[str, Any] = {
    "target_modules": ["q_proj"],
    "target_parameters": ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"],
}


def _mixtral() -> nn.Module:
    from transformers import MixtralConfig, MixtralForCausalLM

    return MixtralForCausalLM(MixtralConfig(num_local_experts=4, **SIZES))


def _qwen() -> nn.Module:
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    sizes = {"moe_intermediate_size": 12, "head_dim": 4, "num_experts": 4, "num_experts_per_tok": 2}
    return Qwen3MoeForCausalLM(Qwen3MoeConfig(**sizes, **SIZES))


def _kind(base: Any, config: str, **options: Any) -> Kind:
    import peft

    def make() -> nn.Module:
        adapter = getattr(peft, config)(r=2, task_type="CAUSAL_LM", **options)
        model: nn.Module = peft.get_peft_model(base(), adapter).float()  # as grouped products ask
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.requires_grad:  # halves of adapters begin with zeros
                    parameter.add_(0.1 * torch.randn_like(parameter))
        return model

    generator = torch.Generator().manual_seed(3)
    tokens = torch.randint(32, (3, 4, 8), generator=generator)
    batches = [(batch,) for batch in tokens]
    return Kind(make, batches, step=_step, optimizer=_optimizer, tolerance=TOLERANCE[torch.float32])


def _step(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    logits: torch.Tensor = model(tokens).logits
    return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def _optimizer(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD([p for p in parameters if p.requires_grad], lr=0.5)


def lora_of_mixtral() -> Kind:
    return _kind(_mixtral, "LoraConfig", **EXPERTS)


def lora_of_qwen() -> Kind:
    return _kind(_qwen, "LoraConfig", **EXPERTS)


def loha() -> Kind:
    return _kind(_mixtral, "LoHaConfig", target_modules=["q_proj", "v_proj"])


def lokr() -> Kind:
    return _kind(_mixtral, "LoKrConfig", target_modules=["q_proj", "v_proj"])


@pytest.mark.parametrize("kind", ["lora_of_mixtral", "lora_of_qwen", "loha", "lokr"])
def test_adapters_train_as_in_one_process(kind: str) -> None:
    pytest.importorskip("peft")
    assert run_ranks(2, "tests.distributed.kinds:check", f"{HERE}:{kind}", 300) == [[]] * 2
