"""Tables that are longer than the memory, on disk without a name: they go with the process, however it ends."""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

_ERRORS = {sqlite3.SQLITE_FULL: errno.ENOSPC, sqlite3.SQLITE_IOERR: errno.EIO}


class Tables(sqlite3.Connection):
    """A database that tells of a disk's errors as files do, with an OSError."""

    def execute(self, *arguments: Any) -> sqlite3.Cursor:
        with _system_errors():
            return super().execute(*arguments)

    def executemany(self, *arguments: Any) -> sqlite3.Cursor:
        with _system_errors():
            return super().executemany(*arguments)

    def executescript(self, *arguments: Any) -> sqlite3.Cursor:
        with _system_errors():
            return super().executescript(*arguments)


def database(folder: Path | None, tables: str) -> Tables:
    """A database with these tables in a folder, or where temporary files are.

    Nobody else opens it, and it is not to outlast the process: it needs no journal, and no locks, which not every file
    system has. Raises OSError where there is no room.
    """
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        connection = sqlite3.connect(f"file:{quote(file.name)}?nolock=1", uri=True, factory=Tables)
        connection.executescript(f"PRAGMA journal_mode=OFF; {tables}")
    return connection


@contextlib.contextmanager
def _system_errors() -> Iterator[None]:
    try:
        yield
    except sqlite3.OperationalError as error:
        number = _ERRORS.get(error.sqlite_errorcode & 0xFF)
        if number is None:
            raise
        raise OSError(number, os.strerror(number)) from error
