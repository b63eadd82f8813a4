"""What a strategy chooses, by names that mean the same in every strategy space that has them."""

from __future__ import annotations

from dataclasses import dataclass

from tensoropt_torch import _C
from tensoropt_torch.config.records import Record


@dataclass(frozen=True)
class Choices(Record):
    """A strategy without its costs.

    Attributes:
        configs: how operators, parameters and values with several consumers are split, as
            labels such as ``b0,n``, by their names in the strategy space.
        edges: what is kept, held and summed where a value goes to a consumer, such as
            ``before, held``, by edge, such as ``wte.weight -> embedding[0]``; edges on which
            nothing is are left out.
    """

    configs: dict[str, str]
    edges: dict[str, str]

    @staticmethod
    def of(planner: _C.Planner, strategy: _C.Strategy) -> Choices:
        """Those of a strategy in a space."""
        return Choices(*planner.choices(strategy))

    def strategy(self, planner: _C.Planner) -> _C.Strategy:
        """The same in a space, which may number its configs otherwise.

        Raises:
            TensorOptError: the space does not have it.
        """
        strategy: _C.Strategy = planner.strategy(self.configs, self.edges)
        return strategy
