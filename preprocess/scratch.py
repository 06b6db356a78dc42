"""SQLite tables on disk that are longer than the memory, in unnamed files that vanish with the process."""

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
    """A database that raises OSError where the disk fails, as files do."""

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
    """A database with these tables in a folder (default: of temporary files).

    It has one user and does not outlast the process, so it needs no journal, and no locks, which some file systems
    lack. Raises OSError if the disk is full.
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
