"""The plan that an earlier job has kept, for all ranks of this one."""

from __future__ import annotations

from tensoropt_torch.logs import get_logger
from tensoropt_torch.measure.kept.plans import KeptPlans
from tensoropt_torch.plan import Plan, StagedPlan
from tensoropt_torch.runtime.agreement import from_first_rank
from tensoropt_torch.units import format_duration

log = get_logger(__name__)


def taken(file: KeptPlans) -> Plan | StagedPlan | None:
    """That which the first rank finds, which the log tells. Collective."""
    found = from_first_rank(lambda: (file.load(),))[0]
    if found is None:
        return None
    log.info(
        "taken from '%s', where it was kept %s ago, so that nothing is searched or run: %r; "
        "measuring=MeasureOptions(fresh=True) measures and plans again",
        found.path,
        format_duration(found.age_s),
        found.plan,
    )
    return found.plan
