"""What pages and pictures need besides the package's own dependencies."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tensoropt_torch.errors import TensorOptError


@contextmanager
def needed_for(what: str) -> Iterator[None]:
    """Inside, imports of packages that the user may not have.

    Raises:
        TensorOptError: one is missing; says what needs it and how to install it.
    """
    try:
        yield
    except ImportError as error:
        raise TensorOptError(
            f"{what} needs the package '{error.name}', which cannot be imported ({error}); "
            "install what reports need: pip install jinja2 matplotlib (the extra 'report')"
        ) from error
