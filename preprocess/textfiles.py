"""Text files, and rows of csv files."""

import codecs
import csv
import io
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from pathlib import PurePath
from typing import TextIO, TypeVar

from gdt.common.errors import UserError
from gdt.common.folders import File

T = TypeVar("T")
Row = dict[str, str]


def composed(text: str | PurePath) -> str:
    """Text or a path in composed Unicode: some systems store é as one character in names, others as two."""
    return unicodedata.normalize("NFC", str(text))


def open_text(source: File, errors: str = "strict") -> TextIO:
    """Open text in UTF-8, or in UTF-16 if it begins with that mark. Raises UserError if that fails."""
    file = source.open()
    mark = file.read(2)
    file.seek(0)
    encoding = "utf-16" if mark in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else "utf-8-sig"
    return io.TextIOWrapper(file, newline="", encoding=encoding, errors=errors)


def read_csv(
    source: File, columns: Sequence[str], parse: Callable[[Row], T], header: bool = True, delimiters: str = ","
) -> Iterator[T]:
    """Yield the parsed rows of a csv file with these columns; with a header, there may be others.

    The first of the `delimiters` that the first line has divides the values.

    Text becomes composed Unicode. Without a header, lines that begin with # are comments, and quotes may follow a
    blank. Raises UserError, with the line, for missing columns, rows of another length, text that is not csv or not
    UTF-8, and rows for which `parse` raises ValueError or KeyError.
    """
    with open_text(source) as file:
        names = None if header else columns
        expected = f"; expected {','.join(columns)}" if columns else ""
        try:
            first = file.readline(1 << 16)
            file.seek(0)
            delimiter = next((character for character in delimiters if character in first), delimiters[0])
            lines = map(composed, file)
            rows = csv.DictReader(lines, names, strict=True, skipinitialspace=not header, delimiter=delimiter)
            heads = [name.strip() for name in rows.fieldnames or () if name.strip()]
            twice = [name for name in heads if heads.count(name) > 1]
            if twice:
                raise UserError(f"{source} has two columns '{twice[0]}'; rename or remove one")
            missing = [name for name in columns if name not in (rows.fieldnames or ())]
            if missing:
                raise UserError(f"{source} has no column {', '.join(missing)}{expected}")
            for row in rows:
                if not header and row[columns[0]].startswith("#"):
                    continue
                if None in row or None in row.values():  # DictReader's marks of too many and too few values
                    raise ValueError(f"the row does not have {len(rows.fieldnames or ())} values")
                yield parse(row)
        except UnicodeDecodeError as error:
            raise UserError(f"{source} is not UTF-8 text: {error.reason}; convert it, or download it again") from error
        except (ValueError, KeyError, csv.Error) as error:
            reason = f"unknown value {error}" if isinstance(error, KeyError) else error
            raise UserError(f"line {rows.reader.line_num} of {source}: {reason}{expected}") from error
