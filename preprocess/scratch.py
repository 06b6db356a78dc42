"""Tables that are longer than the memory, on disk without a name: they go with the process, however it ends."""

from __future__ import annotations

import sqlite3
import tempfile
from pathlib import Path


def database(folder: Path | None, tables: str) -> sqlite3.Connection:
    """A database with these tables in a folder, or where temporary files are.

    Nobody else opens it, and it is not to outlast the process: there is no journal. Raises sqlite3.Error or OSError.
    """
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        connection = sqlite3.connect(file.name)
        connection.executescript(f"PRAGMA journal_mode=OFF; PRAGMA locking_mode=EXCLUSIVE; {tables}")
    return connection


def is_full(error: Exception) -> bool:
    """Whether there was no room for a table."""
    return isinstance(error, sqlite3.OperationalError) and "is full" in str(error)
