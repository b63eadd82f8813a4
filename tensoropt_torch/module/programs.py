"""What calls of a parallel module run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch

from tensoropt_torch.calls.call_kind import flatten
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.frontend.call_context import autocast_off, current_autocast
from tensoropt_torch.frontend.python_calls import run_by
from tensoropt_torch.module.attempts import Attempt
from tensoropt_torch.module.executor import Executor
from tensoropt_torch.module.storage import ModuleStorage
from tensoropt_torch.module.variant import Variant
from tensoropt_torch.module.variants import VariantCall, Variants
from tensoropt_torch.plan import VariantStrategy
from tensoropt_torch.runtime.agreement import DifferentCallsError


class ModulePrograms:
    """The variants of a model, and what runs their steps on a storage.

    Attributes:
        base: the variant of the plan.
        seeds: what the seeds of steps are drawn from, if any.
        variants: what other calls run; None: there is only the base.
        executor: runs the steps, by default as they are.
    """

    def __init__(
        self,
        base: Variant,
        storage: ModuleStorage,
        seeds: torch.Generator | None = None,
        variants: Variants | None = None,
        executor: Executor | None = None,
    ) -> None:
        self.base = base
        self.seeds = seeds
        self.variants = variants
        self.executor = executor or Executor(storage.parameters)
        self._storage = storage
        self._frozen = [(n, p) for n, p in storage.named_parameters() if not p.requires_grad]

    @property
    def strategies(self) -> tuple[VariantStrategy, ...]:
        """The strategies of the variants made so far, but the plan's."""
        return () if self.variants is None else self.variants.strategies

    def call(
        self,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        *,
        reduces: bool,
        averages: bool,
        attempt: Attempt | None = None,
    ) -> Any:
        """What the model returns. Collective.

        Args:
            args, kwargs: as the module is called.
            reduces: gradients get the layouts of their parameters.
            averages: the losses of ranks count as ``ParallelModule.averages_losses`` says.
            attempt: the call may be undone.
        """
        if self.variants is None:
            found = VariantCall(self.base, self._inputs_of_base(args, kwargs))
            return self._run(found, reduces, averages, attempt)
        steps = self._storage.steps
        mark = f", after {steps} steps of optimizers" if steps else ""
        if not reduces:
            mark += ", without gradient synchronisation"
        found = self.variants.find(args, kwargs, mark)
        try:
            return self._run(found, reduces, averages, attempt)
        except DifferentCallsError:
            del found  # with its inputs; what follows is no part of handling this
            if attempt is not None:
                attempt.cancel()
        found = self.variants.find_differing(args, kwargs, mark)
        return self._run(found, reduces, averages, attempt)

    def _run(
        self, found: VariantCall, reduces: bool, averages: bool, attempt: Attempt | None
    ) -> Any:
        step = partial(self.executor.run, reduces=reduces)
        if attempt is not None:
            step = partial(step, attempt=attempt)
        # The casts are in the graph.
        with autocast_off(current_autocast()), run_by(self._storage.root):
            if self.seeds is None or not found.variant.uses_seeds:
                return found.run(0, step, averages, attempt is not None)
            before = self.seeds.get_state()
            try:
                seed = torch.randint(2**62, (), generator=self.seeds)
                return found.run(int(seed), step, averages, attempt is not None)
            except DifferentCallsError:
                self.seeds.set_state(before)
                raise

    def _inputs_of_base(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Sequence[Any]:
        self._check_frozen()
        values, spec = flatten(args, kwargs)
        expected = self.base.captured.in_spec
        if spec != expected:
            raise TensorOptError(
                f"the model was captured with inputs {expected}, called with {spec}; "
                "call it as in the example inputs"
            )
        return values

    def _check_frozen(self) -> None:
        """Those of the capture: the plan has no way for their gradients."""
        if torch.is_grad_enabled():
            for name, parameter in self._frozen:
                if parameter.requires_grad:
                    raise TensorOptError(
                        f"parameter '{name}' was frozen when the model was captured, so the plan "
                        "sends no gradient to it, but its requires_grad is True now; freeze it "
                        "again by requires_grad_(False), or let the module make variants"
                    )
