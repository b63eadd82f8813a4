"""Constraints as they are written, and which configs they allow."""

from __future__ import annotations

from typing import Any

import pytest
from torch.distributed.tensor import Partial, Replicate, Shard

from tensoropt_torch import PlanningOptions, TensorOptError
from tensoropt_torch.space.constraints import Constraint, constraints_of


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Shard(0), "S0"),
        (Replicate(), "R"),
        ((Shard(1), Replicate()), "S1,R"),
        ("S0, R", "S0,R"),
        (["*", Shard(0)], "*,S0"),
        ("h", "h"),
        ("b0,-", "b0,-"),
        ("whole", "whole"),
    ],
)
def test_a_value_becomes_text(value: Any, text: str) -> None:
    assert constraints_of({"x": value}, None) == (Constraint("pin", "x", text),)


@pytest.mark.parametrize(
    ("kind", "value", "allowed", "refused"),
    [
        ("pin", "S0", ["S0,S0"], ["S0,R", "S1,S0", "R,R"]),
        ("pin", "S0,*", ["S0,S0", "S0,R"], ["R,S0"]),
        ("pin", "S0,R", ["S0,R"], ["S0,S0", "R,S0"]),
        ("pin", "S0,R,R", [], ["S0,R"]),
        ("pin", "whole", ["R,R", "-,-", "+0,-"], ["S0,R", "b,-"]),
        ("pin", "n", ["n,-", "b,n", "n,n"], ["b,-", "b,b"]),
        ("pin", "-,n", ["-,n"], ["b,n", "n,n"]),
        ("forbid", "S0", ["S1,R", "R,R"], ["S0,R", "S1,S0"]),
        ("forbid", "S0,S1", ["R,R"], ["S0,R", "R,S1"]),
        ("forbid", "R", ["S0,R"], ["R,R"]),
        ("forbid", "whole", ["b,-"], ["-,-", "+0,-"]),
        ("forbid", "n,whole", ["b,-"], ["-,-", "n,b"]),
    ],
)
def test_says_which_configs_may_be_taken(
    kind: Any, value: str, allowed: list[str], refused: list[str]
) -> None:
    constraint = Constraint(kind, "x", value)
    assert [constraint.allows(config.split(",")) for config in allowed] == [True] * len(allowed)
    assert [constraint.allows(config.split(",")) for config in refused] == [False] * len(refused)


@pytest.mark.parametrize(
    ("keywords", "words"),
    [
        ({"pin": "embed.weight"}, "pin = 'embed.weight' is not allowed"),
        ({"pin": {3: "S0"}}, "pin names 3, which is no pattern"),
        ({"pin": {"w": Partial()}}, "pin 'w' = Partial"),
        ({"pin": {"w": ()}}, "pin 'w' = ()"),
        ({"pin": {"w": "*"}}, "pin 'w' = '*'"),
        ({"pin": {"w": "S0,n"}}, "pin 'w' = 'S0,n'"),
        ({"pin": {"w": "S0;R"}}, "pin 'w' = 'S0;R'"),
        ({"forbid": {"w": "S0,*"}}, "forbid 'w' = 'S0,*'"),
        ({"forbid": {"w": Shard(-1)}}, "forbid 'w' = Shard(dim=-1)"),
    ],
)
def test_what_is_no_constraint_is_named(keywords: dict[str, Any], words: str) -> None:
    with pytest.raises(TensorOptError) as raised:
        PlanningOptions(**keywords)
    assert words in str(raised.value)
