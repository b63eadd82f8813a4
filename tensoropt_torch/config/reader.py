"""Reads tables of values and reports what is wrong with them.

Every message names the source, the key, the value, what is allowed and what to
try.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tensoropt_torch.errors import TensorOptError, close_match


class TableReader:
    """One table: typed access to its keys; ``finish()`` refuses unread keys."""

    def __init__(self, data: Mapping[str, Any], where: str, path: str = "") -> None:
        self._data = data
        self._where = where
        self._path = path
        self._known: set[str] = set()

    def has(self, key: str) -> bool:
        """Whether the key is present."""
        return key in self._data

    def text(self, key: str) -> str:
        """A text that is not empty."""
        value = self._get(key, "a text")
        if not isinstance(value, str) or not value.strip():
            raise self._value_error(key, value, "a text that is not empty", "")
        return value

    def choice(self, key: str, allowed: Sequence[str], default: str) -> Any:
        """One of these texts; the default if the key is absent."""
        self._known.add(key)
        if not self.has(key):
            return default
        value = self.text(key)
        if value not in allowed:
            raise self._value_error(key, value, f"one of {', '.join(allowed)}", "")
        return value

    def integer(self, key: str, hint: str) -> int:
        """A whole number of at least 1."""
        value = self._get(key, hint)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self._value_error(key, value, "a whole number of at least 1", hint)
        return value

    def positive(self, key: str, hint: str) -> float:
        """A finite number above 0."""
        number = self._number(key, hint)
        if not 0 < number < math.inf:
            raise self._value_error(key, number, "a finite number above 0", hint)
        return number

    def not_negative(self, key: str, hint: str) -> float:
        """A finite number of at least 0."""
        number = self._number(key, hint)
        if not 0 <= number < math.inf:
            raise self._value_error(key, number, "a finite number, 0 or above", hint)
        return number

    def finite(self, key: str, hint: str) -> float:
        """A finite number."""
        number = self._number(key, hint)
        if not math.isfinite(number):
            raise self._value_error(key, number, "a finite number", hint)
        return number

    def fraction(self, key: str, hint: str) -> float:
        """A number from 0 to 1."""
        number = self._number(key, hint)
        if not 0 <= number <= 1:
            raise self._value_error(key, number, "a number from 0 to 1", hint)
        return number

    def share(self, key: str, hint: str) -> float:
        """A number above 0 and at most 1."""
        number = self._number(key, hint)
        if not 0 < number <= 1:
            raise self._value_error(key, number, "above 0 and at most 1", hint)
        return number

    def table(self, key: str) -> "TableReader":
        """The table under the key."""
        value = self._get(key, f"add a table [{self._name(key)}]")
        if not isinstance(value, Mapping):
            raise self._value_error(key, value, f"a table [{self._name(key)}]", "")
        return TableReader(value, self._where, self._name(key))

    def optional_table(self, key: str) -> "TableReader | None":
        """The table under the key; None if it is absent."""
        self._known.add(key)
        return self.table(key) if self.has(key) else None

    def optional_tables(self, key: str) -> list["TableReader"]:
        """The tables under the key; none if it is absent or empty."""
        self._known.add(key)
        return self.tables(key) if self._data.get(key) else []

    def tables(self, key: str) -> list["TableReader"]:
        """The tables under the key, at least one."""
        hint = f"add a table [[{self._name(key)}]]"
        value = self._get(key, hint)
        is_list = isinstance(value, list | tuple) and len(value) > 0
        if not is_list or not all(isinstance(item, Mapping) for item in value):
            raise self._value_error(key, value, "one table or more", hint)
        return [
            TableReader(item, self._where, f"{self._name(key)}[{index}]")
            for index, item in enumerate(value)
        ]

    def finish(self, also_allowed: Iterable[str] = ()) -> None:
        """Refuses keys that were not read."""
        allowed = self._known | set(also_allowed)
        for key in self._data:
            if key not in allowed:
                raise TensorOptError(
                    f"{self._where}: key '{self._name(key)}' is unknown; "
                    f"{close_match(key, allowed)}"
                    f"allowed: {', '.join(sorted(allowed))}"
                )

    def error(self, problem: str, allowed: str, hint: str) -> TensorOptError:
        """The error about this whole table."""
        return TensorOptError(
            f"{self._where}: table [{self._path}] {problem}; allowed: {allowed}; {hint}"
        )

    def _number(self, key: str, hint: str) -> float:
        value = self._get(key, hint)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._value_error(key, value, "a number", hint)
        return float(value)

    def _get(self, key: str, hint: str) -> Any:
        self._known.add(key)
        if key not in self._data:
            raise TensorOptError(f"{self._where}: key '{self._name(key)}' is missing; {hint}")
        return self._data[key]

    def _name(self, key: str) -> str:
        return f"{self._path}.{key}" if self._path else key

    def _value_error(self, key: str, value: object, allowed: str, hint: str) -> TensorOptError:
        tail = f"; {hint}" if hint else ""
        return TensorOptError(
            f"{self._where}: {self._name(key)} = {value!r} is not allowed; "
            f"it must be {allowed}{tail}"
        )
