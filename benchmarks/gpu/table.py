"""What was measured: rows that are kept as soon as they are there, and the table of them."""

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
BEGUN = "it has begun"
"""Why a row has no values that is being measured, or whose process has died."""
_LONG = ("why", "is")
"""Values that are sentences; they come last, without a column."""


@dataclass(frozen=True)
class Row:
    """One measurement."""

    section: str
    what: str
    values: Values = field(default_factory=dict)
    failed: str = ""
    """Why there are no values."""

    def __str__(self) -> str:
        values = ", ".join(f"{name} {_shown(value)}" for name, value in self.values.items())
        return f"[{self.section}] {self.what}: {self.failed or values}"


class Rows:
    """Measurements of one section: each is written down when it begins and when it is done, failed or skipped.

    What is written down already, by a process that came to its end in between, is not measured again.
    """

    def __init__(self, path: Path, section: str, deadline: float, clean: Callable[[], None] = lambda: None) -> None:
        """`deadline` as of time.time(); `clean` gives memory back after a measurement."""
        self.path, self._section, self._deadline, self._clean = path, section, deadline, clean

    def __call__(self, what: str, measure: Callable[[], Values]) -> Values | None:
        """What `measure` returns; None where it fails. Exits where the device may be in no state to go on with."""
        for row in read(self.path):
            if (row.section, row.what) == (self._section, what):
                return row.values or None
        if time.time() > self._deadline:
            append(self.path, Row(self._section, what, failed="skipped: no time is left"))
            return None
        append(self.path, Row(self._section, what, failed=BEGUN))
        values: Values | None = None
        why, shaken = "", False
        try:
            values = measure()
        except Exception as error:  # whatever compilers, drivers and libraries raise
            traceback.print_exc()
            memory = is_out_of_memory(error)
            why = "out of memory: " * memory + _named(error)
            shaken = isinstance(error, RuntimeError) and not memory
        append(self.path, Row(self._section, what, values or {}, why))
        if shaken:
            sys.exit(1)
        self._clean()
        return values


def _named(error: Exception) -> str:
    """What an error says; of one in another process, its last line, which tells what it was."""
    said = str(error).strip().splitlines()[-1:] if "Traceback" in str(error) else [first_line(error)]
    return ("" if isinstance(error, UserError) else f"{type(error).__name__}: ") + said[0][:300]


def append(path: Path, row: Row) -> None:
    """Write a row down; it takes the place of what was said of it before."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(row)) + "\n")


def read(path: Path) -> list[Row]:
    """The rows that were written down; what is not whole is left out."""
    rows: dict[tuple[str, str], Row] = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else []:
        try:
            row = Row(**json.loads(line))
        except ValueError:
            continue
        rows[row.section, row.what] = row
    return list(rows.values())


def text(rows: Iterable[Row]) -> str:
    """A table per section: a column for every figure, sentences and reasons at the end."""
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
