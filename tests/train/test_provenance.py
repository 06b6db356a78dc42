"""What is written down of where a run comes from."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from train.provenance import git_commit


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not there")
def test_the_commit_is_that_of_the_checkout_the_code_is_tracked_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def git(*arguments: str) -> str:
        command = ["git", "-c", "user.name=a", "-c", "user.email=b", *arguments]
        return subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True).stdout.strip()

    code, other = tmp_path / "code.py", tmp_path / "other.py"
    code.write_text("1")
    assert git_commit(code) == ""  # no repository
    git("init")
    assert git_commit(code) == ""  # no commit
    other.write_text("1")
    git("add", "other.py")
    git("commit", "-m", "first")
    assert git_commit(code) == ""  # lies in the checkout of another project
    git("add", "code.py")
    git("commit", "-m", "second")
    git("tag", "-a", "v1", "-m", "v1")
    assert git_commit(code) == git("rev-parse", "HEAD")
    other.write_text("2")
    assert git_commit(code) == git("rev-parse", "HEAD") + "-dirty"
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "nowhere"))
    assert git_commit(code).endswith("-dirty")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert shutil.which("git") is None and git_commit(code) == ""
