"""Python interface of GDT; see `gdt.api`. Names are imported on first use: torch and DALI take seconds."""

# ruff: noqa: F405

import os
from typing import TYPE_CHECKING, Any

from gdt.common.machine import limit_threads

# before torch is imported: its threads wait for each other by spinning, by default so long that two programs on the
# same cores stop each other
os.environ.setdefault("GOMP_SPINCOUNT", "10000")
limit_threads()

if TYPE_CHECKING:
    from gdt.api import *  # noqa: F403

__all__ = ["GDT", "Batch", "Batches", "Composition", "Evaluated", "Features", "Index", "Model", "Preprocessed"]
__all__ += ["Pretrained", "Tree", "UserError", "batches", "composition", "evaluate", "gdt_loss", "load", "make_shards"]
__all__ += ["mteb", "nearest", "pretrain", "read_features", "tree"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from gdt import api

        return getattr(api, name)
    raise AttributeError(f"module 'gdt' has no attribute '{name}'")


def __dir__() -> list[str]:
    return __all__
