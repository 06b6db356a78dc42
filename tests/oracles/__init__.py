"""The numbers of this program against those of other libraries: `make oracles`."""

import importlib
from typing import Any

import pytest


def library(name: str) -> Any:
    """A module of another library; skips the test if it cannot be imported, as torchvision beside another torch."""
    try:
        return importlib.import_module(name)
    except Exception as error:  # a compiled part that does not fit raises anything
        pytest.skip(f"{name} cannot be imported ({type(error).__name__}: {error})")
