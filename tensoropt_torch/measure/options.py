"""How long a job measures for a plan."""

from __future__ import annotations

from dataclasses import dataclass

# Of the budget: for operators, for the device and collectives, and at most for plans that are
# run. The rest is for capturing, searching, and making modules.
OPERATOR_SHARE, PROFILE_SHARE, FINALISTS_SHARE = 0.165, 0.135, 0.45


@dataclass(frozen=True)
class MeasureOptions:
    """How long to measure for a plan.

    Attributes:
        max_bytes: the largest size of a collective, if there is no hardware profile.
        budget_s: seconds for planning, of which measuring gets what capture and search leave:
            for operators that are not in the user's operator profile; if there is no hardware
            profile, for the device and collectives; and for plans that are run.
        operators: whether operators are measured.
        random_strategies: whose operators are measured, besides those of the ends and
            the turning point of the frontier.
        rounds: how often the frontier is searched to find such operators.
        finalists: how many plans are run for some steps before the fastest of them is taken:
            what is predicted to be fastest, and known strategies that are predicted to take
            not much longer; and again, at most, by the costs that these correct. With 1
            predictions decide alone.
        fresh: plan again, and measure again what an earlier job has measured for a plan. A
            hardware profile stays.
    """

    max_bytes: int = 32 << 20
    budget_s: float = 60.0
    operators: bool = True
    random_strategies: int = 4
    rounds: int = 2
    finalists: int = 5
    fresh: bool = False

    @property
    def finalists_s(self) -> float:
        """Of the budget, for plans that are run."""
        return FINALISTS_SHARE * self.budget_s
