"""A folder of links to GRID clips, with the labels that their file names encode."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from gdt.common.errors import UserError
from gdt.common.files import write_text
from gdt.preprocess.datasets.labels import LABELS
from gdt.preprocess.datasets.listing import video_files
from gdt.studies.settings import Grid

WORDS: Mapping[str, Mapping[str, str]] = {
    "command": {"b": "bin", "l": "lay", "p": "place", "s": "set"},
    "colour": {"b": "blue", "g": "green", "r": "red", "w": "white"},
    "preposition": {"a": "at", "b": "by", "i": "in", "w": "with"},
    "letter": {letter: letter for letter in "abcdefghijklmnopqrstuvxyz"},
    "digit": {"z": "0"} | {digit: digit for digit in "123456789"},
    "adverb": {"a": "again", "n": "now", "p": "please", "s": "soon"},
}
"""The six words of a sentence in order, by their letters in the file name (Cooke et al. 2006)."""


def parse_name(name: str) -> dict[str, str]:
    """The words of a clip with a name such as `bbaf2n`. Raises UserError for other names."""
    if len(name) != len(WORDS) or any(letter not in words for letter, words in zip(name, WORDS.values(), strict=True)):
        raise UserError(
            f"{name} is not the name of a GRID clip, such as bbaf2n (a letter each for {', '.join(WORDS)}); set "
            "--source to the clips of GRID"
        )
    return {column: words[letter] for letter, (column, words) in zip(name, WORDS.items(), strict=True)}


def link_clips(source: Path, destination: Path) -> int:
    """Link the clips of `source` in `destination` and write labels.csv; return how many.

    Raises UserError where there are none, a name is not GRID's or occurs twice, a clip cannot be used, or `destination`
    holds other files.
    """
    clips = []
    for video in video_files(source.resolve()):
        if not isinstance(video, Path):
            raise UserError(f"{source}/{video.id} is not a GRID clip: {video.reason}")
        clips.append(video)
    if not clips:
        raise UserError(f"there are no videos in {source}; set --source to the folder with the clips of GRID")
    rows = {path.name: parse_name(path.stem) for path in clips}
    if len(rows) < len(clips):
        raise UserError(f"clips in {source} share names, as those of several speakers do; set --source to one speaker")
    lines = [["file", *WORDS], *([name, *words.values()] for name, words in rows.items())]
    table = "".join(",".join(line) + "\n" for line in lines)
    destination.mkdir(parents=True, exist_ok=True)
    links = {path.name for path in destination.iterdir() if path.is_symlink() and path.name in rows}
    labels = destination / LABELS
    if labels.is_file() and labels.read_text() != table:
        raise UserError(f"{labels} has other clips or labels; set --destination to a new folder")
    if other := sorted({path.name for path in destination.iterdir()} - links - {LABELS}):
        raise UserError(f"{destination} holds other files ({other[0]}); set --destination to a new folder")
    for path in clips:
        link = destination / path.name
        link.unlink(missing_ok=True)
        link.symlink_to(path)
    write_text(labels, table)
    return len(clips)


def grid(settings: Grid) -> str:
    """Link and label the clips; return a summary."""
    clips = link_clips(settings.source, settings.destination)
    return f"{clips} clips with {', '.join(WORDS)}: {settings.destination}/"
