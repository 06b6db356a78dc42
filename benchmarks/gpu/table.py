"""What was measured: rows that are kept as soon as they are there, and the table of them."""

from __future__ import annotations

import json
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from gdt.common.errors import UserError, first_line, is_out_of_memory
from gdt.common.files import write_text

Values = Mapping[str, float | str]
ROWS, BEGUN, TEXT, JSON = "rows.jsonl", "begun.json", "table.txt", "table.json"
AGAIN = "75"
"""Status with which a section asks for another process, since the device may be in no state to go on with."""
_PATIENCE, _LEAST = 5.0, 240.0
"""A row may take so many times as long as expected, and so many seconds in any case."""
_LONG = ("why", "is", "arithmetic")
"""Values that are sentences; they come last, without a column."""


@dataclass(frozen=True)
class Row:
    """One measurement."""

    section: str
    what: str
    values: Values = field(default_factory=dict)
    failed: str = ""
    """Why there are no values."""
    seconds: float = 0.0
    """That it took."""


@dataclass(frozen=True)
class Begun:
    """The row that is being measured."""

    what: str
    until: float
    """When it hangs, as of time.time()."""

    @staticmethod
    def read(folder: Path) -> Begun | None:
        """None where there is none."""
        try:
            return Begun(**json.loads((folder / BEGUN).read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None


class Rows:
    """Measurements of one process: each is written down when it is done, failed or skipped, and others go on."""

    def __init__(
        self, folder: Path, deadline: float, clean: Callable[[], None] = lambda: None,
        shaken: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        """`deadline` as of time.time(); `clean` gives memory back after a measurement, `shaken` is called after one
        that may have left the device in a bad state.
        """
        self._folder, self._deadline, self._clean, self._shaken = folder, deadline, clean, shaken
        self._known = {(row.section, row.what): row for row in read(folder / ROWS)}
        self._took: dict[str, float] = {}

    def __call__(
        self, section: str, what: str, measure: Callable[[], Values], expected: float = 30.0, kind: str = ""
    ) -> Values | None:
        """What `measure` returns; None where it failed, or where what is left is less than the expected seconds.

        Those of another measurement of the same kind are expected again. What a process before this one has written
        down is not measured again.
        """
        if (section, what) in self._known:
            return self._known[section, what].values or None
        expected = self._took.get(kind, expected)
        left = self._deadline - time.time()
        began = time.perf_counter()
        if left < expected:
            why = f"skipped: it needs about {expected:.0f} s, and {max(0, left):.0f} are left"
            self._add(Row(section, what, failed=why))
            return None
        begun = Begun(what, time.time() + max(_LEAST, _PATIENCE * expected))
        write_text(self._folder / BEGUN, json.dumps(asdict(begun)))
        values: Values | None = None
        why, shaken = "", False
        try:
            values = measure()
        except Exception as error:  # whatever compilers, drivers and libraries raise
            memory = is_out_of_memory(error)
            why = "out of memory: " * memory + _named(error)
            shaken = isinstance(error, RuntimeError) and not memory
            traceback.print_exc()
        if not shaken:
            self._clean()
        seconds = time.perf_counter() - began
        if values is not None:
            self._took[kind or what] = seconds
        self._add(Row(section, what, values or {}, why, round(seconds, 1)))
        (self._folder / BEGUN).unlink()
        if shaken:
            self._shaken()
        return values

    def note(self, section: str, what: str, values: Values) -> None:
        """What follows from measurements."""
        if (section, what) not in self._known:
            self._add(Row(section, what, values))

    def _add(self, row: Row) -> None:
        append(self._folder / ROWS, row)
        print(told(row), flush=True)
        sys.stderr.flush()


def _named(error: Exception) -> str:
    """What an error says; of one in another process, its last line, which tells what it was."""
    said = str(error).strip().splitlines()[-1:] if "Traceback" in str(error) else [first_line(error)]
    return ("" if isinstance(error, UserError) else f"{type(error).__name__}: ") + said[0][:300]


def append(path: Path, row: Row) -> None:
    """Write a row down."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(row)) + "\n")


def read(path: Path) -> list[Row]:
    """The rows that were written down; a last one that is not whole is left out."""
    if not path.is_file():
        return []
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            rows.append(Row(**json.loads(line)))
        except ValueError:
            break
    return rows


def write(folder: Path, rows: Sequence[Row], settings: str) -> str:
    """The table as text and as JSON; returns the text."""
    written = text(rows)
    write_text(folder / TEXT, written + "\n")
    listed = {"settings": json.loads(settings), "rows": [asdict(row) for row in rows]}
    write_text(folder / JSON, json.dumps(listed, indent=1) + "\n")
    return written


def text(rows: Sequence[Row]) -> str:
    """A table per section."""
    parts = []
    for section in dict.fromkeys(row.section for row in rows):
        own = [row for row in rows if row.section == section]
        names = list(dict.fromkeys(name for row in own for name in row.values if name not in _LONG))
        lines = [[section, *names]]
        lines += [[row.what, *(_shown(row.values.get(name, "")) for name in names)] for row in own]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        cells = [
            "  ".join([line[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(line[1:], widths[1:], strict=True))])
            for line in lines
        ]
        after = [row.failed or "; ".join(str(row.values[name]) for name in _LONG if name in row.values) for row in own]
        rule = "  ".join("-" * width for width in widths)
        made = [cells[0], rule, *(f"{a}  {b}".rstrip() for a, b in zip(cells[1:], after, strict=True))]
        parts.append("\n".join(made))
    return "\n\n".join(parts)


def told(row: Row) -> str:
    """A row in a line of its own."""
    values = ", ".join(f"{name} {_shown(value)}" for name, value in row.values.items())
    return f"[{row.section}] {row.what}: {row.failed or values}"


def _shown(value: float | str) -> str:
    if isinstance(value, str):
        return value
    return f"{value:.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.3g}"
