"""One run at a time in a folder."""

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
def locked(destination: Path, otherwise: str = "set --destination") -> Iterator[None]:
    """Hold a folder that is written to: two runs at once would each remove what the other makes.

    A folder that was made for it, and in which nothing was put, is gone afterwards. Raises UserError where that cannot
    be; `otherwise` is what else the user may do.
    """
    made = list(itertools.takewhile(lambda folder: not folder.exists(), (destination, *destination.parents)))
    try:
        destination.mkdir(parents=True, exist_ok=True)
        # not blocking: whatever lies there under that name, opening it does not wait
        file = os.open(destination / _NAME, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK, 0o666)
    except OSError as error:
        raise UserError(f"cannot write to {destination}: {error.strerror}; {otherwise}") from error
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UserError(f"another run is writing to {destination}; wait for it, or {otherwise}") from error
        except OSError:
            pass  # a file system without locks
        if not _is_at(file, destination / _NAME):
            raise UserError(f"another run was about to write to {destination}; run the same command again")
        try:
            yield
        finally:
            _remove_empty(made)
    finally:
        os.close(file)


def _is_at(file: int, path: Path) -> bool:
    """Whether an open file still has its name; a run that failed meanwhile has removed the one that it made."""
    with contextlib.suppress(OSError):
        return os.path.samestat(os.fstat(file), path.stat())
    return False


def _remove_empty(made: list[Path]) -> None:
    """Remove folders, the innermost first, as long as there is nothing in them but the lock."""
    with contextlib.suppress(OSError):
        if made and [path.name for path in made[0].iterdir()] == [_NAME]:
            (made[0] / _NAME).unlink()
            for folder in made:
                folder.rmdir()


def is_locked(destination: Path) -> bool:
    """Whether a run is writing to the folder; False where nobody can tell."""
    try:
        file = os.open(destination / _NAME, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(file)
    return False
