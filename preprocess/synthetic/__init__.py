"""Synthetic data sets: one file each, such as `standard` and `hard`; files.py has their base class."""

from __future__ import annotations

import importlib

from gdt.preprocess.synthetic.files import GeneratedSet, generate
from gdt.preprocess.synthetic.standard import Synthetic

__all__ = ["GeneratedSet", "Synthetic", "generate", "generated"]


def generated(name: str) -> type[GeneratedSet]:
    """The settings of a synthetic set: `synthetic-x` uses the GeneratedSet that x.py defines."""
    module = importlib.import_module(f"{__name__}.{name.removeprefix('synthetic').removeprefix('-') or 'standard'}")
    return next(kind for kind in GeneratedSet.__subclasses__() if kind.__module__ == module.__name__)
