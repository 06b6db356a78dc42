"""Start runs of the command line, wait for them and read their logs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.conftest import ROOT


def losses(run: Path) -> list[float]:
    """Losses of all steps so far; empty without a log."""
    path = run / "metrics.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []
    assert [row["step"] for row in rows] == list(range(len(rows)))
    return [row["loss"] for row in rows]


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.01)


def wait_for(path: Path, lines: int = 1) -> None:
    """Wait until a file has `lines` lines, also counting an unfinished one."""
    wait_until(lambda: path.is_file() and len(path.read_text().splitlines()) >= lines)


def start_gdt(arguments: list[str], folder: Path, **environment: str) -> subprocess.Popen[str]:
    """Start `gdt` with these arguments in a new session."""
    return subprocess.Popen(
        [sys.executable, "-m", "gdt", *arguments], cwd=folder, text=True, start_new_session=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
