"""Rows of measurements, written as soon as they are known, and their table."""

from __future__ import annotations

import json
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tabulate import tabulate

from gdt.common.errors import UserError, first_line, is_out_of_memory

Values = Mapping[str, float | str]
STARTED = "started"
"""Value of `failed` while a row is measured, or after its process has died."""
ROW_SECONDS = 600.0
"""Time limit of a row, unless it has its own."""
_LONG = ("why", "is")
"""Values that are sentences, shown last without a column."""


@dataclass(frozen=True)
class Row:
    """One measurement."""

    section: str
    what: str
    values: Values = field(default_factory=dict)
    failed: str = ""
    """Why there are no values; empty if there are."""
    limit: float = ROW_SECONDS
    """Seconds after which its process is stopped."""

    def __str__(self) -> str:
        values = ", ".join(f"{name} {_shown(value)}" for name, value in self.values.items())
        return f"[{self.section}] {self.what}: {self.failed or values}"


class Rows:
    """Measurements of one section, recorded when they start and when they are done, failed or skipped.

    Rows recorded by an earlier process are not measured again.
    """

    def __init__(self, path: Path, section: str, deadline: float, clean: Callable[[], None] = lambda: None) -> None:
        """`deadline` as of time.time(); `clean` frees memory after a measurement."""
        self.path, self.section, self._deadline, self._clean = path, section, deadline, clean

    def part(self, name: str) -> Rows:
        """Rows of the same section in a table of their own."""
        return Rows(self.path, f"{self.section}: {name}", self._deadline, self._clean)

    def __call__(self, what: str, measure: Callable[[], Values], limit: float = ROW_SECONDS) -> Values | None:
        """The values of `measure`; None where it fails. Exits where the device may be unusable afterwards."""
        for row in read(self.path):
            if (row.section, row.what) == (self.section, what):
                return row.values or None
        if time.time() > self._deadline:
            append(self.path, Row(self.section, what, failed="skipped: no time left"))
            return None
        append(self.path, Row(self.section, what, failed=STARTED, limit=limit))
        values: Values | None = None
        why, device_failed = "", False
        try:
            values = measure()
        except Exception as error:  # of compilers, drivers or libraries
            traceback.print_exc()
            memory = is_out_of_memory(error)
            why = "out of memory: " * memory + _describe(error)
            device_failed = isinstance(error, RuntimeError) and not memory
        append(self.path, Row(self.section, what, values or {}, why))
        if device_failed:
            sys.exit(1)
        self._clean()
        return values


def _describe(error: Exception) -> str:
    """Type and message of an error; the last line of one from another process."""
    lines = str(error).strip().splitlines()[-1:] if "Traceback" in str(error) else [first_line(error)]
    return ("" if isinstance(error, UserError) else f"{type(error).__name__}: ") + lines[0][:300]


def append(path: Path, row: Row) -> None:
    """Record a row, replacing an earlier record of it."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(row)) + "\n")


def read(path: Path) -> list[Row]:
    """The recorded rows; incomplete lines are skipped."""
    rows: dict[tuple[str, str], Row] = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else []:
        try:
            row = Row(**json.loads(line))
        except ValueError:
            continue
        rows[row.section, row.what] = row
    return list(rows.values())


def text(rows: Iterable[Row]) -> str:
    """A table per section: a column per number, sentences and failures at the end."""
    sections: dict[str, list[Row]] = {}
    for row in rows:
        sections.setdefault(row.section, []).append(row)
    parts = []
    for section, own in sections.items():
        names = list(dict.fromkeys(name for row in own for name in row.values if name not in _LONG))
        lines = [
            [row.what, *(_shown(row.values.get(name, "")) for name in names),
             row.failed or "; ".join(str(row.values[name]) for name in _LONG if name in row.values)]
            for row in own
        ]  # fmt: skip
        align = ["left", *["right"] * len(names), "left"]
        parts.append(tabulate(lines, [section, *names, ""], disable_numparse=True, colalign=align))
    return "\n\n".join(parts)


def _shown(value: float | str) -> str:
    if isinstance(value, str):
        return value
    return f"{value:.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.3g}"
