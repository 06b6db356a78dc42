"""Stand-ins for packages that are not installed and that most measurements do without.

Modules that are measured import them at their top. A stand-in can be imported, and be called for what nobody looks at,
such as a progress bar; DALI's says that it is not there when it is asked to do something.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from types import FunctionType, ModuleType
from typing import Any

SILENT = ("tqdm", "tensorboard", "tyro", "docstring_parser")
NEEDED = ("nvidia.dali", "psutil", "sklearn", "safetensors", "gensim", "librosa", "ijson", "ffmpeg")


class _Nothing:
    """Does whatever it is asked, which is nothing."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self


class _Missing:
    """Cannot do anything, and says so; it can decorate."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Missing(f"{self._name}.{name}")

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        if len(arguments) == 1 and isinstance(arguments[0], FunctionType) and not named:
            return _Missing(f"{arguments[0].__name__}, by {self._name}")
        raise ModuleNotFoundError(f"{self._name} is needed here, and is not installed")


class _Module(ModuleType):
    __version__ = "not installed"
    __path__: list[str] = []

    def __init__(self, name: str, attribute: Any) -> None:
        super().__init__(name)
        self._attribute = attribute

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._attribute, name)


class StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the modules of packages that are not there."""

    def __init__(self, silent: Sequence[str], needed: Sequence[str]) -> None:
        self._silent, self._needed = silent, needed

    def find_spec(self, name: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        # the package, what is in it, and what it is in
        near = any(_within(name, one) or _within(one, name) for one in (*self._silent, *self._needed))
        return importlib.util.spec_from_loader(name, self) if near else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        silent = any(_within(spec.name, one) for one in self._silent)
        return _Module(spec.name, _Nothing() if silent else _Missing(spec.name))

    def exec_module(self, module: ModuleType) -> None:
        return


def stand_in(silent: Sequence[str] = SILENT, needed: Sequence[str] = NEEDED) -> list[str]:
    """From now on those of these packages that are not installed are stood in for; returns which."""
    silent, needed = ([name for name in several if not _is_there(name)] for several in (silent, needed))
    finder = StandIns(silent, needed)
    if "tensorboard" in silent:  # torch's own module is there, and fails without it
        board = "torch.utils.tensorboard"
        sys.modules[board] = _Module(board, _Nothing())
    sys.meta_path.append(finder)
    return [*silent, *needed]


def _is_there(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:
        return False


def _within(name: str, package: str) -> bool:
    return f"{name}.".startswith(f"{package}.")
