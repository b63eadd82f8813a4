"""What a strategy chooses, in words that mean the same in every strategy space that has them."""

from __future__ import annotations

from dataclasses import dataclass

from tensoropt_torch import _C
from tensoropt_torch.config.records import Record
from tensoropt_torch.errors import TensorOptError


@dataclass(frozen=True)
class Choices(Record):
    """A strategy without its costs. Names are for readers: they depend on how the model was
    captured, and may differ between ranks.

    Attributes:
        configs: how operators, parameters and values with several consumers are split, in the
            order of the strategy space, as (name, label) such as ``("fc.linear", "b0,n")``.
        edges: what is kept, held and summed where a value goes to a consumer, as (number, name,
            words) such as ``(3, "wte.weight -> embedding[0]", "before, held")``; edges on which
            nothing is are left out.
    """

    configs: tuple[tuple[str, str], ...]
    edges: tuple[tuple[int, str, str], ...]

    @staticmethod
    def of(space: _C.SearchSpace, strategy: _C.Strategy) -> Choices:
        """The choices of a strategy in a space."""
        configs, edges = space.choices(strategy)
        return Choices(tuple(configs), tuple(edges))

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels of the configs, in the order of the strategy space."""
        return tuple(label for _, label in self.configs)

    @property
    def kept(self) -> tuple[tuple[int, str], ...]:
        """The words of edges, by number."""
        return tuple((number, words) for number, _, words in self.edges)

    def strategy(self, space: _C.SearchSpace, *, check: bool = False) -> _C.Strategy:
        """The same in a space, which may number its configs otherwise. ``check`` looks at all
        values on their way to consumers, which takes longer than the rest.

        Raises:
            TensorOptError: the space does not have it.
        """
        kept = {_C.SpaceEdgeId(number): words for number, words in self.kept}
        try:
            strategy = space.strategy(self.labels, kept)
            if check:
                space.check_edges(strategy)
        except TensorOptError as error:
            raise TensorOptError(
                f"the plan does not fit the strategies of this model: {error}; it was made by "
                "another version of tensoropt_torch or changed by hand: plan again"
            ) from error
        return strategy
