"""Tables on disk: no file is left behind, and errors of the disk are those of files."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gdt.preprocess.scratch import database
from tests.conftest import ROOT

TABLE = "CREATE TABLE t (a)"
KILLED = f"""
import os, signal, sqlite3, sys
from pathlib import Path
from gdt.preprocess.scratch import database
sqlite3.connect = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
database(Path(sys.argv[1]), {TABLE!r})
"""


def test_file_of_a_killed_process_is_removed_by_the_next(tmp_path: Path) -> None:
    command = [sys.executable, "-c", KILLED, tmp_path]
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": str(ROOT)}, check=False)
    (left,) = tmp_path.iterdir()
    assert done.returncode == -signal.SIGKILL
    with left.open() as file:  # as if its process were still alive
        fcntl.flock(file, fcntl.LOCK_EX)
        database(tmp_path, TABLE).close()
        assert list(tmp_path.iterdir()) == [left]
    table = database(tmp_path, TABLE)
    assert list(tmp_path.iterdir()) == []
    table.execute("INSERT INTO t VALUES (1)")
    assert table.execute("SELECT a FROM t").fetchone() == (1,) and table.execute("SELECT 1 WHERE 0").fetchone() is None


def test_default_folder_is_that_of_temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / ".gdt-tables-x").touch()
    database(None, TABLE).close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("fetch", ["fetchone", "fetchall", "__next__"])
def test_read_error_while_fetching_is_an_os_error(tmp_path: Path, fetch: str) -> None:
    table = database(tmp_path, f"PRAGMA cache_size=1; {TABLE}")
    table.executemany("INSERT INTO t VALUES (?)", ((f"{k} {'x' * 3000}",) for k in range(300)))
    rows = table.execute("SELECT a FROM t")
    files = [path for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    (number,) = [int(path.name) for path in files if str(path.readlink()).startswith(f"{tmp_path}/.gdt-tables-")]
    unreadable = os.open(os.devnull, os.O_WRONLY)
    os.dup2(unreadable, number)
    os.close(unreadable)
    with pytest.raises(OSError, match="Input/output error") as error:
        for _ in range(300):
            getattr(rows, fetch)()
    assert error.value.errno == errno.EIO


def test_full_disk_is_an_os_error(tmp_path: Path) -> None:
    table = database(tmp_path, f"PRAGMA max_page_count=9; {TABLE}")
    with pytest.raises(OSError, match="No space left on device"):
        table.executemany("INSERT INTO t VALUES (?)", ((f"{k} {'x' * 3000}",) for k in range(300)))
