"""SQLite tables on disk for data larger than memory, in unlinked files that are freed when the process ends."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import os
import sqlite3
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

_PREFIX = ".gdt-tables-"
_ERRORS = {sqlite3.SQLITE_FULL: errno.ENOSPC, sqlite3.SQLITE_IOERR: errno.EIO}


def _with_os_errors(method: Callable[..., Any]) -> Callable[..., Any]:
    """The method, but raising OSError if the disk fails, as files do."""

    @functools.wraps(method)
    def wrapped(*arguments: Any) -> Any:
        try:
            return method(*arguments)
        except sqlite3.OperationalError as error:
            number = _ERRORS.get(error.sqlite_errorcode & 0xFF)
            if number is None:
                raise
            raise OSError(number, os.strerror(number)) from error

    return wrapped


class _Cursor(sqlite3.Cursor):
    execute = _with_os_errors(sqlite3.Cursor.execute)
    executemany = _with_os_errors(sqlite3.Cursor.executemany)
    executescript = _with_os_errors(sqlite3.Cursor.executescript)
    fetchone = _with_os_errors(sqlite3.Cursor.fetchone)
    fetchall = _with_os_errors(sqlite3.Cursor.fetchall)
    __next__ = _with_os_errors(sqlite3.Cursor.__next__)


class Tables(sqlite3.Connection):
    """A database that raises OSError if the disk fails."""

    def execute(self, *arguments: Any) -> sqlite3.Cursor:
        return self.cursor(_Cursor).execute(*arguments)

    def executemany(self, *arguments: Any) -> sqlite3.Cursor:
        return self.cursor(_Cursor).executemany(*arguments)

    def executescript(self, script: str) -> sqlite3.Cursor:
        return self.cursor(_Cursor).executescript(script)


def database(folder: Path | None, tables: str) -> Tables:
    """A database with these tables in a folder (default: that of temporary files).

    Only this process uses it, so it needs no journal, and no locks, which some file systems lack. Raises OSError if the
    disk is full.
    """
    folder = folder or Path(tempfile.gettempdir())
    _remove_leftovers(folder)
    with tempfile.NamedTemporaryFile(prefix=_PREFIX, dir=folder) as file:
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        connection = sqlite3.connect(f"file:{quote(file.name)}?nolock=1", uri=True, factory=Tables)
        connection.executescript(f"PRAGMA journal_mode=OFF; {tables}")
    return connection


def _remove_leftovers(folder: Path) -> None:
    """Remove unlocked files: their processes were killed before they could unlink them."""
    for path in folder.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
            finally:
                os.close(file)
