"""Options that a public function has no use for: who gives one all the same would think that it has
been heeded, so it is refused.

``measure`` is in none of these: it asks for the costs of a running job, where there is one.
"""

from __future__ import annotations

from collections.abc import Mapping

from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.tasks.options import PlanningOptions

# By option: what the function does not do, and what to do instead.
Unused = Mapping[str, str]

_OF_JOBS = "; leave it out, and give it to find_strategy or auto_parallel in a job"
RUNS_NOTHING: Unused = {
    "validate": f"runs no strategies{_OF_JOBS}",
    "measuring": f"measures nothing{_OF_JOBS}",
}
SEARCHES_NOTHING: Unused = {
    "max_stages": "looks at no stages; leave it out, or give the devices of one as num_devices",
    "max_micro_batches": (
        "looks at the batch as a whole; leave it out, or give inputs of one micro-batch"
    ),
    "memory": "picks nothing by memory; leave it out",
    "search": "searches nothing; leave it out",
}
RUNS_RANDOM_STRATEGIES: Unused = {
    "max_stages": "runs random strategies, which have no stages; leave it out",
    "validate": "takes what to run as options=ValidationOptions(...); leave it out",
    "memory": (
        "compares sums and simulated peaks with what is measured; leave it out, and the peaks by "
        "options=ValidationOptions(simulate=False)"
    ),
    "search": "runs random strategies and searches for none; leave it out",
}
ADVISES: Unused = {
    **RUNS_NOTHING,
    "cluster": "takes kinds and presets of machines as machines=; leave it out",
    "max_stages": (
        "looks at no stages; leave it out, and ask find_frontier for them on the machine that is "
        "chosen"
    ),
}


def check_unused(function: str, planning: PlanningOptions, *unused: Unused) -> None:
    """Raises TensorOptError if an option without use has another value than by default."""
    default = PlanningOptions()
    for name, why in (item for several in unused for item in several.items()):
        value = getattr(planning, name)
        if value != getattr(default, name):
            raise TensorOptError(f"{name}={value!r} is not for {function}(), which {why}")
