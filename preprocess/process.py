"""Run ffmpeg with limits on time and memory, and read its log."""

import contextlib
import errno
import os
import re
import resource
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import pairwise, takewhile
from pathlib import Path
from typing import BinaryIO

from gdt.common.errors import ABOVE_ZERO, UserError, require_range
from gdt.common.files import is_disk_full, no_space

_NOT_STARTED = {126, 127}
"""Exit statuses of a shell, setpriv or the dynamic linker when a program cannot be started."""
_EPERM = os.strerror(errno.EPERM)
_STOPPED = {255, -signal.SIGINT, -signal.SIGTERM, -signal.SIGHUP}
"""Exit statuses of an ffmpeg stopped from outside; ffmpeg itself exits with 255 after SIGINT and SIGTERM."""
_LIMITS = {-signal.SIGXFSZ: "size of files (ulimit -f)", -signal.SIGXCPU: "time of processes (ulimit -t)"}
"""The system's limits that end an ffmpeg with these exit statuses."""
_LOG_BYTES = 1 << 18
_GRACE = 60.0
"""Seconds that ffmpeg may take whatever the length of its output."""
_ERROR = re.compile(r"^(\[[^\]]* @ 0x[0-9a-f]+\] )*\[(error|fatal|panic)\] ")
"""Start of an error line; lines that quote the file start differently."""
_CONTINUED = re.compile(r"^\[info\] (?!  |Input #|Output #|Stream mapping:|frame=|size=|video:)")
"""Start of a line that continues the line of another thread. The line before it has lost its level and may be an
error."""
_STREAM = re.compile(r"^\[info\] +Stream #\d+:\d+.*?: (?:Video|Audio): (?!.*\(attached pic\))(.*)")
_FULL = ("No space left on device", "Disk quota exceeded")
_TOO_LARGE = "File too large"
_PASSING = ("Input/output error", "Stale file handle", "Connection timed out", "Remote I/O error")
_WRITING = re.compile(
    rf": ({'|'.join(_FULL)}|{_TOO_LARGE}|Read-only file system)$|"
    rf"\b(?:[Ww]rit|[Mm]ux|[Cc]los).*: ({'|'.join(_PASSING)})$"
)
"""End of an error line about a file that ffmpeg writes."""
_UNPRINTABLE = re.compile(rb"[\x00-\x07\x0e-\x1f]")
"""Bytes that ffmpeg prints as question marks."""
_CHANNEL = re.compile(r"^\[Parsed_astats_\d+ @ 0x[0-9a-f]+\] \[info\] Channel: (\d{1,3})$")
_REFUSED = re.compile(r"^\[([^ \]]+) @ 0x[0-9a-f]+\] \[error\] Format not on whitelist ")
_PEAK = re.compile(r"^\[Parsed_astats_\d+ @ 0x[0-9a-f]+\] \[info\] Peak level dB: (-?\d+\.\d+)$")


class Rejected(Exception):
    """This video cannot be used; the message is its reason in rejected.jsonl."""

    fault = False
    """Whether the machine is at fault: the next run tries the video again."""


class Unread(Rejected):
    """This machine cannot read the file now."""

    fault = True


class Failed(Rejected):
    """ffmpeg fails on this video, unless the machine is at fault."""


class Killed(Failed):
    """ffmpeg was killed, perhaps for memory that another process took."""

    fault = True


class _TimedOut(Failed):
    """ffmpeg exceeded its time limit."""


class _Retry(Exception):
    """ffmpeg was killed or stopped, or the disk did not answer, or its log is garbled: it may do better now."""


class Stopped(Exception):
    """The run ends."""


STOPPED: ContextVar[Callable[[], bool]] = ContextVar("stopped", default=lambda: False)
"""Whether `run` is to end its ffmpeg and raise Stopped; threads that can be stopped set it."""
_TICK = 0.2
"""Seconds after which that is seen."""


@dataclass(frozen=True)
class Limits:
    """Limits of one ffmpeg process; files that exceed them are rejected."""

    timeout_factor: float = 20.0
    """Seconds ffmpeg may take per second of video, plus one minute."""
    ffmpeg_memory: float = 4.0
    """Address space of each ffmpeg process, GiB; a smaller `ulimit -v` wins."""

    def __post_init__(self) -> None:
        require_range(self, "timeout_factor", "ffmpeg_memory", least=ABOVE_ZERO, most=1_000_000)


@dataclass(frozen=True)
class FfmpegLog:
    errors: list[str]
    streams: list[str]
    """Description of each stream of the input, but of cover art."""
    peaks: list[tuple[float, int]]
    """Peak in dBFS and number (from 0) of each measured channel."""


def run(arguments: list[str], limits: Limits, log: Path, *outputs: Path) -> FfmpegLog:
    """Run ffmpeg; retry once after a timeout with an idle CPU (suspended machine, stalled disk) or a useless log.

    Raises Rejected if the file is at fault, Failed if it or the machine may be, UserError if the machine is.
    """
    with contextlib.suppress(_Retry):
        return _run_once(arguments, limits, False, log, *outputs)
    return _run_once(arguments, limits, True, log, *outputs)


def _run_once(arguments: list[str], limits: Limits, last: bool, log: Path, *outputs: Path) -> FfmpegLog:
    for output in outputs:
        output.unlink(missing_ok=True)
    memory = _memory_limit(limits)
    with log.open("wb") as stderr, _start(arguments, memory, stderr) as process:
        began = time.monotonic()
        try:
            _wait(process, limits.timeout_factor)
        except _TimedOut:
            process.kill()
            _, _, used = os.wait4(process.pid, 0)
            if last or used.ru_utime + used.ru_stime > (time.monotonic() - began) / 2:
                raise
            raise _Retry from None
        finally:
            process.kill()  # no effect after it has ended
    lines = _read_log(log, arguments)
    if process.returncode in _NOT_STARTED:
        said = " ".join(["ffmpeg cannot be started:", *lines[-1:]])
        raise UserError(
            f"{said}; install it on every machine, and check that its "
            f"memory limit, {memory / (1 << 30):.3g} GiB (the smaller of --ffmpeg-memory and ulimit -v), is enough"
        )
    if process.returncode == -signal.SIGKILL:  # perhaps by the kernel, for memory that another process took
        if not last:
            raise _Retry
        raise Killed("ffmpeg was killed twice while decoding it, which too little memory can cause")
    errors = [_strip_prefix(line) for line in lines if _ERROR.match(line)]
    # its output may be truncated: make no shard of it. ffmpeg from 7 on exits with 255, too, for -EPERM
    if process.returncode in _STOPPED and not any(_EPERM in line for line in errors):
        if not last:
            raise _Retry  # if its worker is stopped, too, Dask repeats the task on another
        raise UserError(
            f"ffmpeg was stopped from outside while writing {log.parent}; run the same command again, with fewer "
            "--workers if memory ran out"
        )
    fault = _fault_of_machine(process.returncode, errors, log.parent)
    interrupted = [line for line, rest in pairwise(lines) if _CONTINUED.match(rest)]
    if (interrupted or any(f"({cause})" in fault for cause in _PASSING)) and not last:
        raise _Retry
    if fault:
        raise UserError(f"{fault}, and run the same command again")
    errors += [_strip_prefix(line) for line in interrupted]
    if process.returncode < 0:
        raise Failed(f"ffmpeg crashes on it ({signal.Signals(-process.returncode).name})")
    if process.returncode and not errors:
        errors = [f"ffmpeg ended with status {process.returncode}"]
    inputs = takewhile(lambda line: not line.startswith("[info] Output #"), lines)
    streams = [match[1] for match in map(_STREAM.match, inputs) if match]
    return FfmpegLog(errors, streams, _peaks(lines))


def _peaks(lines: Sequence[str]) -> list[tuple[float, int]]:
    """Peak and number of each channel: astats prints the channel on one line and its peak on the next."""
    peaks: list[tuple[float, int]] = []
    for channel_line, peak_line in pairwise(lines):
        channel = _CHANNEL.match(channel_line)
        peak = _PEAK.match(peak_line)
        if channel and peak:
            peaks.append((float(peak[1]), int(channel[1]) - 1))
    return peaks


def _fault_of_machine(status: int, errors: Sequence[str], folder: Path) -> str:
    """Which limit or disk made ffmpeg end with this status and these errors, and what to do; empty if none did."""
    cause = next((match[1] or match[2] for match in map(_WRITING.search, errors) if match), "")
    if status in _LIMITS or cause == _TOO_LARGE:
        limit = _LIMITS.get(status, _LIMITS[-signal.SIGXFSZ])
        return f"ffmpeg exceeds this machine's limit on the {limit}; raise it"
    if cause in _FULL or (status and not errors and _is_full(folder)):  # a full disk may hold no log
        return no_space(folder)
    return f"ffmpeg cannot write to {folder} ({cause}); mend that" if cause else ""


def _start(arguments: list[str], memory: int, stderr: BinaryIO) -> subprocess.Popen[bytes]:
    """Start ffmpeg, in a new session, so that the worker handles Ctrl-C. Raises UserError."""
    limited = ["sh", "-c", 'ulimit -v "$0" && exec "$@"', str(memory >> 10), *arguments]
    # without what changes or moves its messages
    env = {name: value for name, value in os.environ.items() if not name.startswith(("FFREPORT", "AV_LOG_"))}
    try:
        return subprocess.Popen(
            limited, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr, start_new_session=True, env=env
        )
    except OSError as error:
        raise UserError(
            f"ffmpeg cannot be started: {error.strerror}; check that it is installed on every machine, and the limits "
            "on processes and open files (ulimit -u, -n)"
        ) from error


def _memory_limit(limits: Limits) -> int:
    """Bytes of address space for ffmpeg: no more than this process has, since only root may raise that."""
    _, ours = resource.getrlimit(resource.RLIMIT_AS)
    memory = int(limits.ffmpeg_memory * (1 << 30))
    return memory if ours == resource.RLIM_INFINITY else min(memory, ours)


def _read_log(log: Path, arguments: list[str]) -> list[str]:
    """Lines of the log without our file names, which may look like ffmpeg's messages."""
    with log.open("rb") as file:
        text = file.read(_LOG_BYTES)
    names = (os.fsencode(argument) for argument in arguments if argument.startswith(("file:", "/")))
    for name in sorted(names, key=len, reverse=True):
        text = text.replace(name, b"").replace(_UNPRINTABLE.sub(b"?", name), b"")
    return text.decode(errors="replace").splitlines()


def _is_full(folder: Path) -> bool:
    """Try to write 1 MiB."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(1 << 20))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return is_disk_full(error)
    return False


def _wait(process: subprocess.Popen[bytes], timeout_factor: float) -> None:
    """Wait for the process to end. Raises _TimedOut if it takes too long for the seconds of video it has written."""
    assert process.stdout is not None
    began = time.monotonic()
    written = 0.0
    poll = select.poll()
    poll.register(process.stdout, select.POLLIN)
    while True:
        limit = _GRACE + timeout_factor * written
        remaining = began + limit - time.monotonic()
        if remaining <= 0:
            raise _TimedOut(f"ffmpeg took more than {limit:.0f} s to decode {written:.0f} s of the video")
        if STOPPED.get()():
            raise Stopped
        if not poll.poll(1000 * min(remaining, _TICK)):
            continue
        progress = os.read(process.stdout.fileno(), 1 << 16)
        if not progress:
            break
        for microseconds in re.findall(rb"out_time_us=(\d+)", progress):
            written = max(written, int(microseconds) / 1e6)
    try:
        process.wait(_GRACE)
    except subprocess.TimeoutExpired:
        raise _TimedOut(f"ffmpeg did not end within {_GRACE:.0f} s of its last line") from None


def _strip_prefix(line: str) -> str:
    """A log line without component, memory address and level; of a format that is not accepted, its name."""
    refused = _REFUSED.match(line)
    if refused:
        return f"files of the format {refused[1]} are not accepted"
    return _ERROR.sub("", line).strip(" :")
