"""Provenance of a run: command, code, software and device."""

from __future__ import annotations

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

from gdt.common import serialization
from gdt.train.provenance import DAMAGED, NAME, Provenance, Start, command_line, git_commit, read, record

CPU = torch.device("cpu")


def test_the_command_line_is_recorded_as_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    typed = ["/opt/my python", "-u", "-m", "train", "tiny", "--factors", "video:d modality(video,text):i:2:differs"]
    monkeypatch.setattr(sys, "orig_argv", typed)
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert shlex.split(command_line()) == typed
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "16")
    said = subprocess.run(["bash", "-c", f"{command_line()}; true"], env={}, capture_output=True, text=True)
    assert "/opt/my python: No such file" in said.stderr  # a shell parses the variables
    assert shlex.split(command_line()) == ["RANK=0", "WORLD_SIZE=16", *typed]


def test_the_device_and_the_versions_are_recorded() -> None:
    found = Provenance.of(CPU)
    assert found.versions["python"] == platform.python_version() and found.versions["torch"] == torch.__version__
    assert found.versions.keys() >= {"python", "numpy", "torch", "nvidia-dali"} and all(found.versions.values())
    assert datetime.now(UTC) - datetime.fromisoformat(found.started) < timedelta(minutes=1)
    assert found.device and "\n" not in found.device
    assert serialization.from_dict(Provenance, json.loads(serialization.to_json(found))) == found


def test_every_start_of_a_run_is_recorded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "runs" / "l"
    starts = [Start(step, "0a1b", Provenance(f"python -m train {step}", "2c3d", {}, "cpu", "")) for step in (0, 7, 9)]
    for start in starts:
        record(folder, start)
    whole = (folder / NAME).read_text()
    assert read(whole) == starts
    for text in ('[{"step": 0', "{}", "null", b"\xff".decode("latin-1"), whole.replace('"step": 7', '"step": 8')):
        (folder / NAME).write_text(text, encoding="latin-1")
        record(folder, starts[1])
        assert read((folder / NAME).read_text()) == [starts[1]]
        assert (folder / DAMAGED).read_text(encoding="latin-1") == text
        assert f"{folder / NAME} is damaged; it is kept as {DAMAGED}" in capsys.readouterr().err


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not there")
def test_the_commit_is_that_of_the_checkout_that_tracks_the_code(
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
    assert git_commit(code) == ""  # inside the checkout of another project
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
