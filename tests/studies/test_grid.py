"""GRID clips with the labels in their file names."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from gdt.common.errors import UserError
from gdt.studies.grid import link_clips, parse_name
from tests.conftest import Run


def test_real_clips_get_their_published_labels(command: Run, real: Path, tmp_path: Path) -> None:
    folder = tmp_path / "grid"
    done = command("study", "grid", "--source", real / "grid", "--destination", folder)
    assert done.stdout.startswith("120 clips with command, colour,"), done.stderr
    assert link_clips(real / "grid", folder) == 120  # again
    with (folder / "labels.csv").open() as written, (real / "grid" / "labels.csv").open() as published:
        found = {row["file"]: row for row in csv.DictReader(written)}
        assert all(
            found[row["file"]].items() >= (row | {"digit": row["digit"].replace("z", "0")}).items()
            for row in csv.DictReader(published)
        )
    assert all((folder / name).resolve() == (real / "grid" / name).resolve() for name in found)
    assert list(parse_name("pwbxzn").values()) == ["place", "white", "by", "x", "0", "now"]


def test_other_folders_are_refused_and_not_changed(real: Path, tmp_path: Path) -> None:
    for name in ("bbaf2", "SAR-2by3", "bbaw2n"):
        with pytest.raises(UserError, match=f"{name} is not the name of a GRID clip"):
            parse_name(name)
    with pytest.raises(UserError, match="there are no videos in"):
        link_clips(tmp_path, tmp_path / "new")
    own = tmp_path / "own" / "bbaf2n.mpg"
    own.parent.mkdir()
    own.write_bytes(b"a video")
    with pytest.raises(UserError, match=r"holds other files \(bbaf2n.mpg\)"):
        link_clips(own.parent, own.parent)
    assert own.read_bytes() == b"a video"
    other = tmp_path / "s2" / own.name
    other.parent.mkdir()
    other.write_bytes(b"of another speaker")
    with pytest.raises(UserError, match="clips in .* share names"):
        link_clips(tmp_path, tmp_path / "new")
    written = tmp_path / "written" / "labels.csv"
    written.parent.mkdir()
    written.write_text("file,mood\n")
    with pytest.raises(UserError, match="has other clips or labels"):
        link_clips(own.parent, written.parent)
    assert written.read_text() == "file,mood\n" and not (tmp_path / "new").exists()
