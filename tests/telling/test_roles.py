"""Roles of modules, of splits that were made up."""

from __future__ import annotations

import pytest

from tensoropt_torch.telling.roles import Role, roles_of

SIZES = (2, 2, 3)


def test_modules_that_are_split_alike_share_a_line() -> None:
    work = [
        ("layers.0.up.linear", ("batch", "features", "none"), 40.0),
        ("layers.1.up.linear_1", ("batch", "features", "none"), 40.0),
        ("layers.1.up.view", ("batch", "batch", "batch"), 0.0),  # of one module the most work
        ("layers.0.attention.sdpa", ("batch", "batch", "none"), 0.4),
        ("layers.1.attention.sdpa", ("batch", "batch", "none"), 0.4),
        ("add", ("batch", "batch", "none"), 0.0),  # nobody asks for this
        ("head.linear", ("features", "features", "features"), 19.2),
    ]
    stored = [
        ("layers.0.up.weight", "S0,S1,S0", 8.0),
        ("layers.0.up.bias", "R,R,R", 1.0),
        ("layers.1.up.weight", "S0,S1,S0", 8.0),
        ("head.weight", "R,R,R", 9.0),
    ]
    up, head, attention = roles_of(work, stored, SIZES)
    assert up == Role(
        {"layers.*.up": 2}, {"batch": 2, "features": 2}, "S0,S1,S0", pytest.approx(0.8)
    )
    assert up.work_in_words() == "batch over 2, features over 2"
    assert up.storage_in_words(SIZES) == "rows 6 ways, columns 2 ways"
    assert head.work_in_words() == "features over 12"
    assert head.storage_in_words(SIZES) == "whole on each device"
    assert attention == Role({"layers.*.attention": 2}, {"batch": 4}, "", pytest.approx(0.008))
    assert attention.storage_in_words(SIZES) == "none"


def test_alike_modules_that_are_split_otherwise_have_a_line_each() -> None:
    work = [
        ("a.0.op", ("batch",), 1.0),
        ("a.1.op", ("features",), 3.0),
        ("a.2.op", ("batch",), 1.0),
    ]
    first, second = roles_of(work, [], (2,))
    assert (first.names, first.share) == ({"a.*": 1}, pytest.approx(0.6))
    assert (second.names, second.parts) == ({"a.*": 2}, {"batch": 2})
