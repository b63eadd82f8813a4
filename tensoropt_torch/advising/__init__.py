"""What a team asks before it rents machines: what fits, how long training takes, what it costs, and
what others would do there."""

from tensoropt_torch.advising.advice import Advice
from tensoropt_torch.advising.advise import MOST_MICRO_BATCHES, Asked, Beside, Machine, advise
from tensoropt_torch.advising.rows import OURS, Price
from tensoropt_torch.advising.work import work_of

__all__ = [
    "MOST_MICRO_BATCHES",
    "OURS",
    "Advice",
    "Asked",
    "Beside",
    "Machine",
    "Price",
    "advise",
    "work_of",
]
