"""Locks: only one run may write to a folder or a file."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path

from gdt.common.errors import UserError

_NAME = ".lock"
_ATTEMPTS = 100
_HOLDER = re.compile(r"(process \d+ on \S+)?")
"""Content of a lock file: the process that holds it, if any."""


@contextlib.contextmanager
def locked(destination: Path, alternative: str = "set --destination to another folder") -> Iterator[None]:
    """Create and lock a folder that a run writes to; created folders that stay empty are removed again.

    Raises UserError, ending in `alternative`, if another run holds the lock or the folder is not writable.
    """
    with _held(destination / _NAME, destination, alternative):
        yield


@contextlib.contextmanager
def locked_file(path: Path) -> Iterator[None]:
    """Lock an output file by a temporary lock file next to it. Raises UserError like `locked`."""
    lock = path.with_name(f".{path.name}{_NAME}")
    with _held(lock, path, "set --out to another file"):
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                lock.unlink()


@contextlib.contextmanager
def _held(path: Path, what: Path, alternative: str) -> Iterator[None]:
    """Hold the lock of `what`, naming this process in the lock file; remove created folders that stay empty."""
    created = list(itertools.takewhile(lambda folder: not folder.exists(), path.parents))
    file = _take(path, what, alternative)
    try:
        _write(file, f"process {os.getpid()} on {socket.gethostname()}")
        yield
    finally:
        _write(file, "")
        _remove_empty(created)
        os.close(file)


def _take(path: Path, what: Path, alternative: str) -> int:
    """Open and lock the lock file of `what`."""
    for _ in range(_ATTEMPTS):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK, 0o666)  # non-blocking: it might be a FIFO
        except OSError as error:
            reason = "it is a file, not a folder" if isinstance(error, FileExistsError) else error.strerror
            raise UserError(f"cannot write to {what}: {reason}; {alternative}") from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = _read(file)
            os.close(file)
            named = f" ({holder})" if holder else ""
            raise UserError(f"another run is writing to {what}{named}; wait for it, or {alternative}") from error
        except OSError:
            pass  # a file system without locks
        if _is_at(file, path):
            return file
        os.close(file)  # its holder has just removed it
    raise UserError(f"other runs keep removing the lock {path}; run the same command again, or {alternative}")


def _read(file: int) -> str | None:
    """The process named in a lock file; None if it is not a lock file."""
    try:
        text = os.pread(file, 1000, 0).decode(errors="replace")
    except OSError:  # a FIFO
        return None
    return text if _HOLDER.fullmatch(text) else None


def _write(file: int, holder: str) -> None:
    """Name a process in a lock file. Ignores errors, and leaves anything else, such as the target of a link, alone."""
    if _read(file) is not None:
        with contextlib.suppress(OSError):
            os.ftruncate(file, 0)
            os.pwrite(file, holder.encode(), 0)


def _is_at(file: int, path: Path) -> bool:
    """Whether `path` still refers to the open file."""
    with contextlib.suppress(OSError):
        return os.path.samestat(os.fstat(file), path.stat())
    return False


def _remove_empty(folders: list[Path]) -> None:
    """Remove nested folders, given innermost first, if they hold nothing but a lock file."""
    with contextlib.suppress(OSError):
        if folders and [path.name for path in folders[0].iterdir()] == [_NAME]:
            (folders[0] / _NAME).unlink()
        for folder in folders:
            folder.rmdir()


def is_locked(destination: Path) -> bool | None:
    """Whether a run is writing to the folder; None if unknown."""
    try:
        file = os.open(destination / _NAME, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return None
    finally:
        os.close(file)
    return False
