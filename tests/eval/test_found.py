"""The page of videos that were found: pictures of what there is, and players of files from their moments."""

import os
import re
import shutil
import subprocess
from pathlib import Path
from urllib.parse import quote, unquote

from gdt.eval.features import read
from gdt.eval.nearest import nearest
from gdt.eval.page.found import Shown, write_found
from gdt.eval.settings import Nearest
from tests.eval.test_embed import Run


def test_the_page_shows_and_plays_what_there_is(synthetic: Path, tmp_path: Path) -> None:
    """A video that browsers play, a sound, a video that they do not, and one that is not there."""
    (tmp_path / "a folder").mkdir()
    files = [tmp_path / "a folder" / name for name in ("one #1.webm", "two.wav", "three.avi")]
    for path, options in zip(files, ([], ["-vn"], []), strict=True):
        command = ["ffmpeg", "-loglevel", "error", "-i", sorted(synthetic.rglob("*.mp4"))[0], *options, path]
        subprocess.run(command, check=True)
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
