"""Python interface of GDT; see `gdt.api`. Names are imported on first use, since importing torch and DALI takes
seconds.

`gdt.preprocess` is both a function and a package. Type checkers see the function, so import its modules explicitly
(`import gdt.preprocess.stage`) instead of accessing them as attributes.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gdt.api import *  # noqa: F403

_NAMES = {
    "GDT", "Batch", "Batches", "Evaluated", "Features", "Index", "Model", "Preprocessed", "Pretrained", "UserError",
    "batches", "evaluate", "gdt_loss", "load", "nearest", "preprocess", "pretrain", "read_features",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return sorted(_NAMES)
    if name == "preprocess":  # the package, which is callable
        return importlib.import_module("gdt.preprocess")
    if name in _NAMES:
        from gdt import api

        return getattr(api, name)
    raise AttributeError(f"module 'gdt' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *_NAMES})
