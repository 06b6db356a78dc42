"""Atomic writes, kinds of paths, and files that cannot be opened."""

import errno
import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gdt.common import files
from gdt.common.errors import UserError
from gdt.common.files import (
    kind,
    lock,
    locked,
    no_space,
    open_regular,
    require_space,
    write_lines,
    write_text,
    writing,
)
from gdt.common.folders import Folder, local_path
from tests.conftest import ROOT


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


def test_libraries_write_from_the_beginning_to_the_end(tmp_path: Path) -> None:
    """As disks without random access need it; what the system says of a file names it."""
    arrays = {"a": np.arange(5), "b": np.zeros((2, 3))}
    for save in (np.savez, np.savez_compressed, lambda file, **values: torch.save(values, file)):
        with writing(tmp_path / "file") as file:
            save(file, **arrays)
        with (tmp_path / "file").open("rb") as content:
            loaded = torch.load(content, weights_only=False) if save not in (np.savez, np.savez_compressed) else None
            found = loaded or dict(np.load(tmp_path / "file"))
        assert all(np.array_equal(found[name], arrays[name]) for name in arrays)
    with pytest.raises(OSError, match="seek"), writing(tmp_path / "other") as file:
        file.seek(0)
    with pytest.raises(OSError, match=f"not supported: '{tmp_path}/other'"), writing(tmp_path / "other"):
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")


def test_a_full_disk_of_temporary_files_is_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "_get_default_tempdir", lambda *_: pytest.fail("it tries to write there"))
    for folder, is_temporary in ((".shard-000000-x/4", True), ("gdt-x/shards", True), ("shards", False)):
        assert ("set TMPDIR" in no_space(tmp_path / folder)) == is_temporary


def test_room_is_asked_for_where_a_disk_says_its_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = type("Usage", (), {"total": 10**9, "free": 50})
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(UserError, match=f"no space on the disk of {tmp_path} for a.h5, which needs 0.1 kB while"):
        require_space(tmp_path / "a.h5", 60)
    usage.total = 0
    require_space(tmp_path / "a.h5", 60)
    assert not [*tmp_path.iterdir()]


def test_of_two_writers_the_first_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.txt"
    with pytest.raises(FileNotFoundError), writing(path) as one:
        one.write(b"unfinished")
        monkeypatch.setattr("os.getpid", lambda: 1)  # another process
        with writing(path) as other:
            other.write(b"whole")
    assert path.read_bytes() == b"whole" and [*tmp_path.iterdir()] == [path]


def test_names_that_no_file_can_have_are_missing(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for name in ("file/x", "a\0b", "x" * 300, "\ud800"):
        assert kind(tmp_path / name) == "missing"


@pytest.mark.parametrize(("name", "why"), [(".", "Is a directory"), ("absent", "No such file"), ("a\0b", ".*null")])
def test_what_cannot_be_opened_is_said(tmp_path: Path, name: str, why: str) -> None:
    with pytest.raises(UserError, match=f"cannot read .*: {why}"):
        open_regular(tmp_path / name)


def test_a_lock_is_held_by_one(tmp_path: Path) -> None:
    with locked(tmp_path), (tmp_path / ".lock").open("a") as file:
        assert lock(file, fcntl.LOCK_EX | fcntl.LOCK_NB) is False
        with (
            pytest.raises(UserError, match=f"another run is writing to {tmp_path}; wait for it, or set --dest"),
            locked(tmp_path),
        ):
            pass
    with (tmp_path / ".lock").open("a") as file:
        assert lock(file, fcntl.LOCK_EX | fcntl.LOCK_NB) is True


def without_locks(monkeypatch: pytest.MonkeyPatch, number: int = errno.ENOSYS) -> None:
    """As on a file system without locks."""

    def flock(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL])
def test_a_file_system_without_locks_is_used_and_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str], number: int
) -> None:
    without_locks(monkeypatch, number)
    with locked(tmp_path / "run"), locked(tmp_path / "cache", wait=True), (tmp_path / "file").open("w") as file:
        assert lock(file) is None
    said = f"warning: {tmp_path}/run has no file locks; let only one run at a time write there\n"
    assert capsys.readouterr().err == said
    without_locks(monkeypatch, errno.EIO)  # another reason
    with pytest.raises(OSError, match="Input/output error"), locked(tmp_path):
        pass


def test_locks_are_taken_in_one_place() -> None:
    folders = ("common", "preprocess", "pipeline", "train", "eval", "src")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    assert [path.name for path in files if "flock(" in path.read_text() or "lockf(" in path.read_text()] == ["files.py"]


def test_a_url_is_never_taken_for_a_local_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s3:" / "bucket").mkdir(parents=True)  # what the system would find
    with pytest.raises(UserError, match="in a store"):
        os.fspath(Folder("s3://bucket"))
    for name in ("s3://bucket", Path("s3://bucket")):
        with pytest.raises(UserError, match="s3://bucket is in a store, which can hold only videos and shards; name"):
            local_path(name)


def test_a_temporary_folder_that_was_left_is_removed_and_no_new_one_is_taken_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    lock = files.lock

    def after_another_has_looked(*arguments: Any) -> bool | None:
        monkeypatch.setattr(files, "lock", lock)
        with files.scratch():
            pass
        return lock(*arguments)

    for name in ("killed", "running"):
        (tmp_path / f"gdt-{name}").mkdir()
        (tmp_path / f"gdt-{name}" / ".lock").touch()
    with files.locked(tmp_path / "gdt-running"), files.scratch() as other:
        assert {*tmp_path.iterdir()} == {tmp_path / "gdt-running", other}
    monkeypatch.setattr(files, "lock", after_another_has_looked)
    with files.scratch() as folder:
        assert folder.is_dir()
    assert not [*tmp_path.iterdir()]
