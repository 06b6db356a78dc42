"""The parent process that reports how its child ended."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.conftest import ROOT

PROGRAM = """
import os, signal, sys, time
from gdt.common.errors import UserError, exit_with_message
from gdt.common import supervise
from pathlib import Path

def main():
    {body}

Path("vmstat").write_text("pgfault 5\\noom_kill 3\\n")
supervise._VMSTAT = Path("vmstat")
supervise.supervise(lambda: exit_with_message(main), "go on with the same command")
"""


def start(body: str, folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(body=body)], cwd=folder, env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("body", "code", "message"),
    [
        ("print('done')", 0, ""),
        ("sys.exit(3)", 3, ""),
        ("raise UserError('it is wrong; mend it')", 2, "error: it is wrong; mend it\n"),
        (
            "import ctypes; ctypes.string_at(8)",
            139,
            rf"\nerror: crashed \(SIGSEGV\) at \S+/ctypes/__init__\.py:\d+ in string_at, "
            rf"called at {ROOT}/gdt/common/errors\.py:\d+ in exit_with_message; ",
        ),
        ("os.abort()", 134, r"\nerror: crashed \(SIGABRT\) at <string>:8 in main, called at "),
        (
            "import threading; thread = threading.Thread(target=os.abort, name='x'); thread.start(); time.sleep(60)",
            134,
            r"\nerror: crashed \(SIGABRT\) at \S+/threading\.py:\d+ in run; ",
        ),
        ("os.kill(os.getpid(), signal.SIGKILL)", 137, r"\nerror: killed \(SIGKILL\); "),
        (  # as the kernel counts it
            "open('vmstat', 'w').write('pgfault 9\\noom_kill 4\\n'); os.kill(os.getpid(), signal.SIGKILL)",
            137,
            r"\nerror: killed \(SIGKILL\), and the kernel killed processes because memory ran out; ",
        ),
        ("os.kill(os.getpid(), signal.SIGTERM)", 143, r"\nterminated; "),
    ],
)
def test_the_end_of_the_child_is_reported(tmp_path: Path, body: str, code: int, message: str) -> None:
    process = start(body, tmp_path)
    output, error = process.communicate(timeout=30)
    assert process.returncode == code
    assert re.match(message, error) and error.strip().count("\n") == 0, error
    assert bool(message) == bool(error) and "damaged" not in error
    if code > 128 and message:
        assert error.endswith("go on with the same command\n")
    assert output == ("done\n" if code == 0 else "")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP])
def test_signals_reach_the_child(tmp_path: Path, number: signal.Signals) -> None:
    # short sleeps: a signal just before one is seen only at its end
    wait = "[time.sleep(0.1) for _ in range(600)]"
    body = f"signal.signal({int(number)}, lambda n, f: sys.exit(50 + n)); print('ready', flush=True); {wait}"
    process = start(body, tmp_path)
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    assert process.wait(timeout=30) == 50 + number


def test_the_child_dies_with_its_parent(tmp_path: Path) -> None:
    process = start("print('ready', flush=True); time.sleep(60)", tmp_path)
    assert process.stdout.readline() == "ready\n"
    (child,) = psutil.Process(process.pid).children()
    process.kill()
    process.wait()
    deadline = time.monotonic() + 10
    while child.is_running() and child.status() != psutil.STATUS_ZOMBIE and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE
