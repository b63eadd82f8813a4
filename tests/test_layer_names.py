"""Names of alike layers in few words."""

from __future__ import annotations

import pytest

from tensoropt_torch.layer_names import listed_names


@pytest.mark.parametrize(
    ("names", "listed"),
    [
        (["a.0.b", "a.1.b", "a.2.b"], "a.0.b to a.2.b"),
        (["a.3.b1", "a.4.b1", "a.5.b1"], "a.3.b1 to a.5.b1"),
        (["a.0.b", "a.2.b", "a.3.b"], "a.0.b, a.2.b, a.3.b"),
        (["a.0.l_1", "a.1.l_2", "a.2.l_3"], "a.0.l_1, a.1.l_2, a.2.l_3"),
        (["a.0", "a.1"], "a.0, a.1"),
        (["a", "b", "c"], "a, b, c"),
    ],
)
def test_names_that_count_up_are_told_by_their_ends(names: list[str], listed: str) -> None:
    assert listed_names(names) == listed
