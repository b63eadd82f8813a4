"""How much is trained."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from tensoropt_torch.checks import check_number
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.planner.step_work import StepWork

Unit = Literal["tokens", "samples", "steps"]


@dataclass(frozen=True)
class Work:
    """So many tokens, samples (rows of the batch) or steps."""

    amount: float
    unit: Unit

    def steps(self, step: StepWork) -> float:
        """How many steps that takes.

        Raises:
            TensorOptError: it is in tokens, and the example has none.
        """
        if self.unit == "steps":
            return self.amount
        each = step.rows if self.unit == "samples" else step.tokens
        if not each:
            raise TensorOptError(
                f"a step has no {self.unit} that are known: the example has no batch of whole "
                "numbers (rows x tokens) among its inputs; give steps, or samples"
            )
        return self.amount / each

    def __str__(self) -> str:
        return f"{self.amount:,.0f} {self.unit}"


def work_of(tokens: float | None, samples: float | None, steps: float | None) -> Work:
    """What was asked for.

    Raises:
        TensorOptError: nothing, in two units, or without an end.
    """
    asked: list[tuple[Unit, float | None]]
    asked = [("tokens", tokens), ("samples", samples), ("steps", steps)]
    given = [Work(amount, unit) for unit, amount in asked if amount is not None]
    if len(given) != 1:
        got = " and ".join(work.unit for work in given) or "none of them"
        raise TensorOptError(
            f"give how much is trained in one of tokens, samples and steps; got {got}"
        )
    (work,) = given
    hint = "; give a number such as 100e9"
    check_number(work.unit, work.amount, hint=hint)
    if math.isinf(work.amount):
        raise TensorOptError(f"{work.unit} = {work.amount} is not allowed: nothing ends{hint}")
    return work
