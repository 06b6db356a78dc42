"""Runs of the command line that tests start, wait for and look into."""

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
    """Of every step until now, from the first on; none before there is a log."""
    path = run / "metrics.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []
    assert [row["step"] for row in rows] == list(range(len(rows)))
    return [row["loss"] for row in rows]


def starts(run: Path) -> list[dict]:
    return json.loads((run / "run.json").read_text())


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


def wait_for(path: Path, lines: int = 1) -> None:
    """Until a file has so many lines, or one that has no end yet."""
    wait_until(lambda: path.is_file() and len(path.read_text().splitlines()) >= lines)


def begun(arguments: list[str], folder: Path, **environment: str) -> subprocess.Popen[str]:
    """`gdt` with these arguments, in a session of its own, once it has been started."""
    return subprocess.Popen(
        [sys.executable, "-m", "gdt", *arguments], cwd=folder, text=True, start_new_session=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
