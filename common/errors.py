"""Errors that the user can fix: one message and exit status 2, without a traceback."""

import difflib
import errno
import io
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn


class UserError(Exception):
    """An error that the user can fix; the message says what is wrong, why, and what to do."""


class Damaged(Exception):
    """A file does not hold what its format promises; the message does not name the file."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A video that is not used."""

    id: str
    reason: str
    """Its cause, and, after a semicolon, details."""
    path: str = ""
    """Of its file, below the source; in lists with the source. Empty without a file."""
    fault: bool = False
    """Whether that is no verdict on the video: the name of its file is at fault, or the machine, which cannot read it
    now."""
    hash: str = ""
    """BLAKE2b of the file, in hexadecimal; in shards."""


class Unusable(UserError):
    """No file can be used: a verdict on the files, `skipped` for these reasons, not on the machine."""

    def __init__(self, message: str, skipped: tuple[LeftOut, ...] = ()) -> None:
        super().__init__(message)
        self.skipped = skipped


def unknown(kind: str, name: str, available: Iterable[str], how_to_list: str = "") -> UserError:
    """A UserError about an unknown name that suggests the most similar one and lists all, or says how to list them."""
    # without dashes, which would make any two options similar
    names = {candidate.lstrip("-").casefold(): candidate for candidate in available}
    similar = difflib.get_close_matches(name.lstrip("-").casefold(), names, 1)
    message = f"unknown {kind} '{name}';"
    if similar:
        message += f" did you mean '{names[similar[0]]}'?"
    if not how_to_list:
        how_to_list = f"{'A' if similar else 'a'}vailable: {', '.join(names.values())}"
    return UserError(f"{message} {how_to_list}")


INTERRUPT = 130
"""Exit status after Ctrl-C."""
_PATIENCE = 10.0
"""Seconds that a rank waits with its error, in case rank 0 has the same."""
INTERRUPTED = "interrupted; run the same command again"
_MOST = 2**31 - 1
"""The largest accepted number, so that products of two fit into 64 bits."""
ABOVE_ZERO = 1e-6
"""The least value of settings that must be above 0."""


def require_range(
    settings: object, *names: str, least: float = 1, most: float = _MOST, group: str = "", why: str = ""
) -> None:
    """Raise UserError, naming the option --group.name, unless settings are within these bounds."""
    for name in names:
        value = getattr(settings, name)
        if least <= value <= most:
            continue
        option = ".".join(filter(None, (group, name.replace("_", "-"))))
        rule = f"from {least:g} to {most:,.15g}"
        if most == _MOST and not value > most:
            rule = f"{least:g} or more"
        because = f", {why}" if why else ""
        raise UserError(f"--{option} is {value}; it must be {rule}{because}")


def require_suffix(out: Path | None, *suffixes: str) -> None:
    """Raise UserError unless the name of --out, if given, ends in one of them: it may be that of the user's data."""
    if out is not None and out.suffix not in suffixes:
        allowed = ", ".join((*suffixes[:-2], " or ".join(suffixes[-2:])))
        raise UserError(f"--out is {out}; its name must end in {allowed}")


_OUT_OF_MEMORY = re.compile(
    "out of memory|can't allocate memory|cannot allocate memory|bad_alloc|memory allocation|"
    "cudnn_status_alloc_failed|cublas_status_alloc_failed"
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error of Python, torch (CPU or GPU) or DALI means that memory ran out."""
    if isinstance(error, RuntimeError):
        return bool(_OUT_OF_MEMORY.search(str(error).lower()))
    return isinstance(error, MemoryError)


@contextmanager
def explain_out_of_memory(advice: str) -> Iterator[None]:
    """Turn an out-of-memory error into a UserError that ends in `advice`."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise UserError(f"out of memory ({first_line(error)}); stop other programs, or {advice}") from error


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or the name of its type."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def exit_with_message(main: Callable[[], object]) -> None:
    """Run `main`; a UserError or an operating system error becomes one message on stderr and exit status 2."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # like stderr; file names may not be UTF-8
    try:
        with explain_out_of_memory("use a machine with more memory"):
            main()
        sys.stdout.flush()
    except UserError as error:
        _exit(2, f"error: {error}")
    except BrokenPipeError:  # the reader of the output, such as `head`, has exited
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        if error.filename is None:
            _exit(2, f"error: {error.strerror or first_line(error)}; check that the disks are mounted and not full")
        from gdt.common.files import is_disk_full, no_space  # which raises these errors

        if is_disk_full(error):
            _exit(2, f"error: {no_space(Path(error.filename).parent)}")
        advice = "check the path, its permissions and the free space"
        if error.errno in (errno.EOPNOTSUPP, errno.ENOSYS):
            advice = "its disk cannot extend or rename files; use a local one"
        _exit(2, f"error: {error.filename}: {error.strerror}; {advice}")
    except KeyboardInterrupt:
        _exit(INTERRUPT, INTERRUPTED)


def _exit(status: int, message: str) -> NoReturn:
    if os.environ.get("RANK", "0") != "0":  # of several processes, the first says it, and torchrun ends the others
        if status == INTERRUPT:
            sys.exit(status)
        time.sleep(_PATIENCE)
    print(message, file=sys.stderr)
    sys.exit(status)
