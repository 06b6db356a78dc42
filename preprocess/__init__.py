"""From videos to shards. Calling the package calls `gdt.api.preprocess`: gdt.preprocess("videos", "shards")."""

from __future__ import annotations

import inspect
import sys
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    def __call__(self, *arguments: Any, **settings: Any) -> Any:
        from gdt import api

        return api.preprocess(*arguments, **settings)

    @property
    def __doc__(self) -> str:  # type: ignore[override]  # for help(gdt.preprocess)
        from gdt import api

        return f"gdt.preprocess{inspect.signature(api.preprocess)}\n\n{inspect.getdoc(api.preprocess)}"


sys.modules[__name__].__class__ = _Callable
