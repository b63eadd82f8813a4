"""Writing what is sent together into the memory of a bucket, for compiled graphs.

An operator of its own, so that compilers neither wait with it nor fuse it with those of other
parts: the memory of a part is free right after it.

::

    write_into(bucket, part, rows, offset)   # call_function target of traced graphs
"""

from __future__ import annotations

from typing import Any

import torch

_LIBRARY: Any = torch.library.Library("tensoropt", "FRAGMENT")  # type: ignore[no-untyped-call]
_LIBRARY.define("write_into_(Tensor(a!) bucket, Tensor part, int rows, int offset) -> ()")


@torch.library.impl(_LIBRARY, "write_into_", "CompositeExplicitAutograd")
def _write_into(bucket: torch.Tensor, part: torch.Tensor, rows: int, offset: int) -> None:
    """``part``, as so many rows, into the columns of the bucket from ``offset`` on; the bucket has
    the same rows, one after the other."""
    own = part.reshape(rows, -1)
    bucket.view(rows, -1).narrow(1, offset, own.shape[1]).copy_(own)


write_into = torch.ops.tensoropt.write_into_.default
