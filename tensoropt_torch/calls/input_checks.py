"""Whether ranks got the inputs that a plan says: the same global batch, or a share each.

What all ranks should have alike is compared at every call: by a number that travels with what
the ranks tell each other of the call anyway (``CallAgreement``).

::

    comparison = InputComparison(deferred=False)
    number = comparison.begin({"x": x})  # at each call, on every rank
    ...                                  # where the numbers of the ranks differ:
    comparison.check(exchange(comparison.take()))

On CPUs the number is that of the call itself, so that nothing has happened yet where it differs.
Where reading it would wait for the device it is that of the call before (``deferred``).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.runtime.agreement import gather
from tensoropt_torch.runtime.digests import combined, digest_of, digest_of_text

# What a rank tells of a call: its number, and the digests of inputs by their names.
Report = tuple[int, dict[str, int]]


@dataclass(frozen=True)
class _Digests:
    """Of the inputs of a call; those of tensors are there when ``ready`` has returned."""

    call: int
    texts: dict[str, int]
    names: tuple[str, ...]  # of tensors
    numbers: torch.Tensor
    ready: Callable[[], object]

    def by_name(self) -> dict[str, int]:
        """Waits for the device."""
        self.ready()
        return {**self.texts, **dict(zip(self.names, self.numbers.tolist(), strict=True))}


def is_compared(value: Any, is_shared_out: bool) -> bool:
    """Whether all ranks should have an input alike: numbers, and tensors that are whole. One
    without dims has no rows that could be shared out."""
    if isinstance(value, torch.Tensor):
        return not is_shared_out or value.dim() == 0
    return isinstance(value, int | float | complex)


class InputComparison:
    """The inputs that all ranks should have alike, call after call of one module.

    Args:
        deferred: what is compared in a call are the inputs of the one before.
    """

    def __init__(self, *, deferred: bool) -> None:
        self._deferred = deferred
        self._calls = 0
        self._compared: Report = (0, {})
        self._last: _Digests | None = None

    @property
    def calls(self) -> int:
        """How many were begun."""
        return self._calls

    def begin(self, inputs: Mapping[str, Any]) -> int:
        """A number below 2**62, to be compared; ranks whose inputs are alike have the same."""
        self._calls += 1
        now = _begun(self._calls, inputs)
        chosen, self._last = (self._last, now) if self._deferred else (now, None)
        self._compared = (0, {}) if chosen is None else (chosen.call, chosen.by_name())
        return combined(tuple(self._compared[1].values()))

    def take(self) -> list[Report]:
        """Of the calls whose inputs the ranks may not have alike, that of now included. They
        are compared once. Waits for the device."""
        reports = [self._compared]
        if self._last is not None:
            reports.append((self._last.call, self._last.by_name()))
            self._last = None
        return reports

    def check(self, taken: Sequence[Sequence[Report]]) -> None:
        """Raises TensorOptError, if what the ranks took differs."""
        for of_call in zip(*taken, strict=True):
            call, names = of_call[0]
            later = "" if call == self._calls else ", which is found out a call later"
            check_alike([digests for _, digests in of_call], names, f" in call {call}{later}")


def check_alike(reports: Sequence[Mapping[str, int]], names: Iterable[str], where: str) -> None:
    """Raises TensorOptError, where the digests of an input differ between ranks."""
    for name in names:
        first = reports[0][name]
        other = next((rank for rank, r in enumerate(reports) if r.get(name) != first), None)
        if other is not None:
            raise TensorOptError(
                f"input '{name}' is not the same on rank 0 and on rank {other}{where}, but the "
                "plan was made for inputs that every rank gets whole (inputs='replicated'); give "
                "every rank the same global batch (a sampler without shards, equal seeds), or plan "
                "with inputs='sharded' and give each its own share"
            )


def check_inputs(
    names: Sequence[str],
    values: Sequence[Any],
    is_shared_out: Callable[[str], bool],
    call: int,
) -> None:
    """Compares all inputs that the ranks of the job got in a call. Collective; waits.

    Raises:
        TensorOptError: on every rank; an input that all should have alike differs.
    """
    tensors = {
        name: value
        for name, value in zip(names, values, strict=True)
        if isinstance(value, torch.Tensor)
    }
    reports = gather(_begun(call, tensors).by_name())
    if len(reports) == 1:
        return
    shares = [name for name in tensors if not is_compared(tensors[name], is_shared_out(name))]
    alike = [name for name in tensors if name not in shares]
    check_alike(reports, alike, f" in call {call}")
    if shares and all(len({r[name] for r in reports}) == 1 for name in shares):
        warnings.warn(
            f"all ranks got equal inputs ({', '.join(shares)}), but the plan was made for a share "
            "of the batch on each (inputs='sharded'): give each rank other samples, as "
            "DistributedSampler does, or plan with inputs='replicated'",
            stacklevel=2,
        )


def _begun(call: int, inputs: Mapping[str, Any]) -> _Digests:
    """Digests on their way to the CPU."""
    tensors = {name: value for name, value in inputs.items() if _has_words(value)}
    texts = {
        name: digest_of_text(f"{type(value).__name__} {value!r}")
        for name, value in inputs.items()
        if name not in tensors
    }
    digests = [digest_of(value) for value in tensors.values()]
    stacked = torch.stack(digests) if digests else torch.empty(0, dtype=torch.int64)
    numbers, ready = _on_cpu(stacked)
    return _Digests(call, texts, tuple(tensors), numbers, ready)


def _has_words(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.layout is torch.strided


def _on_cpu(numbers: torch.Tensor) -> tuple[torch.Tensor, Callable[[], object]]:
    """A copy under way, and what waits for it."""
    if numbers.device.type == "cpu":
        return numbers, lambda: None
    copy = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
    copy.copy_(numbers, non_blocking=True)
    event = torch.Event(numbers.device)
    event.record(torch.accelerator.current_stream(numbers.device))
    return copy, event.synchronize
