"""Run a command in a child process: decoders and drivers may crash it without a message, so its parent reports how it
ended.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path

_FORWARDED = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2}
WATCHED = {*_FORWARDED, signal.SIGCHLD}
"""The signals that a parent waits for."""
_CRASHES = {signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE}
_SI_KERNEL = 0x80
_PR_SET_PDEATHSIG = 1
_FRAME = re.compile(r'^  File "(.*)", line (\d+) in (.*)$', re.M)
"""A stack frame printed by faulthandler."""
_VMSTAT = Path("/proc/vmstat")
PARENT_PID = "GDT_PARENT_PID"
"""Environment variable: ID of the parent process; the command ends when that process ends."""


def supervise(main: Callable[[], None], advice: str) -> None:
    """Run `main` in a child process, which gets all signals and dies with its parent; returns in the child only.

    The parent exits with the child's status, or 128 + n after signal n; the message after a crash ends in `advice`.
    Call it before starting any thread.
    """
    if starter := os.environ.pop(PARENT_PID, ""):
        _die_with(int(starter))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
    parent, kills, trace = os.getpid(), _oom_kills(), os.memfd_create("crash")
    child = os.fork()
    if child == 0:
        _die_with(parent)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        faulthandler.enable(trace)
        main()
        return
    status = None
    while status is None:
        info = signal.sigwaitinfo(WATCHED)
        if info.si_signo == signal.SIGCHLD:
            ended, value = os.waitpid(child, os.WNOHANG)
            status = value if ended else None
        elif not is_ctrl_c(info):
            os.kill(child, info.si_signo)
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        sys.exit(code)
    name = signal.Signals(-code).name
    if -code in _CRASHES:
        where = _where(os.pread(trace, os.fstat(trace).st_size, 0).decode(errors="replace"))
        print(f"\nerror: crashed ({name}) {where}; {advice}", file=sys.stderr)  # below the child's progress bar
    elif -code == signal.SIGKILL:
        cause = ", and the kernel killed processes because memory ran out" if _oom_kills() > kills else ""
        print(f"\nerror: killed ({name}){cause}; {advice}", file=sys.stderr)
    elif -code == signal.SIGTERM:
        print(f"\nterminated; {advice}", file=sys.stderr)
    sys.exit(128 - code)


def _where(trace: str) -> str:
    """Where a thread crashed, from faulthandler's text: its innermost frame, and its innermost of this package."""
    _, _, stack = trace.rpartition("Current thread ")
    frames = [f"{path}:{line} in {name}" for path, line, name in _FRAME.findall(stack.split("\n\n")[0])]
    if not frames:
        return "in a thread that runs no Python code"
    ours = next((frame for frame in frames if frame.startswith(f"{Path(__file__).parents[1]}/")), frames[0])
    return f"at {frames[0]}" + (f", called at {ours}" if ours != frames[0] else "")


def _oom_kills() -> int:
    """How many processes the kernel has killed because memory ran out; 0 if unknown."""
    try:
        counts = dict(line.split() for line in _VMSTAT.read_text().splitlines())
    except OSError:
        return 0
    return int(counts.get("oom_kill", 0))


def is_ctrl_c(info: signal.struct_siginfo) -> bool:
    """Whether a signal is a Ctrl-C, which the terminal also sends to the children."""
    return info.si_signo == signal.SIGINT and info.si_code == _SI_KERNEL


def _die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent ends (on Linux)."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it has ended already
        os._exit(1)
