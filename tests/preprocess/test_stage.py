"""The stage: complete, resumable, byte-identical, and clear about what it left out."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.errors import UserError
from pipeline.shards import Index, read_rejected
from preprocess.ffmpeg import Extraction
from preprocess.stage import Preprocess, run
from tests.conftest import ROOT


def digests(folder: Path) -> dict[str, str]:
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir()) if path.is_file()
    }


def test_every_video_is_kept_with_its_split_and_class(index: Index) -> None:
    assert len(index) == 42
    assert [int((index.split == split).sum()) for split in ("train", "val", "test")] == [24, 6, 12]
    assert len(index.classes) == 3
    assert (index.frame_count == 90).all() and (index.mel_count >= 290).all()
    assert (index.height == 64).all()  # not enlarged to 160


def test_a_second_run_does_nothing(synthetic: Path, shards: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in shards.glob("*.h5")}
    summary = run(Preprocess("synthetic", synthetic, shards, videos_per_shard=16, workers=2))
    assert (summary.shards_made, summary.shards_kept) == (0, 3)
    assert {path: path.stat().st_mtime_ns for path in shards.glob("*.h5")} == before


def test_the_bytes_do_not_depend_on_workers_or_interruptions(synthetic: Path, shards: Path, tmp_path: Path) -> None:
    folder = tmp_path / "synthetic"
    command = [sys.executable, "-m", "preprocess", "--dataset", "synthetic", "--source", synthetic,
               "--destination", folder, "--videos-per-shard", "16", "--workers", "1"]  # fmt: skip
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, cwd=tmp_path, env=environment, start_new_session=True)
    deadline = time.monotonic() + 60
    while not list(folder.glob("shard-*.h5")) and time.monotonic() < deadline:
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)  # the run, its scheduler and its worker at once
    process.wait()
    done = {path.name for path in folder.glob("shard-*.h5")}
    assert 1 <= len(done) < 3
    subprocess.run(command, cwd=tmp_path, env=environment, check=True)
    assert digests(folder) == digests(shards)
    assert not [path for path in folder.iterdir() if path.is_dir()]  # no scratch folder of the killed worker is left


def test_a_half_written_shard_is_made_again(synthetic: Path, shards: Path, tmp_path: Path) -> None:
    folder = tmp_path / "synthetic"
    shutil.copytree(shards, folder)
    damaged = folder / "shard-000002-of-000003.h5"
    damaged.write_bytes(damaged.read_bytes()[:-1000])
    summary = run(Preprocess("synthetic", synthetic, folder, videos_per_shard=16, workers=1))
    assert summary.shards_made == 1
    assert digests(folder) == digests(shards)


def test_other_settings_do_not_replace_finished_shards_and_removed_videos_do(synthetic: Path, tmp_path: Path) -> None:
    videos = tmp_path / "videos"
    shutil.copytree(synthetic / "test", videos)
    settings = Preprocess("folder", videos, tmp_path / "shards", workers=1)
    assert run(settings).shards_made == 1
    before = digests(tmp_path / "shards")
    with pytest.raises(UserError, match="made with short-side 160, now 32; set --destination"):
        run(replace(settings, extraction=Extraction(short_side=32)))
    with pytest.raises(UserError, match="made with videos-per-shard 128, now 4"):
        run(replace(settings, videos_per_shard=4))
    assert digests(tmp_path / "shards") == before
    next(videos.rglob("*.mp4")).unlink()
    assert run(settings).shards_made == 1
    assert len(Index.open(tmp_path / "shards")) == 11
    for path in (tmp_path / "shards").glob("index.h5"):  # a run with another cut that was stopped before its end
        path.unlink()
    smaller = run(replace(settings, extraction=Extraction(short_side=32), videos_per_shard=4))
    assert smaller.shards_made == 3
    assert (Index.open(tmp_path / "shards").height == 32).all()
    assert len(list((tmp_path / "shards").glob("shard-*.h5"))) == 3  # those of the old cut are gone


def test_ctrl_c_is_one_sentence(real: Path, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "preprocess", "--source", real / "grid", "--destination", tmp_path / "shards"],
        cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    while not list(tmp_path.glob("shards/.shard-*/*/frames.mjpeg")):
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "the same command goes on from here" in stderr
    assert "Traceback" not in stderr


def test_a_wrong_source_does_not_replace_finished_shards(synthetic: Path, shards: Path, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong"
    wrong.mkdir()
    shutil.copy(next(synthetic.rglob("*.mp4")), wrong / "other.mp4")
    settings = Preprocess("folder", synthetic / "test", tmp_path / "shards", workers=1)
    run(settings)
    before = digests(tmp_path / "shards")
    with pytest.raises(UserError, match="holds shards of 12 videos, most of which are not in"):
        run(replace(settings, source=wrong))
    assert digests(tmp_path / "shards") == before


def test_what_is_left_out_is_named_with_its_reason(real: Path, tmp_path: Path) -> None:
    summary = run(Preprocess("folder", real / "clips", tmp_path, videos_per_shard=8, workers=2))
    rejected = {row["id"]: row["reason"] for row in read_rejected(tmp_path)}
    assert (summary.videos, summary.kept, summary.rejected) == (21, 18, 3)
    assert set(rejected) == {"broken.mp4", "empty.flv", "video_270.mov"}
    assert "moov atom not found" in rejected["broken.mp4"]
    index = Index.open(tmp_path)
    assert sorted([*index.id, *rejected]) == sorted(path.name for path in (real / "clips").iterdir())
    assert summary.without_sound == int((index.mel_count == 0).sum()) == 4


def test_nothing_usable_is_an_error_that_shows_why(tmp_path: Path) -> None:
    (tmp_path / "videos").mkdir()
    (tmp_path / "videos" / "a.mp4").write_bytes(b"nonsense")
    with pytest.raises(UserError, match=r"none of the 1 videos could be used; .*a.mp4: ffmpeg cannot decode it"):
        run(Preprocess("folder", tmp_path / "videos", tmp_path / "shards", workers=1))
    assert json.loads((tmp_path / "shards" / "rejected.jsonl").read_text())["id"] == "a.mp4"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--dataset", "kinetix"), "there is no data set 'kinetix'; choose one of folder, kinetics, synthetic"),
        (("--source", "nowhere"), "/nowhere does not exist; set SOURCE"),
        (("--source", "."), "expected files ending in"),
        (("--source", ".", "--scheduler", "tcp://127.0.0.1:1"), "there are no videos"),
        (("--quality", "99"), "--quality is 99"),
    ],
)
def test_mistakes_are_one_sentence_and_exit_2(command, arguments: tuple[str, ...], message: str) -> None:
    done = command("preprocess", *arguments)
    assert done.returncode == 2
    assert message in done.stderr and "Traceback" not in done.stderr


def test_no_ffmpeg_is_one_sentence(command, synthetic: Path) -> None:
    done = command("preprocess", "--source", synthetic, PATH="")
    assert done.returncode == 2 and "ffmpeg is not installed" in done.stderr


def test_no_scheduler_is_one_sentence(command, synthetic: Path) -> None:
    done = command("preprocess", "--source", synthetic / "val", "--scheduler", "tcp://127.0.0.1:1")
    assert done.returncode == 2 and "no Dask scheduler answers at tcp://127.0.0.1:1" in done.stderr
