"""Rows of csv files."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from gdt.common.errors import UserError
from gdt.common.files import open_regular

T = TypeVar("T")
Row = dict[str, str]


def read_csv(
    path: Path, columns: Sequence[str], parse: Callable[[Row], T], header: bool = True, delimiter: str = ","
) -> Iterator[T]:
    """Yield the parsed rows of a csv file with these columns; with a header, there may be others.

    Without a header, lines that begin with # are comments, and quotes may follow a blank. Raises UserError, with the
    line, for missing columns, rows of another length, text that is not csv or not UTF-8, and rows for which `parse`
    raises ValueError or KeyError.
    """
    with io.TextIOWrapper(open_regular(path), newline="", encoding="utf-8-sig") as file:
        rows = csv.DictReader(
            file, None if header else columns, strict=True, skipinitialspace=not header, delimiter=delimiter
        )
        expected = f"; expected {','.join(columns)}" if columns else ""
        try:
            if missing := [name for name in columns if name not in (rows.fieldnames or ())]:
                raise UserError(f"{path} has no column {', '.join(missing)}{expected}")
            for row in rows:
                if not header and row[columns[0]].startswith("#"):
                    continue
                if None in row or None in row.values():  # DictReader's marks of too many and too few values
                    raise ValueError(f"the row does not have {len(rows.fieldnames or ())} values")
                yield parse(row)
        except UnicodeDecodeError as error:
            raise UserError(f"{path} is not UTF-8 text: {error.reason}; convert it, or download it again") from error
        except (ValueError, KeyError, csv.Error) as error:
            reason = f"unknown value {error}" if isinstance(error, KeyError) else error
            raise UserError(f"line {rows.reader.line_num} of {path}: {reason}{expected}") from error
