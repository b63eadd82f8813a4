"""What a team asks before it rents machines: what fits, how long training takes, what it costs, and
what others would do there."""

from tensoropt_torch.advising.advice import Advice
from tensoropt_torch.advising.advise import MOST_MICRO_BATCHES, Asked, Beside, Machine, advise
from tensoropt_torch.advising.rows import OURS, AdviceRow, Price
from tensoropt_torch.advising.work import Work, work_of

__all__ = [
    "MOST_MICRO_BATCHES",
    "OURS",
    "Advice",
    "AdviceRow",
    "Asked",
    "Beside",
    "Machine",
    "Price",
    "Work",
    "advise",
    "work_of",
]
