"""Which folder or file a name stands for: a path on this machine, or the URL of one in a store."""

import os
import re
from pathlib import Path, PurePath

from gdt.common.errors import UserError
from gdt.common.folders import File, Folder, LocalFolder
from gdt.common.stores import RemoteFolder

_SCHEME = re.compile(r"[a-z][a-z0-9+.-]+:/")
_SECRET = re.compile(r":/+[^/]*:[^/]*@|\?")
Place = Path | Folder
"""A folder as settings hold it: a path on this machine, or a folder of either kind."""


def as_place(name: str | Place) -> Place:
    """The place of this name, with ~ expanded in a path; a Path may have been made of a URL.

    Raises UserError, without repeating it, for a URL with a password or a query.
    """
    if isinstance(name, Folder):
        return name
    if not _SCHEME.match(str(name)):
        return Path(os.path.expanduser(name))  # noqa: PTH111 - pathlib's raises for an unknown user
    if _SECRET.search(str(name)):
        raise UserError(
            "a URL has a password or a query, which would be stored with settings and results; leave it out, and give "
            "credentials as the store's own tools take them (environment, files, roles)"
        )
    return RemoteFolder(str(name))


def local_path(name: str | Path) -> Path:
    """The path of this name, with ~ expanded. Raises UserError for a URL."""
    where = as_place(name)
    if isinstance(where, Path):
        return where
    raise UserError(f"{where} is in a store, which can hold only videos and shards; name a path on this machine")


def folder_at(where: str | Place) -> Folder:
    """The folder at a place."""
    where = as_place(where)
    return where if isinstance(where, Folder) else LocalFolder(where)


def file_at(where: Place) -> File:
    """The file at a place."""
    if isinstance(where, RemoteFolder):
        folder, _, name = where.url.rpartition("/")
        return File(RemoteFolder(folder), PurePath(name))
    path = Path(str(where))
    return File(LocalFolder(path.parent), PurePath(path.name))
