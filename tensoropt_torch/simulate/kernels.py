"""What kernels allocate inside, where it matters on CPUs: for what ATen and Gloo
compute by way of copies there are formulas, what oneDNN takes is measured.

Workspaces of oneDNN depend on the processor, in ways of its own; but they are nearly
linear in the size of the batch. So its kernels run on small batches when the step is
over, once for each shape; then figures are put in the ledger.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._ops import OpOverload

from tensoropt_torch.frontend.lowering import arguments_by_name
from tensoropt_torch.simulate.ledger import Ledger
from tensoropt_torch.simulate.onednn import KernelCall, measured_bytes

Arguments = Mapping[str, Any]


def _tensor_bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.itemsize


def _loss(copies: int) -> Callable[[Arguments], int]:
    """A loss that is reduced is computed for every element first."""

    def workspace(arguments: Arguments) -> int:
        return copies * _tensor_bytes(arguments["self"]) if arguments["reduction"] else 0

    return workspace


def _copies(name: str, count: int) -> Callable[[Arguments], int]:
    """The bytes of as many copies of an operand."""
    return lambda arguments: count * _tensor_bytes(arguments[name])


def _contiguous_copy(name: str) -> Callable[[Arguments], int]:
    def workspace(arguments: Arguments) -> int:
        tensor: torch.Tensor = arguments[name]
        return 0 if tensor.is_contiguous() else _tensor_bytes(tensor)

    return workspace


def _not_last_dim(name: str) -> Callable[[Arguments], int]:
    def workspace(arguments: Arguments) -> int:
        tensor: torch.Tensor = arguments[name]
        return 0 if arguments["dim"] % tensor.dim() == tensor.dim() - 1 else _tensor_bytes(tensor)

    return workspace


def _batch_norm_backward(arguments: Arguments) -> int:
    """A copy, where there is a gradient of the input."""
    return _tensor_bytes(arguments["input"]) if arguments["output_mask"][0] else 0


def _attention_tiles(query_length: int, key_length: int) -> tuple[int, int]:
    """The tile of scores that a thread holds: positions of queries and of keys."""
    rows = 256 if query_length >= 768 else 64 if query_length >= 192 else 32
    return min(rows, query_length), min(512, key_length)


def _attention(arguments: Arguments) -> int:
    """Each thread has a tile of scores, its maxima and sums, and its result."""
    query, key = arguments["query"], arguments["key"]
    rows, columns = _attention_tiles(query.shape[2], key.shape[2])
    return torch.get_num_threads() * 4 * rows * (columns + 2 + int(query.shape[3]))


def _attention_backward(arguments: Arguments) -> int:
    """Each thread has tiles of scores and of their gradients, and sums."""
    query, key = arguments["query"], arguments["key"]
    rows, columns = _attention_tiles(query.shape[2], key.shape[2])
    return torch.get_num_threads() * 4 * rows * (2 * columns + 1)


# Bytes of a call's workspace from its arguments by name, as measured on CPUs.
_FORMULAS: Mapping[str, Callable[[Arguments], int]] = {
    "aten::mse_loss": _loss(1),
    "aten::smooth_l1_loss": _loss(1),
    "aten::huber_loss": _loss(1),
    "aten::binary_cross_entropy_with_logits": _loss(2),
    "aten::logsumexp": _copies("self", 1),
    "aten::native_batch_norm_backward": _batch_norm_backward,
    "aten::native_group_norm_backward": _copies("input", 2),
    "aten::embedding_dense_backward": _contiguous_copy("grad_output"),
    "aten::_softmax_backward_data": _not_last_dim("grad_output"),
    "aten::_scaled_dot_product_flash_attention_for_cpu": _attention,
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward,
    # Gloo makes a tensor like the result, which is gone when the call returns.
    "c10d::_allgather_base_": lambda arguments: _tensor_bytes(arguments["output_tensor"]),
}

# Bytes that the work of a collective of Gloo's holds as long as it lives: it reduces a copy
# of all parts.
_HELD_BY_WORK: Mapping[str, Callable[[Arguments], int]] = {
    "c10d::_reduce_scatter_base_": lambda arguments: _tensor_bytes(arguments["input_tensor"]),
}


# Outputs whose memory is larger than they are: the loss of every element, where the
# reduced one stays.
_OUTPUTS: Mapping[str, Callable[[Arguments], int]] = {
    "aten::mse_loss": _loss(1),
    "aten::smooth_l1_loss": _loss(1),
}


@dataclass(frozen=True)
class _Pending:
    """A workspace that is in the ledger with no bytes yet."""

    call: KernelCall
    numbers: tuple[int, ...]  # of allocations: the workspace, then saved outputs


class Workspaces:
    """Puts the workspaces of a step's kernels into a ledger.

    Args:
        device: the type of device; on others than CPUs none are known.
        measure: whether kernels of oneDNN may run.
        gloo: whether collectives take what those of Gloo take on CPUs.

    """

    def __init__(self, device: str, measure: bool, gloo: bool = True) -> None:
        self._on_cpu = device == "cpu"
        self._measure = measure
        self._gloo = gloo
        self._pending: list[_Pending] = []
        self._unknown: set[str] = set()

    def output_bytes(
        self, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> int | None:
        """Bytes of a kernel's first output where they are more than its elements."""
        formula = _OUTPUTS.get(func._schema.name) if self._on_cpu else None
        return formula(arguments_by_name(func, args, kwargs)) or None if formula else None

    def note(
        self, ledger: Ledger, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> None:
        """A kernel has run, or a collective was called; its outputs are in the ledger."""
        num_bytes = self._bytes_of(_FORMULAS, func, args, kwargs)
        if num_bytes > 0:
            ledger.free(ledger.allocate(num_bytes))

    def bytes_of_work(
        self, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> int:
        """What the work of a collective holds."""
        return self._bytes_of(_HELD_BY_WORK, func, args, kwargs)

    def _bytes_of(
        self,
        formulas: Mapping[str, Callable[[Arguments], int]],
        func: OpOverload,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> int:
        formula = formulas.get(func._schema.name) if self._on_cpu else None
        if formula is None or (func.namespace == "c10d" and not self._gloo):
            return 0
        return formula(arguments_by_name(func, args, kwargs))

    def note_measured(
        self, ledger: Ledger, func: OpOverload, args: Sequence[Any], saved: Sequence[int]
    ) -> None:
        """As ``note``, of a kernel whose workspace has to be measured; ``saved`` are
        the allocations of those outputs whose sizes only oneDNN knows."""
        if not (self._on_cpu and self._measure):
            self._unknown.add(func._schema.name.removeprefix("aten::"))
            return
        number = ledger.allocate(0)
        ledger.free(number)
        self._pending.append(_Pending(KernelCall.of(func, args), (number, *saved)))

    def resolve(self, ledger: Ledger) -> list[str]:
        """Measures what is pending; returns the operators that stay unknown."""
        figures = measured_bytes({pending.call for pending in self._pending})
        for pending in self._pending:
            for number, num_bytes in zip(pending.numbers, figures[pending.call], strict=False):
                ledger.allocations[number].num_bytes = num_bytes
        self._pending.clear()
        return sorted(self._unknown)
