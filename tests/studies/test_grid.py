"""Clips of GRID with the labels that their names hold."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from gdt.common.errors import UserError
from gdt.studies.grid import labelled, words
from tests.conftest import Run


def test_real_clips_get_the_labels_that_others_gave_them(command: Run, real: Path, tmp_path: Path) -> None:
    folder = tmp_path / "grid"
    done = command("study", "grid", "--source", real / "grid", "--destination", folder)
    assert done.stdout.startswith("120 clips with command, colour,"), done.stderr
    assert labelled(real / "grid", folder) == 120  # again
    with (folder / "labels.csv").open() as made, (real / "grid" / "labels.csv").open() as given:
        found = {row["file"]: row for row in csv.DictReader(made)}
        assert all(
            found[row["file"]].items() >= (row | {"digit": row["digit"].replace("z", "0")}).items()
            for row in csv.DictReader(given)
        )
    assert all((folder / name).resolve() == (real / "grid" / name).resolve() for name in found)
    assert list(words("pwbxzn").values()) == ["place", "white", "by", "x", "0", "now"]


def test_other_folders_are_refused_and_left_as_they_are(real: Path, tmp_path: Path) -> None:
    for name in ("bbaf2", "SAR-2by3", "bbaw2n"):
        with pytest.raises(UserError, match=f"{name} is no name of a clip of GRID"):
            words(name)
    with pytest.raises(UserError, match="there are no videos in"):
        labelled(tmp_path, tmp_path / "new")
    own = tmp_path / "own" / "bbaf2n.mpg"
    own.parent.mkdir()
    own.write_bytes(b"a video of one's own")
    with pytest.raises(UserError, match=r"holds something else \(bbaf2n.mpg\)"):
        labelled(own.parent, own.parent)
    assert own.read_bytes() == b"a video of one's own"
    other = tmp_path / "s2" / own.name
    other.parent.mkdir()
    other.write_bytes(b"of another speaker")
    with pytest.raises(UserError, match="several clips in .* have one name"):
        labelled(tmp_path, tmp_path / "new")
    written = tmp_path / "written" / "labels.csv"
    written.parent.mkdir()
    written.write_text("file,mood\n")
    with pytest.raises(UserError, match="is of other clips, or was written by somebody"):
        labelled(own.parent, written.parent)
    assert written.read_text() == "file,mood\n" and not (tmp_path / "new").exists()
