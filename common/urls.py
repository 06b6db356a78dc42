"""Folders in object stores, named by URLs such as s3://bucket/shards, as paths."""

from __future__ import annotations

import os
import re
from pathlib import Path, PosixPath

from gdt.common.errors import UserError

_SCHEME = re.compile(r"[a-z][a-z0-9+.-]+:/")
_SECRET = re.compile(r":/+[^/]*:[^/]*@|\?")


class Url(PosixPath):
    """A path in a store, to join, compare and print; pipeline/shards/store.py reads and writes there."""

    def __str__(self) -> str:
        name = super().__str__()
        return name.replace(":/", ":///" if name.startswith("file:") else "://", 1)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Url) and str(self) == str(other)  # not a local path of the same parts

    __hash__ = PosixPath.__hash__

    def absolute(self) -> Url:
        return self

    def __fspath__(self) -> str:
        raise UserError(f"{self} is in a store, which can hold only videos and shards; name a path on this machine")


def as_path(name: str | Path) -> Path:
    """The Url or, with ~ expanded, the local path of this name; a Path may have been made of a URL.

    Raises UserError, without repeating it, for a URL with a password or a query.
    """
    if not _SCHEME.match(str(name)):
        return Path(os.path.expanduser(name))  # noqa: PTH111 - pathlib's raises for an unknown user
    if _SECRET.search(str(name)):
        raise UserError(
            "a URL has a password or a query, which would be stored with settings and results; leave it out, and give "
            "credentials as the store's own tools take them (environment, files, roles)"
        )
    return Url(name)
