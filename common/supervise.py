"""A parent that tells a crash of its child in a sentence.

Decoders and drivers are compiled code: what goes wrong there can end the process without a word. So a command that
uses them runs in a child, and its parent, which does nothing else, says how the child ended.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable

_PASSED_ON = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2}
WATCHED = {*_PASSED_ON, signal.SIGCHLD}
"""What a parent waits for that does nothing else."""
_CRASHES = {signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE}
_FROM_TERMINAL = 0x80
"""SI_KERNEL: the whole process group gets it, the child too."""
_PR_SET_PDEATHSIG = 1
PARENT_PID = "GDT_PARENT_PID"
"""The variable by which a command that starts others tells them its process number, with which they end."""


def supervise(main: Callable[[], None], what_next: str) -> None:
    """Run `main` in a child process; signals are passed on to it, and it dies with its parent.

    Exits with the child's status, or 128 + n after a sentence where signal n ended it; `what_next` says what to do.
    Call it before anything starts threads.
    """
    if starter := os.environ.pop(PARENT_PID, ""):
        die_with(int(starter))
    before = signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        die_with(parent)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        main()
        return
    status = None
    while status is None:
        told = signal.sigwaitinfo(WATCHED)
        if told.si_signo == signal.SIGCHLD:
            ended, value = os.waitpid(child, os.WNOHANG)
            status = value if ended else None
        elif not is_ctrl_c(told):
            os.kill(child, told.si_signo)
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        sys.exit(code)
    name, why = signal.Signals(-code).name, ""
    if -code in _CRASHES:
        why = (
            f"it crashed ({name}), as compiled libraries do on damaged data, for which 'make verify' with DATASET= and "
            "FULL=1 looks"
        )
    elif -code == signal.SIGKILL:
        why = f"it was killed ({name}), as the system does where memory runs out"
    if why:
        print(f"\nerror: {why}; {what_next}", file=sys.stderr)  # below the progress bar that the child left
    sys.exit(128 - code)


def is_ctrl_c(told: signal.struct_siginfo) -> bool:
    """Whether a signal is a Ctrl-C, which the terminal sends to the children, too."""
    return told.si_signo == signal.SIGINT and told.si_code == _FROM_TERMINAL


def die_with(parent: int) -> None:
    """Be killed when the parent is, where Linux can do that."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before
        os._exit(1)
