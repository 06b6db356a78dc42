"""Locks: only one run may write to a folder."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path

from gdt.common.errors import UserError


@contextlib.contextmanager
def locked(destination: Path, alternative: str = "set --destination to another folder") -> Iterator[None]:
    """Create and lock a folder that a run writes to.

    Raises UserError, ending in `alternative`, if another run holds the lock or the folder is not writable.
    """
    try:
        destination.mkdir(parents=True, exist_ok=True)
        file = (destination / ".lock").open("a")
    except OSError as error:
        reason = "it is a file, not a folder" if isinstance(error, FileExistsError) else error.strerror
        raise UserError(f"cannot write to {destination}: {reason}; {alternative}") from error
    with file:  # the system releases the lock when this process ends
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UserError(f"another run is writing to {destination}; wait for it, or {alternative}") from error
        except OSError:
            pass  # a file system without locks
        yield
