"""The page of videos that were found: pictures move, and a click plays the file from its moment."""

import os
import re
import shutil
import subprocess
from pathlib import Path
from urllib.parse import quote, unquote

import pytest

from gdt.eval.features import read
from gdt.eval.nearest import nearest
from gdt.eval.page.found import Shown, write_found
from gdt.eval.settings import Nearest
from gdt.preprocess.videos import SOUNDS
from tests.eval.test_embed import Run


@pytest.fixture(scope="module")
def files(synthetic: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A video that browsers play, a sound, and a video that they do not."""
    folder = tmp_path_factory.mktemp("a folder")
    source = sorted(synthetic.rglob("*.mp4"))[0]
    paths = [folder / name for name in ("one #1.webm", "two.wav", "three.avi")]
    for path in paths:
        options = ["-vn"] if path.suffix in SOUNDS else []
        subprocess.run(["ffmpeg", "-loglevel", "error", "-i", source, *options, path], check=True)
    return paths


def test_the_page_shows_and_plays_what_there_is(files: list[Path], tmp_path: Path) -> None:
    first, second, third = map(str, files)
    shown = [Shown(first, None, "query"), Shown(first, 1.5, "0.9"), Shown(second, 1, "0.8"), Shown(third, None, "0.7")]
    out = tmp_path / "found.html"
    write_found(out, "Found", [shown[:1], [*shown[1:], Shown("gone.mp4", None, "<0.6>")]], None)
    text = out.read_text()
    images = re.findall(r'<img src="data:image/(\w+);base64', text)
    assert images == ["webp", "webp", "png", "webp"]
    one, two = (quote(os.path.relpath(path, tmp_path)) for path in files[:2])
    assert "%20" in one and "%23" in one
    assert re.findall(r'<(?:video|audio) src="([^"]*)" controls preload="none"', text) == [
        one, f"{one}#t=1.5", f"{two}#t=1",
    ]  # fmt: skip
    assert "&lt;0.6&gt;" in text and len(text) < 5 * 150_000


def test_videos_of_shards_are_shown_from_them(
    command: Run, checkpoint: Path, synthetic: Path, shards: Path, tmp_path: Path
) -> None:
    """Also from another folder than that in which they and the checkpoint were named."""
    shutil.copytree(shards, tmp_path / "mine")
    shutil.copy(checkpoint, tmp_path / "x.pt")
    assert command("embed", "--ckpt", "x.pt", "--shards", "mine", "--every", 1, "--clips", 10).returncode == 0
    first = str(read(tmp_path / "features.h5").id[0])
    (tmp_path / "elsewhere").mkdir()
    out = tmp_path / "elsewhere" / "near.html"
    nearest(Nearest(f"{first}#t=1", tmp_path / "features.h5", k=3, out=out))
    text = out.read_text()
    assert text.count("data:image/webp") == 4
    played, *_ = re.findall(r'<video src="(.*?)#t=1" controls', text)
    assert (out.parent / unquote(played)).samefile(next(synthetic.rglob(f"{first}.mp4")))
