"""Calls of the captured graph as a rank makes them: with their arguments and seeds, and what their
results are multiplied with."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, field

from tensoropt_torch.program.local_calls import CallSite, draws, invocation
from tensoropt_torch.program.records import AgreeOnDraws, Call, Operation, Record, Scale, Value
from tensoropt_torch.program.whole_draws import WholeDraws


@dataclass
class WrittenCalls:
    """Makes calls of operations.

    Attributes:
        site: where they are made; the seed of the step is a value.
        with_rule: the operators that have one.
        whole_draws: random operators draw what one process draws.
        random_calls: the number of the next that has a seed.
    """

    site: CallSite
    with_rule: Container[str]
    whole_draws: WholeDraws | None = None
    random_calls: int = 0
    _checks_draws: bool = field(default=False, init=False)

    def of(self, records: Sequence[Record]) -> list[Record]:
        """The records with calls in the place of operations."""
        found: list[Record] = []
        for record in records:
            found += self._made(record) if isinstance(record, Operation) else [record]
        return found

    def _made(self, record: Operation) -> list[Record]:
        form, result = record.form, record.result
        if form.scale == 1.0:
            return self._calls(record)
        unscaled = Operation(Value(), record.node, form, record.operands)
        scale = Scale(result, unscaled.result, form.scale, form.runs_again)
        return [*self._calls(unscaled), scale]

    def _calls(self, record: Operation) -> list[Record]:
        is_random = draws(record.node, record.form, self.with_rule)
        if not is_random or self.whole_draws is None:
            return [self._call(record, is_random)]
        found = self.whole_draws.call(record, self.site.device)
        if not self._checks_draws:
            self._checks_draws = True
            found.insert(0, AgreeOnDraws(self.site.device))
        return found

    def _call(self, record: Operation, is_random: bool) -> Call:
        form = record.form
        number = self.random_calls if is_random else None
        self.random_calls += is_random
        call = invocation(record.node, form, record.operands, self.site, number)
        return Call(
            record.result,
            call.function,
            call.args,
            call.kwargs,
            groups=tuple(self.site.group_name(axes) for axes in form.groups if axes),
            runs_again=form.runs_again,
            node=record.node,
            operands=record.operands,
            is_own=not form.target and form.scale == 1.0,
        )
