"""Atomic writes, kinds of paths, and files that cannot be opened."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from gdt.common.errors import UserError
from gdt.common.files import kind, open_regular, write_lines, write_text, writing


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, partial = tmp_path / "a.txt", tmp_path / f"a.txt.{os.getpid()}.partial"
    flushed: list[int] = []
    sync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: [flushed.append(os.fstat(file).st_size), sync(file)])
    write_text(path, "before \N{SNOWMAN}\n")
    for left in (partial, tmp_path / "a.txt.1.partial"):
        os.mkfifo(left)  # a leftover may be anything
    with pytest.raises(ZeroDivisionError), writing(path) as file:
        assert file.name == str(partial)
        file.write(b"half")
        1 / 0  # noqa: B018
    assert [*tmp_path.iterdir()] == [path] and path.read_text() == "before \N{SNOWMAN}\n"
    write_lines(path, (f"{number}\n" for number in range(2)))
    assert path.read_bytes() == b"0\n1\n" and flushed == [11, 4]
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with writing(path, scratch) as file, Path(file.name).open("r+b") as other:  # as libraries do that take a name
        assert file.name == str(scratch / "a.txt")
        other.write(b"by name")
    assert path.read_bytes() == b"by name" and not [*scratch.iterdir()]
    with pytest.raises(OSError, match=f"No space left on device: '{path}'"), writing(path):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # write() names no file


def test_of_two_writers_the_first_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.txt"
    with pytest.raises(FileNotFoundError), writing(path) as one:
        one.write(b"unfinished")
        monkeypatch.setattr("os.getpid", lambda: 1)  # another process
        with writing(path) as other:
            other.write(b"whole")
    assert path.read_bytes() == b"whole" and [*tmp_path.iterdir()] == [path]


def test_kinds_of_paths(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("text")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "fifo")
    for name in ("file", "folder", "fifo", "absent"):
        (tmp_path / f"to {name}").symlink_to(name)
    kinds = {"file": "", "folder": "a folder", "fifo": "a special file", "absent": "missing"}
    for name, what in kinds.items():
        assert kind(tmp_path / name) == kind(tmp_path / f"to {name}") == what
    for name in ("file/x", "a\0b", "x" * 300, "\ud800"):
        assert kind(tmp_path / name) == "missing"


@pytest.mark.parametrize(("name", "why"), [(".", "Is a directory"), ("absent", "No such file"), ("a\0b", ".*null")])
def test_what_cannot_be_opened_is_said(tmp_path: Path, name: str, why: str) -> None:
    with pytest.raises(UserError, match=f"cannot read .*: {why}"):
        open_regular(tmp_path / name)
