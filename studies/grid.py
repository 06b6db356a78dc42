"""A folder of GRID clips with all labels that their names hold, beside which nothing is copied."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from gdt.common.errors import UserError
from gdt.common.files import write_text
from gdt.preprocess.datasets.labels import LABELS
from gdt.preprocess.datasets.listing import video_files
from gdt.studies.settings import Grid

SPOKEN: Mapping[str, Mapping[str, str]] = {
    "command": {"b": "bin", "l": "lay", "p": "place", "s": "set"},
    "colour": {"b": "blue", "g": "green", "r": "red", "w": "white"},
    "preposition": {"a": "at", "b": "by", "i": "in", "w": "with"},
    "letter": {letter: letter for letter in "abcdefghijklmnopqrstuvxyz"},
    "digit": {"z": "0"} | {digit: digit for digit in "123456789"},
    "adverb": {"a": "again", "n": "now", "p": "please", "s": "soon"},
}
"""The words of a clip in their order, each by its letter in the name of the file (Cooke et al. 2006)."""


def words(name: str) -> dict[str, str]:
    """What is said in a clip of this name, `bbaf2n` and the like. Raises UserError for a name of another kind."""
    if len(name) != len(SPOKEN) or any(letter not in said for letter, said in zip(name, SPOKEN.values(), strict=True)):
        raise UserError(
            f"{name} is no name of a clip of GRID, which has a letter for each of {', '.join(SPOKEN)} (bbaf2n)"
        )
    return {column: said[letter] for letter, (column, said) in zip(name, SPOKEN.items(), strict=True)}


def labelled(source: Path, destination: Path) -> int:
    """Links to the clips in `source`, and labels.csv, in `destination`; returns how many.

    Raises UserError where there are none, one has another name or two have the same, one cannot be used, or
    `destination` holds something else.
    """
    clips = []
    for found in video_files(source.resolve()):
        if not isinstance(found, Path):
            raise UserError(f"{source}/{found.id} is no clip of GRID: {found.reason}")
        clips.append(found)
    if not clips:
        raise UserError(f"there are no videos in {source}; set --source to the folder with the clips of GRID")
    rows = {path.name: words(path.stem) for path in clips}
    if len(rows) < len(clips):
        raise UserError(f"several clips in {source} have one name, as those of several speakers do; take one speaker")
    lines = [["file", *SPOKEN], *([name, *said.values()] for name, said in rows.items())]
    table = "".join(",".join(line) + "\n" for line in lines)
    destination.mkdir(parents=True, exist_ok=True)
    links = {path.name for path in destination.iterdir() if path.is_symlink() and path.name in rows}
    made = destination / LABELS
    if made.is_file() and made.read_text() != table:
        raise UserError(f"{made} is of other clips, or was written by somebody; set --destination to a new folder")
    if other := sorted({path.name for path in destination.iterdir()} - links - {LABELS}):
        raise UserError(f"{destination} holds something else ({other[0]}); set --destination to a new folder")
    for path in clips:
        link = destination / path.name
        link.unlink(missing_ok=True)
        link.symlink_to(path)
    write_text(made, table)
    return len(clips)


def grid(settings: Grid) -> str:
    """Do it; returns what was done."""
    clips = labelled(settings.source, settings.destination)
    return f"{clips} clips with {', '.join(SPOKEN)}: {settings.destination}/"
