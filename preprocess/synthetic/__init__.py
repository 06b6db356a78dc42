"""Synthetic data sets: a module each, such as `standard` and `hard`; their base class is in files.py."""

from __future__ import annotations

import importlib

from gdt.preprocess.synthetic.files import GeneratedSet, generate
from gdt.preprocess.synthetic.standard import Synthetic

__all__ = ["GeneratedSet", "Synthetic", "generate", "generated"]


def generated(name: str) -> type[GeneratedSet]:
    """The settings class of a synthetic set: `synthetic-x` is defined in x.py."""
    module = importlib.import_module(f"{__name__}.{name.removeprefix('synthetic').removeprefix('-') or 'standard'}")
    return next(kind for kind in GeneratedSet.__subclasses__() if kind.__module__ == module.__name__)
