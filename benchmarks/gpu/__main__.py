"""python -m benchmarks.gpu: every section in turn, each in a process of its own, within the minutes that were given.

This process imports nothing heavy. What crashes or hangs in the middle of a row has failed that row, which is written
down, and another process goes on with the next one.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.gpu.settings import parsed
from benchmarks.gpu.table import BEGUN, Row, append, read, text
from gdt.common.errors import UserError, exit_with_message

GRACE = 20.0
"""Seconds after its time in which a section may finish what it has begun."""
PATIENCE = 600.0
"""Seconds that a row may take."""
COMMAND = [sys.executable, "-m", "benchmarks.gpu.section"]
"""What a section's name, its deadline and the arguments of the command line are given to."""


def run(arguments: Sequence[str], say: Callable[[str], None] = print) -> str:
    """Metric all; the table, which is in the folder, too. Raises UserError where there is nothing to measure on."""
    settings = parsed(arguments)
    settings.out.mkdir(parents=True, exist_ok=True)
    rows, table = settings.out / "rows.jsonl", settings.out / "table.txt"
    rows.unlink(missing_ok=True)
    told: set[tuple[str, str]] = set()

    def tell() -> None:
        """Say, and put into the table, what has been measured since."""
        for row in read(rows):
            if row.failed != BEGUN and (row.section, row.what) not in told:
                told.add((row.section, row.what))
                say(str(row))
                table.write_text(text(read(rows)) + "\n")

    deadline = time.time() + 60 * settings.minutes
    for section in settings.sections:
        say(f"-- {section}, {max(0.0, deadline - time.time()) / 60:.1f} minutes left")
        log = settings.out / f"{section}.log"
        log.unlink(missing_ok=True)
        while _goes_on([*COMMAND, section, str(deadline), *arguments], section, rows, log, deadline, tell):
            pass
        tell()
        if section == "machine" and (failed := [row.failed for row in read(rows) if row.failed]):
            raise UserError(failed[0])
    return text(read(rows))


def _goes_on(
    command: list[str], section: str, rows: Path, log: Path, deadline: float, tell: Callable[[], None]
) -> bool:
    """Run a section in a process; whether another one should go on where it ended."""
    if time.time() > deadline:
        append(rows, Row(section, section, failed="skipped: no time is left"))
        return False
    before = len(read(rows))
    with log.open("ab") as file:
        # in a session of its own, so that what it starts ends with it
        child = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        how = _end(child, rows, deadline, tell)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    found = read(rows)
    for row in found:
        if row.failed == BEGUN:
            append(rows, replace(row, failed=f"{how}; see {log}"))
    if how and len(found) == before:  # it failed outside of any row
        append(rows, Row(section, section, failed=f"{how}; see {log}"))
    return bool(how) and len(found) > before and time.time() < deadline


def _end(child: subprocess.Popen[bytes], rows: Path, deadline: float, tell: Callable[[], None]) -> str:
    """How a process ends, if not well; "" where it does."""
    began = time.time()
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            status = child.wait(0.2)
            return f"ended with status {status}" if status else ""
        tell()
        if time.time() > deadline + GRACE:
            return "ended, as its time was up"
        if time.time() > max(began, rows.stat().st_mtime if rows.is_file() else 0.0) + PATIENCE:
            return f"ended, as it took more than {PATIENCE:.0f} s"


def main() -> None:
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    table = run(sys.argv[1:], lambda text: print(text, flush=True))
    print(f"\n{table}\n\nthe table is in {parsed(sys.argv[1:]).out}")


if __name__ == "__main__":
    exit_with_message(main)
