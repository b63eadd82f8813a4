"""Texts that are nearly right, or not at all."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

NUMBERS = st.one_of(
    st.integers(), st.floats(), st.sampled_from([0, -1, 2**63, 2**64, 10**400, 1e308, 5e-324])
)
LEAVES = st.one_of(st.none(), st.booleans(), NUMBERS, st.text(max_size=20))
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=8,
)
STRANGE = st.sampled_from(
    [
        "",
        "null",
        "{",
        "[" * 100_000,
        '{"a":' * 50_000,
        "1" * 10_000,
        "NaN",
        '"\\ud800"',
        "\ufeff{}",
        "{}" * 3,
        "\x00",
        "a = " + "[" * 5000,
        "a = 1\na = 2",
        "= 3",
    ]
)


@st.composite
def changed_records(draw: st.DrawFn, record: Any) -> Any:
    """The record of JSON with up to three places changed: another value, none, one more."""
    made = copy.deepcopy(record)
    for _ in range(draw(st.integers(1, 3))):
        place = made
        while True:
            keys = list(place) if isinstance(place, dict) else list(range(len(place)))
            if not keys:
                break
            key = draw(st.sampled_from(keys))
            if isinstance(place[key], (dict, list)) and place[key] and draw(st.integers(0, 9)):
                place = place[key]
                continue
            change = draw(st.integers(0, 3))
            if change == 0:
                del place[key]
            elif change == 1 and isinstance(place, dict):
                place[draw(st.text(max_size=8))] = draw(VALUES)
            else:
                place[key] = draw(VALUES)
            break
    return made


@st.composite
def changed_bytes(draw: st.DrawFn, text: str) -> bytes:
    """The text with some bytes replaced, left out, doubled, or cut off."""
    data = bytearray(text.encode())
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(data)))
        end = min(len(data), start + draw(st.integers(0, 12)))
        change = draw(st.integers(0, 3))
        if change == 0:
            data[start:end] = draw(st.binary(max_size=12))
        elif change == 1:
            del data[start:end]
        elif change == 2:
            data[start:start] = data[start:end]
        else:
            del data[end:]
    return bytes(data)


def files(text: str, seal: Callable[[Any], str] = json.dumps) -> st.SearchStrategy[bytes]:
    """Contents of files like the one that is ``text``, some of them with right checksums."""
    record = json.loads(text)
    return st.one_of(
        st.binary(max_size=200),
        STRANGE.map(lambda strange: strange.encode(errors="surrogatepass")),
        changed_bytes(text),
        changed_records(record).map(lambda made: json.dumps(made).encode()),
        changed_records(record).map(lambda made: seal(made).encode()),
    )
