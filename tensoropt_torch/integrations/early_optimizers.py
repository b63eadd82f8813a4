"""Optimizers that were made before their model was split."""

from __future__ import annotations

from torch import nn
from torch.optim import Optimizer

from tensoropt_torch.errors import TensorOptError


def use_parameters_of(parallel: nn.Module, model: nn.Module, optimizer: Optimizer) -> None:
    """The optimizer updates the parameters of ``parallel`` in place of those of ``model``
    that have the same names.

    Raises:
        TensorOptError: it has made steps already, or has parameters of something else.
    """
    own = dict(parallel.named_parameters(remove_duplicate=False))
    split = {id(p): own[n] for n, p in model.named_parameters(remove_duplicate=False) if n in own}
    split |= {id(p): p for p in own.values()}
    given = [p for group in optimizer.param_groups for p in group["params"]]
    unknown = sum(id(p) not in split for p in given)
    if unknown or optimizer.state:
        what = f"has {unknown} parameters of another model" if unknown else "has made steps already"
        raise TensorOptError(
            f"the optimizer {what}; make it anew, of the parameters of the model that is trained"
        )
    for group in optimizer.param_groups:
        group["params"] = [split[id(p)] for p in group["params"]]
