"""From videos to shards. Calling the package calls `gdt.api.preprocess`: gdt.preprocess("videos", "shards")."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    def __call__(self, *arguments: Any, **settings: Any) -> Any:
        from gdt import api

        return api.preprocess(*arguments, **settings)


sys.modules[__name__].__class__ = _Callable
