"""Files of measurements that hold under some conditions only: one file for each."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from tensoropt_torch.config.records import Record
from tensoropt_torch.measure.kept.files import check_owner, home, write_atomically
from tensoropt_torch.measure.kept.sealed import SealedFormat

R = TypeVar("R", bound=Record)


class ConditionedFile:
    """A file of the user's folder of measurements.

    Args:
        folder: its folder there.
        kind: what it is.
        conditions: plain data that is equal for equal conditions only.
    """

    def __init__(self, folder: str, kind: SealedFormat, conditions: Mapping[str, Any]) -> None:
        text = json.dumps(conditions, sort_keys=True)
        self._kind = kind
        self._digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        self.path: Path = home() / folder / f"{self._digest}.json"

    def read_as(self, kind: type[R]) -> R | None:
        """The content as a record; None if there is no file.

        Raises:
            TensorOptError: the file is damaged, of another version or conditions, its content is
                no such record, or it is another user's; the message names the file.
        """
        if not self.path.exists():
            return None
        check_owner(self.path)
        where, content = f"'{self.path}'", dict(self._kind.read(self.path))
        conditions = content.pop("conditions", None)
        if conditions != self._digest:
            raise self._kind.damaged(where, f"it is of other conditions ({conditions})")
        return self._kind.as_record(kind, content, where)

    def write(self, content: Mapping[str, Any]) -> None:
        """Replaces the file, at once or not at all.

        Raises:
            TensorOptError: it cannot be written.
        """
        sealed = self._kind.seal({"conditions": self._digest, **content})
        write_atomically(self.path, sealed)
