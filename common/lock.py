"""Folder locks: only one run at a time may write to a folder."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
from collections.abc import Iterator
from pathlib import Path

from gdt.common.errors import UserError

_NAME = ".lock"


@contextlib.contextmanager
def locked(destination: Path, alternative: str = "set --destination") -> Iterator[None]:
    """Create and lock a folder that a run writes to.

    If nothing was written, the folders created for it are removed again. Raises UserError, which ends in `alternative`,
    if the folder is locked by another run or cannot be written to.
    """
    created = list(itertools.takewhile(lambda folder: not folder.exists(), (destination, *destination.parents)))
    path = destination / _NAME
    try:
        destination.mkdir(parents=True, exist_ok=True)
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK, 0o666)  # non-blocking: it might be a FIFO
    except OSError as error:
        raise UserError(f"cannot write to {destination}: {error.strerror}; {alternative}") from error
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UserError(f"another run is writing to {destination}; wait for it, or {alternative}") from error
        except OSError:
            pass  # a file system without locks
        if not _is_at(file, path):
            raise UserError(f"another run has just removed {destination}; run the same command again")
        try:
            yield
        finally:
            _remove_empty(created)
    finally:
        os.close(file)


def _is_at(file: int, path: Path) -> bool:
    """Whether `path` still refers to the open file; a failed run removes the folder it created."""
    with contextlib.suppress(OSError):
        return os.path.samestat(os.fstat(file), path.stat())
    return False


def _remove_empty(folders: list[Path]) -> None:
    """Remove nested folders, the innermost first, if they hold nothing but the lock."""
    with contextlib.suppress(OSError):
        if folders and [path.name for path in folders[0].iterdir()] == [_NAME]:
            (folders[0] / _NAME).unlink()
            for folder in folders:
                folder.rmdir()


def is_locked(destination: Path) -> bool:
    """Whether a run is writing to the folder; False if unknown."""
    try:
        file = os.open(destination / _NAME, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        pass
    finally:
        os.close(file)
    return False
