"""The package's checker of rules, for the cases of the tests."""

from collections.abc import Sequence

from tensoropt_torch.rules import bench
from tensoropt_torch.rules.bench import PortLayouts, RuleError
from tensoropt_torch.rules.call import OpCall
from tests.rules.case import Case
from tests.rules.references import REFERENCES

__all__ = ["Bench", "PortLayouts", "RuleError"]


class Bench(bench.Bench):
    """One case on one mesh, with all its configs."""

    def __init__(self, case: Case, sizes: Sequence[int]) -> None:
        args, kwargs = case.draw()
        call = OpCall(
            case.overload,
            args,
            kwargs,
            str(case),
            case.tolerance,
            checks=case.checks,
            used=case.used,
        )
        super().__init__(call, sizes, REFERENCES)
