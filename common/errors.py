"""Mistakes that a user can mend are told in one sentence, without a traceback."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn


class UserError(Exception):
    """Something outside the code is wrong; the message says what, why, and what to do."""


INTERRUPTED = "interrupted; the same command goes on from here"


def require_positive(settings: object, group: str, *names: str, least: int = 1, why: str = "") -> None:
    """Raise UserError, naming the option --group.name, where one of the settings is below `least`."""
    for name in names:
        if getattr(settings, name) < least:
            option = ".".join(filter(None, (group, name.replace("_", "-"))))
            because = f", {why}" if why else ""
            raise UserError(f"--{option} is {getattr(settings, name)}; it must be {least} or more{because}")


_MEMORY = ("out of memory", "can't allocate memory", "cannot allocate memory", "bad_alloc", "memory allocation",
           "cudnn_status_alloc_failed", "cublas_status_alloc_failed")  # fmt: skip


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error of Python, torch (on a CPU or a GPU) or DALI says that there was no memory left."""
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(words in str(error).lower() for words in _MEMORY)
    )


@contextmanager
def explain_out_of_memory(advice: str) -> Iterator[None]:
    """Raise UserError, with an advice, where memory runs out within."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise UserError(f"out of memory ({first_line(error)}); see what else runs there, or {advice}") from error


def first_line(error: BaseException) -> str:
    """What an error says, in one line."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def quiet_until_ready() -> None:
    """Let Ctrl-C end this process without a traceback, until `exit_with_message`; to call before slow imports."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def exit_with_message(main: Callable[[], None]) -> None:
    """Run `main`; a `UserError` or an error of the system becomes one message on stderr and exit status 2."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # see `quiet_until_ready`
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        main()
        _flush()
    except UserError as error:
        _exit(2, f"error: {error}")
    except MemoryError as error:
        _exit(2, f"error: out of memory ({first_line(error)}); run it where there is more")
    except BrokenPipeError:  # the reader of our output, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        if error.filename is None:
            _exit(
                2, f"error: {error.strerror or first_line(error)}; see whether disks are there, in order and not full"
            )
        _exit(2, f"error: {error.filename}: {error.strerror}; check the path and its permissions")
    except KeyboardInterrupt:
        below = "\n" if sys.stderr.isatty() else ""  # the progress bar that was left there
        _exit(130, f"{below}{INTERRUPTED}")


def _flush() -> None:
    if sys.stdout is not None:
        sys.stdout.flush()


def _exit(status: int, message: str) -> NoReturn:
    print(message, file=sys.stderr)
    try:
        _flush()
    except OSError:  # what cannot be written would become a second message as Python ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(status)
