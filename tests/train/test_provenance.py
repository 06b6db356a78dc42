"""Provenance of a run: command, code, software and device."""

import json
import platform
import shlex
import shutil
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import torch

from gdt.train import provenance
from gdt.train.provenance import NAME, git_commit, provenance_of, write_provenance

CPU = torch.device("cpu")


def test_a_run_records_where_its_results_come_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    typed = ["/opt/my python", "-m", "train", "tiny", "--factors", "video:d modality(video,text):i:2:differs"]
    monkeypatch.setattr(sys, "orig_argv", typed)
    monkeypatch.setenv("WORLD_SIZE", "16")
    found = provenance_of(CPU)
    assert shlex.split(found["command"]) == typed and found["ranks"] == 16
    assert found["versions"]["python"] == platform.python_version() and found["versions"]["torch"] == torch.__version__
    assert found["versions"].keys() >= {"python", "numpy", "torch"} and all(found["versions"].values())
    assert datetime.now(UTC) - datetime.fromisoformat(found["started"]) < timedelta(minutes=1)
    assert found["device"] and "\n" not in found["device"]
    write_provenance(tmp_path, CPU, 7, "0a1b")
    kept = json.loads((tmp_path / NAME).read_text())
    assert kept == found | {"step": 7, "data": "0a1b", "started": kept["started"]}


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not there")
def test_the_commit_is_that_of_the_checkout_that_tracks_the_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def git(*arguments: str) -> str:
        command = ["git", "-c", "user.name=a", "-c", "user.email=b", *arguments]
        return subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True).stdout.strip()

    (tmp_path / "code.py").touch()
    monkeypatch.setattr(provenance, "__file__", str(tmp_path / "code.py"))
    assert git_commit() == ""  # no repository
    git("init")
    (tmp_path / "other.py").touch()
    git("add", "other.py")
    git("commit", "-m", "first")
    assert git_commit() == ""  # inside the checkout of another project
    git("add", "code.py")
    git("commit", "-m", "second")
    assert git_commit() == git("rev-parse", "HEAD")
    (tmp_path / "other.py").write_text("2")
    assert git_commit() == git("rev-parse", "HEAD") + "-dirty"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert git_commit() == ""
