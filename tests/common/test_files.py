"""Atomic writes, kinds of paths, and opening of regular files only."""

from __future__ import annotations

import errno
import os
import socket
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


@pytest.fixture
def everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one of each kind of path, and a link to each."""
    (tmp_path / "file").write_text("text")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "fifo")
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket")  # a whole path may be too long for a socket
    (tmp_path / "device").symlink_to("/dev/zero")
    (tmp_path / "loop").symlink_to("loop")
    for name in ("file", "folder", "fifo", "socket", "device", "loop", "absent"):
        (tmp_path / f"to {name}").symlink_to(name)
    return tmp_path


KINDS = {
    "file": "", "folder": "a folder", "fifo": "a special file", "socket": "a special file", "device": "a special file",
    "loop": "missing", "to absent": "missing", "absent": "missing", "file/x": "missing", "a\0b": "missing",
    "x" * 300: "missing", "\ud800": "missing",
}  # fmt: skip


def test_kinds_of_paths(everything: Path) -> None:
    assert {name: kind(everything / name) for name in KINDS} == KINDS
    links = ("file", "folder", "fifo", "socket", "device", "loop")
    assert {name: kind(everything / f"to {name}") for name in links} == {name: KINDS[name] for name in links}


@pytest.mark.timeout(20)
def test_only_regular_files_are_opened(everything: Path) -> None:
    for name in ("file", "to file"):
        with open_regular(everything / name) as file:
            assert file.read() == b"text"
    for name in ("folder", "fifo", "socket", "device", "to folder", "to fifo", "to socket"):
        what = KINDS.get(name) or KINDS[name.removeprefix("to ")]
        with pytest.raises(UserError, match=f"/{name} is {what}, not a file; replace it with a regular file"):
            open_regular(everything / name)
    with pytest.raises(UserError, match="cannot read .*/absent: No such file or directory"):
        open_regular(everything / "absent")
    with pytest.raises(UserError, match="cannot read .*: .*null byte"):
        open_regular(everything / "a\0b")
