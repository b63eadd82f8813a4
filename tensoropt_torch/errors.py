"""The error that TensorOpt raises for mistakes of its user, and what its messages share."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence


class TensorOptError(ValueError):
    """A mistake that the user can correct.

    The message names the thing at fault, what was got, what is allowed and what
    to try. Bugs of TensorOpt itself are never reported by this class.
    """


def close_match(word: str, allowed: Iterable[str]) -> str:
    """``did you mean '...'? `` for a word that resembles an allowed one, else nothing."""
    matches = difflib.get_close_matches(word, list(allowed), n=1)
    return f"did you mean '{matches[0]}'? " if matches else ""


def check_choice(what: str, value: object, allowed: Sequence[str]) -> None:
    """Raises TensorOptError if the value of ``what`` is none of those allowed."""
    if value not in allowed:
        raise TensorOptError(
            f"{what}={value!r} is not known; {close_match(str(value), allowed)}"
            f"choose one of {', '.join(allowed)}"
        )
