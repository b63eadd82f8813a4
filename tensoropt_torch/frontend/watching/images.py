"""Images of attributes: what can be compared, hashed and told, whatever the attribute is.

Plain values are themselves. Containers and objects that only hold values (configurations) are
what is in them. Of all else it matters which object it is; tensors also count their changes, and
small ones are read.
"""

from __future__ import annotations

import ctypes
import enum
import functools
import logging
import types
import weakref
import zlib
from collections import deque
from collections.abc import Hashable, Iterator, Mapping
from typing import Any

import numpy
import torch
from torch import nn
from torch.multiprocessing import reductions

Image = Any  # hashable

MISSING = type("Missing", (), {"__repr__": lambda self: "missing"})()
ATOMS = frozenset(
    {
        int,
        float,
        bool,
        str,
        bytes,
        complex,
        type(None),
        type(MISSING),
        torch.dtype,
        torch.device,
        torch.layout,
        torch.memory_format,
    }
)
_OTHERS = ("builtins", "functools", "itertools", "collections", "threading", "_thread", "weakref")
MAX_PARTS = 4096  # of one attribute; one with more is the object that it is
MAX_BYTES = 4096  # of a tensor that is read itself
OBJECT = "object"  # its class and its attributes follow
# By the class of an object the names of its attributes that count; of other classes all do.
Fields = Mapping[str, frozenset[str]]
_SEQUENCES = (list, tuple, deque)
_OPAQUE = (
    nn.Module,
    torch.Tensor,
    torch.Generator,
    type,
    types.ModuleType,
    types.FunctionType,
    types.BuiltinFunctionType,
    logging.Logger,
)


class Identity:
    """Which object it is, without keeping it alive where that can be."""

    __slots__ = ("_id", "_reference", "_text", "version")

    def __init__(self, value: Any, version: Hashable = 0) -> None:
        self._id = id(value)
        self.version = version
        self._text = getattr(value, "__qualname__", None) or f"a {type(value).__qualname__}"
        try:
            self._reference: Any = weakref.ref(value)
        except TypeError:
            self._reference = lambda: value

    @property
    def value(self) -> Any:
        """The object, None once it is gone."""
        return self._reference()

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, Identity)
            and (self._id, self.version) == (other._id, other.version)
            and self.value is other.value is not None
        )

    def __hash__(self) -> int:
        return hash((self._id, self.version))

    def __repr__(self) -> str:
        return self._text


def image_of(value: Any) -> Image:
    """The image of an attribute."""
    kind = type(value)
    if kind in ATOMS:
        return kind.__name__, repr(value)
    imaging = _Imaging()
    try:
        return imaging.of(value)
    except _TooLargeError:
        return _identity(value)


def name_of(kind: type) -> str:
    """A class, in images."""
    return f"{kind.__module__}.{kind.__qualname__}"


def restricted(image: Image, fields: Fields) -> Image:
    """The image without those attributes of objects that do not count."""
    if not isinstance(image, tuple):
        return image
    if image[:1] != (OBJECT,):
        return tuple(restricted(part, fields) for part in image)
    _, kind, parts = image
    names = fields.get(kind)
    kept = [(n, restricted(part, fields)) for n, part in parts if names is None or n in names]
    return OBJECT, kind, tuple(kept)


def differences(name: str, old: Image, new: Image) -> Iterator[tuple[str, Image]]:
    """What of a new image is not in the old one, by its name."""
    images = (old, new)
    if not all(isinstance(i, tuple) and i[:1] == (OBJECT,) for i in images) or old[1] != new[1]:
        yield name, new
        return
    before, after = dict(old[2]), dict(new[2])
    for part in {**before, **after}:
        one, other = before.get(part, image_of(MISSING)), after.get(part, image_of(MISSING))
        if one != other:
            yield from differences(f"{name}.{part}", one, other)


def is_fixed(value: Any) -> bool:
    """Whether it is a plain value, or a tuple of such: as long as it is the same object it is
    the same."""
    kind = type(value)
    if kind in (tuple, torch.Size):
        return all(map(is_fixed, value))
    return kind in ATOMS


def is_atom(image: Image) -> bool:
    """Whether it is that of a plain value."""
    return isinstance(image, tuple) and len(image) == 2 and isinstance(image[1], str)


def is_portable(image: Image) -> bool:
    """Whether it says the same on all ranks."""
    if isinstance(image, tuple):
        return all(is_portable(part) for part in image)
    return not isinstance(image, Identity)


def told(image: Image) -> str:
    """In a few words."""
    if is_atom(image):
        return str(image[1])
    if isinstance(image, Identity):
        return repr(image)
    return f"another {image[0]}" if isinstance(image, tuple) and image else "changed"


class _TooLargeError(Exception):
    pass


class _Imaging:
    """Of one attribute; an object that comes again is its number."""

    def __init__(self) -> None:
        self._seen: dict[int, int] = {}
        self._left = MAX_PARTS

    def of(self, value: Any) -> Image:
        kind = type(value)
        if kind in ATOMS:
            return kind.__name__, repr(value)
        self._left -= 1
        if self._left < 0:
            raise _TooLargeError
        if isinstance(value, enum.Enum):
            return "enum", f"{kind.__qualname__}.{value.name}"
        if isinstance(value, (numpy.ndarray, numpy.generic)):
            return _array(value)
        if isinstance(value, _OPAQUE):
            return _identity(value)
        number = self._seen.setdefault(id(value), len(self._seen))
        if number != len(self._seen) - 1:
            return "again", str(number)
        return self._parts(value)

    def _parts(self, value: Any) -> Image:
        kind = type(value).__qualname__
        if isinstance(value, types.MethodType):
            return kind, _identity(value.__func__), self.of(value.__self__)
        if isinstance(value, functools.partial):
            return kind, self.of(value.func), self.of(value.args), self.of(value.keywords)
        if isinstance(value, _SEQUENCES):
            return kind, *map(self.of, value), len(value)
        if isinstance(value, (set, frozenset)):
            return kind, frozenset(map(self.of, value)), len(value)
        if isinstance(value, Mapping):
            return kind, *self._items(value), len(value)
        own = _values_of(value)
        if own is None:
            return _identity(value)
        parts = tuple((name, self.of(item)) for name, item in own.items())
        return OBJECT, name_of(type(value)), parts

    def _items(self, value: Mapping[Any, Any]) -> list[Image]:
        return [part for key, item in value.items() for part in (self.of(key), self.of(item))]


def _values_of(value: Any) -> dict[str, Any] | None:
    """The attributes of an object, in slots too; None: it has none that can be seen."""
    kind = type(value)
    if kind.__module__.partition(".")[0] in _OTHERS:
        return None
    slots = [getattr(base, "__slots__", ()) for base in kind.__mro__]
    names = [n for own in slots for n in ((own,) if isinstance(own, str) else own)]
    found = {n: getattr(value, n) for n in names if n[:2] != "__" and hasattr(value, n)}
    own = getattr(value, "__dict__", None)
    if type(own) is not dict and not names:
        return None
    return {**found, **own} if type(own) is dict else found


def _identity(value: Any) -> Identity:
    if not isinstance(value, torch.Tensor):
        return Identity(value)
    try:
        memory = _memory(value) if type(value) is torch.Tensor else None
        return Identity(value, (value._version, memory))
    except RuntimeError:  # an inference tensor counts no changes, and has none outside
        return Identity(value)


def _memory(tensor: torch.Tensor) -> Hashable:
    """What of a memory it is. An address would not say it: that of a memory that is gone is
    given away again. The reference keeps the storage known, and no bytes of it."""
    if not torch._C._has_storage(tensor):
        return None
    reference: Any = reductions.StorageWeakRef  # which is not annotated
    storage = reference(tensor.untyped_storage())
    lies = storage, tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype
    return *lies, _bytes(tensor)


def _bytes(tensor: torch.Tensor) -> int | None:
    """Equal for equal ones, which tells of writes that count no version (``.data``, NumPy); None
    where reading them at each call would take long. No operator runs, which a mode would see."""
    if tensor.device.type != "cpu" or tensor.nbytes > MAX_BYTES or not tensor.is_contiguous():
        return None
    return zlib.crc32((ctypes.c_char * tensor.nbytes).from_address(tensor.data_ptr()))


def _array(value: Any) -> Image:
    array = numpy.ascontiguousarray(value)
    if array.dtype.hasobject:
        return "array", repr(array)
    return "array", f"{value.dtype}{value.shape} {zlib.crc32(array.view(numpy.uint8).data)}"
