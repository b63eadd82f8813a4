"""What is found out about one family: is the graph that is captured the module?"""

from __future__ import annotations

import copy
import time
import traceback
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
import transformers
from torch import nn
from torch.utils import _pytree as pytree

from benchmarks.coverage.bits import loss_of, run_captured
from benchmarks.coverage.zoo import Example
from benchmarks.families.configs import small_config
from benchmarks.families.heads import families
from benchmarks.families.inputs import likely_inputs
from tensoropt_torch import TensorOptError
from tensoropt_torch.frontend import CapturedModel, capture
from tests.distributed.scales import moved

MAX_PARAMETERS = 30_000_000
HEADS = 3  # so many classes of a family are tried
# Of a tensor's own scale. All computes in float32.
TOLERANCE = 1e-4

Record = dict[str, Any]


class NotBuiltError(Exception):
    """A family that this sweep has no small model or no inputs for."""


def study(family: str) -> Record:
    """The verdict on a family with its reasons, as plain data."""
    start = time.perf_counter()
    try:
        task, head, example = build(family)
    except NotBuiltError as error:
        return {"verdict": "not built", "why": str(error)}
    record = {"task": task, "head": head, "loss": "outputs" if example.loss_fn else "own"}
    record |= compare(example)
    return {**record, "seconds": round(time.perf_counter() - start, 1)}


def build(family: str) -> tuple[str, str, Example]:
    """Task, name of the class and one training step.

    Raises:
        NotBuiltError: with what each class said.
    """
    said: list[str] = []
    for task, head in families()[family][:HEADS]:
        try:
            return task, head, _example(family, task, head)
        except NotBuiltError as error:
            said.append(f"{head}: {error}")
    raise NotBuiltError("; ".join(said))


def _example(family: str, task: str, head: str) -> Example:
    try:
        config = small_config(family)
        kind = getattr(transformers, head)
        if not isinstance(config, kind.config_class):
            config = config.get_text_config(decoder=True)
        if task == "CAUSAL_LM":
            config.is_decoder = True
        if config.is_encoder_decoder and getattr(config, "decoder_start_token_id", None) is None:
            config.decoder_start_token_id = 0
        torch.manual_seed(0)
        model = _small(kind, config)
    except NotBuiltError:
        raise
    except Exception as error:
        raise NotBuiltError(_said(error)) from error
    return _with_inputs(model, task)


def _small(kind: Callable[[Any], nn.Module], config: Any) -> nn.Module:
    with torch.device("meta"):
        count = sum(p.numel() for p in kind(config).parameters())
    if count > MAX_PARAMETERS:
        raise NotBuiltError(f"{count / 1e6:.0f} million parameters")
    if hasattr(config, "use_cache"):
        config.use_cache = False
    return kind(config).train()


def _with_inputs(model: nn.Module, task: str) -> Example:
    said = "no inputs for it"
    without_loss: Example | None = None
    torch.manual_seed(1)
    for number, inputs in enumerate(likely_inputs(model, task)):
        try:
            output = copy.deepcopy(model)(**inputs)  # some keep what they computed
        except Exception as error:
            said = said if number else _said(error)
            continue
        if _loss(output) is not None:
            return Example(model, kwargs=inputs)
        if without_loss is None and sum_of_outputs(output).requires_grad:
            without_loss = Example(model, kwargs=inputs, loss_fn=sum_of_outputs)
    if without_loss is None:
        raise NotBuiltError(said)
    return without_loss


def _loss(output: Any) -> torch.Tensor | None:
    loss = output.get("loss") if isinstance(output, Mapping) else None
    fits = isinstance(loss, torch.Tensor) and loss.requires_grad and loss.numel() == 1
    return loss if fits and bool(torch.isfinite(loss)) else None


def sum_of_outputs(output: Any) -> torch.Tensor:
    """A loss of a class that has none: squares of all that it gives."""
    leaves = [v for v in pytree.tree_leaves(output) if isinstance(v, torch.Tensor)]
    squares = [v.square().mean() for v in leaves if v.is_floating_point() and v.requires_grad]
    return torch.stack(squares).sum() if squares else torch.zeros(())


def compare(example: Example) -> Record:
    """The verdict: equal, refused or different."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            captured = capture(example.model, example.args, **example.keywords)
    except TensorOptError as error:
        return {"verdict": "refused", "why": str(error)}
    except Exception as error:
        return {"verdict": "crashed", "why": _said(error) + " | " + traceback.format_exc()[-600:]}
    module = moved(lambda model: _step(_of(example, model)), example.model, TOLERANCE)
    try:
        got = _step(example, captured)
    except Exception as error:
        return {"verdict": "crashed", "why": "in a step: " + _said(error)}
    wrong = list(module.differences(got))
    bits = not wrong and all(torch.equal(got[name], v) for name, v in module.values.items())
    return {
        "verdict": "different" if wrong else "equal",
        "operators": captured.num_calls,
        "same_bits": bits,
        "wrong": wrong[:20],
    }


def _of(example: Example, model: nn.Module) -> Example:
    return replace(example, model=model)


def _step(example: Example, captured: CapturedModel | None = None) -> dict[str, torch.Tensor]:
    """Loss, gradients and buffers of a step of the module, or of the graph."""
    torch.manual_seed(0)
    output = example.output() if captured is None else run_captured(captured, example)
    loss = loss_of(output)
    loss.backward()
    values = {"loss": loss.detach()}
    for name, parameter in example.model.named_parameters():
        if parameter.grad is not None:
            values[f"gradient of {name}"] = parameter.grad
    return values | {f"buffer {name}": b.clone() for name, b in example.model.named_buffers()}


def _said(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}"
