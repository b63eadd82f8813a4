"""What earlier jobs have compared: that a captured graph computes what its module does, in files,
so that a job that is started again compares nothing.

A file is found by the graph (its fingerprint, the names and constants in it) and by the code
that it was made of: the versions of PyTorch and of this package, the files of the classes of all
modules, of hooks and of the ``loss_fn``, with what is loaded from the same folders, plain
attributes of the modules, and which hooks there are. Values of parameters do not count.
"""

from __future__ import annotations

import hashlib
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tensoropt_torch.config.records import Positive, Record
from tensoropt_torch.frontend import CapturedModel
from tensoropt_torch.logs import get_logger
from tensoropt_torch.measure.kept.conditioned import ConditionedFile
from tensoropt_torch.measure.kept.files import digest_of_package, is_written, read_or
from tensoropt_torch.measure.kept.sealed import SealedFormat

log = get_logger(__name__)

FILE = SealedFormat("kept comparison", 1, "compare again")
PLAIN = (bool, int, float, complex, str, torch.dtype, type(None))
INSTALLED = ("site-packages", "dist-packages")


@dataclass(frozen=True)
class _Content(Record):
    compared_at: Positive


class KeptComparison:
    """That a graph was compared with its module. What does not work with the file is told in
    the log, and the graph is compared.

    Args:
        model: whose code is looked at when it is first needed, and which is let go then.
        captured: its graph.
    """

    def __init__(self, model: nn.Module, captured: CapturedModel) -> None:
        self._asked: tuple[nn.Module, CapturedModel] | None = (model, captured)
        self._found: ConditionedFile | None = None

    def load(self) -> bool:
        """Whether it was."""
        file = self._file()
        if file is None:
            return False
        read = partial(file.read_as, _Content)
        return read_or(None, read, "the graph is compared") is not None

    def keep(self) -> None:
        """For later jobs."""
        file = self._file()
        if file is not None:
            content = _Content(time.time())
            is_written(lambda: file.write(asdict(content)), "that the graph was compared")

    def _file(self) -> ConditionedFile | None:
        """None if the code of something cannot be found."""
        if self._asked is not None:
            asked, self._asked = self._asked, None
            try:
                conditions = conditions_of(*asked)
            except Exception as error:  # of the user's classes, or a file that is gone
                log.info("the comparison of the captured graph cannot be kept: %s", error)
                return None
            if conditions is not None:
                self._found = ConditionedFile("compared", FILE, conditions)
        return self._found


def conditions_of(model: nn.Module, captured: CapturedModel) -> dict[str, Any] | None:
    """What a comparison holds for, as plain data; None if it holds for now only, since the
    code of something is in no file."""
    loss_fn = captured.form.loss_fn
    functions = [(name, function) for name, function in _functions(model)]
    if loss_fn is not None:
        functions.append(("loss_fn", loss_fn))
    makers = [*_classes(model), *(_code_of(function) for _, function in functions)]
    files = {_file_of(maker) for maker in makers}
    if None in files:
        return None
    return {
        "fingerprint": captured.fingerprint,
        "sources": [(source.kind, source.names) for source in captured.sources],
        "constants": _digest_of_constants(captured),
        "context": repr(captured.context),
        "versions": [torch.__version__, platform.python_version(), digest_of_package()],
        "code": _digest_of({path for path in files if path is not None}),
        "functions": [(name, _name_of(function)) for name, function in functions],
        "attributes": _attributes(model),
    }


def _functions(model: nn.Module) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Hooks of modules and of parameters, and methods that an instance has of its own."""
    for name, module in model.named_modules():
        for attribute, value in vars(module).items():
            if attribute.endswith("_hooks") and isinstance(value, dict):
                yield from ((f"{name}.{attribute}", hook) for hook in value.values())
            elif callable(value) and not isinstance(value, nn.Module):
                yield f"{name}.{attribute}", value
    for name, parameter in model.named_parameters():
        for attribute in ("_backward_hooks", "_post_accumulate_grad_hooks"):
            hooks = getattr(parameter, attribute, None) or {}
            yield from ((f"{name}.{attribute}", hook) for hook in hooks.values())


def _classes(model: nn.Module) -> set[type]:
    """All that a module's class is made of."""
    return {base for module in model.modules() for base in type(module).__mro__[:-1]}


def _code_of(function: Any) -> Any:
    """What is in a file: a function or a class."""
    while isinstance(function, partial):
        function = function.func
    return function if hasattr(function, "__qualname__") else type(function)


def _name_of(function: Any) -> str:
    code = _code_of(function)
    return f"{code.__module__}.{code.__qualname__}"


def _file_of(maker: Any) -> Path | None:
    module = sys.modules.get(maker.__module__ or "")
    path = getattr(module, "__file__", None)
    if path is None and module is not None and module.__name__ in sys.builtin_module_names:
        path = sys.executable
    return None if path is None else Path(path)


def _digest_of(files: set[Path]) -> str:
    """Of these files, and of what is loaded from the folders of those that are not installed;
    of installed packages by their version besides."""
    own = {os.path.join(path.parent, "") for path in files if not _is_installed(path)}
    loaded = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    near = (Path(file) for file in loaded if file and file.startswith(tuple(own)))
    files = files | {path for path in near if not _is_installed(path)}
    digest = hashlib.sha256()
    for path in sorted(files):
        digest.update(path.name.encode())
        digest.update(path.read_bytes() if path.suffix == ".py" else b"")
    return digest.hexdigest()[:16]


def _is_installed(path: Path) -> bool:
    return not set(INSTALLED).isdisjoint(path.parts)


def _digest_of_constants(captured: CapturedModel) -> str:
    """Of those that capture computed."""
    digest = hashlib.sha256()
    for source in captured.sources:
        if source.is_folded:
            constant = captured.constants[source.names[0]].detach().cpu()
            digest.update(f"{constant.dtype}{constant.shape}".encode())
            whole = constant.flatten().clone(memory_format=torch.contiguous_format)
            digest.update(whole.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def _attributes(model: nn.Module) -> str:
    """Of plain values that modules hold."""
    digest = hashlib.sha256()
    for name, module in model.named_modules():
        held = [(key, repr(v)) for key, v in sorted(vars(module).items()) if isinstance(v, PLAIN)]
        digest.update(f"{name}{held}".encode())
    return digest.hexdigest()[:16]
