"""Fixtures of several files of tests of preprocessing."""

import os
import shutil
from pathlib import Path

import pytest

from tests.preprocess.media import Fake, clock, made, tone


@pytest.fixture(scope="module")
def flash_and_click(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """4 s of black with a white frame and a click at 1, 2 and 3 s."""
    flash = "color=black:s=320x240:r=30:d=4,geq=lum='if(eq(mod(N,30),0)*gt(N,0),235,16)':cb=128:cr=128"
    click = "aevalsrc='if(lt(mod(t,1),0.005)*gt(t,0.5),0.9*sin(2*PI*3000*t),0)':s=48000:d=4"
    path = tmp_path_factory.mktemp("flash") / "flash.mp4"
    return made(path, flash, click, "-c:v", "libx264", "-qp", "10", "-c:a", "aac")


@pytest.fixture(scope="module")
def ticking(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """4 s of `clock` with a tone; the first frame is the only key frame."""
    return made(tmp_path_factory.mktemp("clock") / "clock.mp4", clock(4), tone(4), "-qp", "4", "-g", "999")


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    """Replaces ffmpeg by a script; `$real` is the real one."""
    real = shutil.which("ffmpeg")

    def install(script: str, name: str = "ffmpeg") -> Path:
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/bash\nreal={real}\n{script}\n")
        program.chmod(0o755)
        return program

    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    return install
