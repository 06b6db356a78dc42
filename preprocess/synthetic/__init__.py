"""Generated data sets: one file each, as `standard` and `hard`; files.py says what it holds."""

from __future__ import annotations

import importlib

from gdt.preprocess.synthetic.files import GeneratedSet, generate
from gdt.preprocess.synthetic.standard import Synthetic

__all__ = ["GeneratedSet", "Synthetic", "generate", "generated"]


def generated(name: str) -> type[GeneratedSet]:
    """The settings of a generated set: those of `synthetic-x` are the one GeneratedSet that x.py here defines."""
    module = importlib.import_module(f"{__name__}.{name.removeprefix('synthetic').removeprefix('-') or 'standard'}")
    return next(kind for kind in GeneratedSet.__subclasses__() if kind.__module__ == module.__name__)
