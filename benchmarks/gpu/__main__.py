"""python -m benchmarks.gpu: run every section in its own process, within --minutes.

This process imports nothing heavy. A crash or hang fails the current row, which is recorded, and another process
continues with the next one.
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

from benchmarks.gpu.settings import MINUTES, parse_arguments
from benchmarks.gpu.table import ROW_SECONDS, STARTED, Row, append, read, text
from gdt.common.errors import UserError, exit_with_message

GRACE = 20.0
"""Seconds after the deadline for a section to finish its row."""
COMMAND = [sys.executable, "-m", "benchmarks.gpu.section"]
"""Followed by the section, its deadline and the arguments of the command line."""


def run(arguments: Sequence[str], say: Callable[[str], None] = print) -> str:
    """Run all sections; return the table, which is also in the folder. Raises UserError without a device."""
    settings = parse_arguments(arguments)
    settings.out.mkdir(parents=True, exist_ok=True)
    rows, table = settings.out / "rows.jsonl", settings.out / "table.txt"
    rows.unlink(missing_ok=True)
    reported: set[tuple[str, str]] = set()

    def report() -> None:
        """Print new rows and add them to the table."""
        for row in read(rows):
            if row.failed != STARTED and (row.section, row.what) not in reported:
                reported.add((row.section, row.what))
                say(str(row))
                table.write_text(text(read(rows)) + "\n")

    last = time.time() + 60 * settings.minutes
    for section in settings.sections:
        deadline = min(last, time.time() + 60 * MINUTES.get(section, settings.minutes))
        say(f"-- {section}, {max(0.0, deadline - time.time()) / 60:.1f} minutes left")
        log = settings.out / f"{section}.log"
        log.unlink(missing_ok=True)
        while _run_section([*COMMAND, section, str(deadline), *arguments], section, rows, log, deadline, report):
            pass
        report()
        if section == "machine" and (failed := [row.failed for row in read(rows) if row.failed]):
            raise UserError(failed[0])
    return text(read(rows))


def _run_section(
    command: list[str], section: str, rows: Path, log: Path, deadline: float, report: Callable[[], None]
) -> bool:
    """Run a section in a process; return whether another process should continue it."""
    if time.time() > deadline:
        append(rows, Row(section, section, failed="skipped: no time left"))
        return False
    before = len(read(rows))
    with log.open("ab") as file:
        # in its own session, so that its children end with it
        child = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        failure = _wait(child, rows, deadline, report)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    after = read(rows)
    for row in after:
        if row.failed == STARTED:
            append(rows, replace(row, failed=f"{failure}; see {log}"))
    if failure and len(after) == before:  # it failed outside of any row
        append(rows, Row(section, section, failed=f"{failure}; see {log}"))
    return bool(failure) and len(after) > before and time.time() < deadline


def _wait(child: subprocess.Popen[bytes], rows: Path, deadline: float, report: Callable[[], None]) -> str:
    """Wait for a process; return how it failed, or ""."""
    start = time.time()
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            status = child.wait(0.2)
            return f"ended with status {status}" if status else ""
        report()
        if time.time() > deadline + GRACE:
            return "stopped: out of time"
        limit = next((row.limit for row in read(rows) if row.failed == STARTED), ROW_SECONDS)
        if time.time() > max(start, rows.stat().st_mtime if rows.is_file() else 0.0) + limit:
            return f"stopped: took more than {limit:.0f} s"


def main() -> None:
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    arguments = sys.argv[1:]
    if arguments[:1] == ["--args"]:  # from make, as typed
        from gdt.common.variables import split  # its imports may be missing outside make

        arguments = split("ARGS", arguments[1])
    table = run(arguments, lambda text: print(text, flush=True))
    print(f"\n{table}\n\ntable.txt is in {parse_arguments(arguments).out}")


if __name__ == "__main__":
    exit_with_message(main)
