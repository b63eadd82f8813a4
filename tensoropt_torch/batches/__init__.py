"""A batch as micro-batches: the graph of one of them, by the rules of the operators."""

from tensoropt_torch.batches.micro_batches import BatchSplits, doubled, micro_batched
from tensoropt_torch.batches.value_rows import batch_rows

__all__ = ["BatchSplits", "batch_rows", "doubled", "micro_batched"]
