"""Running ffmpeg within limits of time and memory, and what it says of a file."""

from __future__ import annotations

import os
import re
import resource
import select
import shutil
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

from gdt.common.errors import UserError
from gdt.common.files import is_disk_full

_NOT_STARTED = {126, 127}
"""Exit statuses of a shell, of setpriv and of the loader of libraries where a program cannot be started."""
_STOPPED = {255, -signal.SIGINT, -signal.SIGTERM, -signal.SIGKILL, -signal.SIGHUP}
"""Exit statuses of an ffmpeg that somebody ended; 255 is its own for SIGINT and SIGTERM."""
_LOG_BYTES = 1 << 16
_GRACE = 60.0
"""Seconds that ffmpeg may take before its time is set against the length of what it wrote."""
_COMPLAINT = re.compile(r"^(\[[^\]]* @ 0x[0-9a-f]+\] )*\[(error|fatal|panic)\] ")
"""How a line of ffmpeg's log begins that tells of an error, and no line that quotes the file does."""
_REST = re.compile(r"^\[info\] (?!  |Input #|Output #|Stream mapping:|frame=|size=|video:)")
"""How the rest of a line begins that another thread of ffmpeg spoke into: the words before it lost their own beginning,
and with it what would tell that they are an error.
"""
_HDR = re.compile(r"^\[info\] +Stream #\d+:\d+.*: Video: .*\b(smpte2084|arib-std-b67)\b")
_FULL = re.compile(r": (No space left on device|Disk quota exceeded)$")
_UNPRINTABLE = re.compile(rb"[\x00-\x07\x0e-\x1f]")
"""What ffmpeg replaces by question marks."""
_LENGTH = re.compile(r"\[info\] +Duration: (\d+):(\d\d):(\d\d\.\d+)")


class Rejected(Exception):
    """This video cannot be used; the message is the reason a person reads in rejected.jsonl."""


class _TooSlow(Rejected):
    """ffmpeg took too long."""


class _OnceMore(Exception):
    """ffmpeg says that the disk is full, and it is not, or not any more; or two of its threads spoke at once."""


@dataclass(frozen=True)
class Limits:
    """What one ffmpeg process may take."""

    patience: float
    """Seconds for each second of video, after a first minute."""
    memory: float
    """GiB of address space."""


@cache
def dies_with_parent() -> tuple[str, ...]:
    """A killed worker takes its ffmpeg with it, where util-linux is installed."""
    return ("setpriv", "--pdeathsig", "KILL") if shutil.which("setpriv") else ()


@dataclass(frozen=True)
class Log:
    """What ffmpeg said."""

    complaints: list[str]
    """Errors, the first first."""
    hdr: bool
    """Whether the picture is coded for a brighter screen than an ordinary one."""
    seconds: float
    """How long the file says that it is; 0 where it does not say."""


def run(arguments: list[str], limits: Limits, log: Path, *outputs: Path) -> Log:
    """Run ffmpeg; once more where it was too slow without working (a machine that slept, a disk that stalled), or where
    its words are of no use.

    Raises Rejected where the file is to blame, and UserError where the machine is.
    """
    for last in (False, True):
        busy = _children_seconds()
        began = time.monotonic()
        try:
            return _run_once(arguments, limits, last, log, *outputs)
        except _TooSlow:
            if last or _children_seconds() - busy > (time.monotonic() - began) / 2:
                raise
        except _OnceMore:
            pass
    raise AssertionError("unreachable")


def _children_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _run_once(arguments: list[str], limits: Limits, last: bool, log: Path, *outputs: Path) -> Log:
    for output in outputs:
        output.unlink(missing_ok=True)
    with (
        log.open("wb") as stderr,
        subprocess.Popen(
            arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr, start_new_session=True
        ) as process,  # Ctrl-C is for the worker to act on
    ):
        try:
            memory = int(limits.memory * (1 << 30))
            resource.prlimit(process.pid, resource.RLIMIT_AS, (memory, memory))
            _wait(process, limits.patience)
        finally:
            process.kill()  # no effect on one that has ended
    lines = _lines(log, arguments)
    if process.returncode in _NOT_STARTED:
        raise UserError(
            f"{' '.join(['ffmpeg cannot be started:', *lines[-1:]])}; see that it is installed on every machine, and "
            f"that --memory {limits.memory:g} is enough for it"
        )
    if process.returncode in _STOPPED:
        # what it wrote may be cut, and the video is not to blame: no shard is made of it
        raise UserError(
            f"ffmpeg was stopped from outside (by a signal, or for lack of memory) while it wrote {log.parent}; run "
            "the same command again, with fewer --workers or a smaller --memory if memory ran out"
        )
    complaints = [_without_prefix(line) for line in lines if _COMPLAINT.match(line)]
    says_full = any(map(_FULL.search, complaints))
    if (says_full or (process.returncode and not complaints)) and _is_full(log.parent):  # maybe too full to say so
        raise UserError(f"no space left on the disk of {log.parent}; free some and run the same command again")
    broken = [line for line, rest in pairwise(lines) if _REST.match(rest)]
    if (says_full or broken) and not last:
        raise _OnceMore
    complaints += [_without_prefix(line) for line in broken]  # better a strange note than none
    if process.returncode < 0:
        raise Rejected(f"ffmpeg crashes on it ({signal.Signals(-process.returncode).name})")
    if process.returncode and not complaints:
        complaints = [f"ffmpeg ended with status {process.returncode}"]
    length = next(filter(None, map(_LENGTH.match, lines)), None)
    hours, minutes, seconds = map(float, length.groups()) if length else (0.0, 0.0, 0.0)
    return Log(complaints, any(map(_HDR.search, lines)), 3600 * hours + 60 * minutes + seconds)


def _lines(log: Path, arguments: list[str]) -> list[str]:
    """The lines of the log without the names in them, of files that we gave it: only ffmpeg's own words are judged."""
    with log.open("rb") as file:
        text = file.read(_LOG_BYTES)
    names = (os.fsencode(argument) for argument in arguments if argument.startswith(("file:", "/")))
    for name in sorted(names, key=len, reverse=True):
        text = text.replace(name, b"").replace(_UNPRINTABLE.sub(b"?", name), b"")
    return text.decode(errors="replace").splitlines()


def _is_full(folder: Path) -> bool:
    """Whether the disk says so itself."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(1 << 20))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return is_disk_full(error)
    return False


def _wait(process: subprocess.Popen[bytes], patience: float) -> None:
    """Until the process ends. Raises Rejected where it takes too long for the seconds of video it has written."""
    assert process.stdout is not None
    began, written = time.monotonic(), 0.0
    poll = select.poll()
    poll.register(process.stdout, select.POLLIN)
    while True:
        limit = _GRACE + patience * written
        remaining = began + limit - time.monotonic()
        if remaining > 3600:  # poll takes no more than 24 days
            remaining = 3600.0
        elif remaining <= 0:
            raise _TooSlow(f"ffmpeg took more than {limit:.0f} s for {written:.0f} s of it")
        if not poll.poll(1000 * remaining):
            continue
        progress = os.read(process.stdout.fileno(), 1 << 16)
        if not progress:
            break
        for microseconds in re.findall(rb"out_time_us=(\d+)", progress):
            written = max(written, int(microseconds) / 1e6)
    process.wait()


def _without_prefix(line: str) -> str:
    """A line of the log without what comes before its text: the part of ffmpeg, an address in memory, the level."""
    return _COMPLAINT.sub("", line).strip(" :")
