"""Files of measurements: JSON that says what it is, in which version, and carries a checksum,
so that one that was damaged is an error, which names it, and never another measurement."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from tensoropt_torch.config.records import Record, parse_record
from tensoropt_torch.errors import TensorOptError

R = TypeVar("R", bound=Record)


@dataclass(frozen=True)
class SealedFormat:
    """A kind of file.

    Attributes:
        name: what it is called, such as ``hardware profile``.
        version: of the content.
        again: what messages say to do, such as ``measure again``.
    """

    name: str
    version: int
    again: str

    @property
    def mark(self) -> str:
        """With which such a file begins."""
        return f"tensoropt {self.name}"

    def seal(self, content: Mapping[str, Any]) -> str:
        """The text of a file with this content, which is plain data."""
        head = {"format": self.mark, "version": self.version, "checksum": _checksum(content)}
        return json.dumps({**head, "content": content}, indent=1)

    def read(self, path: str | Path) -> Mapping[str, Any]:
        """The content of a file.

        Raises:
            TensorOptError: it cannot be read, is something else, of another version, or
                damaged.
        """
        try:
            text = Path(path).read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise self.damaged(f"'{path}'", "it is no text") from error
        except OSError as error:
            raise TensorOptError(
                f"{self.name} '{path}' cannot be read: {error}; {self.again}"
            ) from error
        return self.unseal(text, f"'{path}'")

    def unseal(self, text: str, where: str) -> Mapping[str, Any]:
        """The content of a text; errors, as of ``read``, name ``where``."""
        try:
            record = json.loads(text)
        except (ValueError, RecursionError) as error:  # deep nesting, long numbers
            raise self.damaged(where, "it is no JSON") from error
        if not isinstance(record, dict) or record.get("format") != self.mark:
            raise TensorOptError(f"{where} is no {self.name}; {self.again}")
        if record.get("version") != self.version:
            raise TensorOptError(
                f"{self.name} {where} has version {record.get('version')}, this version of "
                f"tensoropt_torch reads {self.version}; {self.again}"
            )
        content = record.get("content")
        if not isinstance(content, dict) or record.get("checksum") != _checksum(content):
            raise self.damaged(where, "its checksum is wrong")
        return content

    def as_record(self, kind: type[R], content: Mapping[str, Any], where: str) -> R:
        """The record that a content is.

        Raises:
            TensorOptError: naming ``where``; it is none.
        """
        try:
            return parse_record(kind, content, "content")
        except TensorOptError as error:
            raise self.damaged(where, "; ".join(str(error).splitlines())) from error

    def damaged(self, where: str, how: str) -> TensorOptError:
        """The error to raise."""
        return TensorOptError(f"{self.name} {where} is damaged: {how}; delete it and {self.again}")


def _checksum(content: Mapping[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
