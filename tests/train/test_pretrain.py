"""Pretraining: exact resuming, clean stops, and one message per mistake."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from gdt.pipeline.shards.index import Index
from gdt.preprocess.settings import Preprocess
from gdt.train.experiment import compose, tree_of
from gdt.train.settings import SIZES
from tests.conftest import ROOT, Run, commands_in, preprocess
from tests.train.runs import losses, paused, pausing, start_gdt

TINY = SIZES["tiny"]
STEPS = 24
SMALL = ("--size", "tiny", "--batch-size", "4", "--threads", "1", "--warmup-epochs", "1")


def arguments(shards: Path, run: Path, *more: object) -> list[str]:
    return ["pretrain", "--shards", str(shards), "--out", str(run), *SMALL, *map(str, more)]


DROPOUT = ("--steps", STEPS, "--network.dropout", 0.3)


@pytest.fixture(scope="module")
def undisturbed(shards: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of four epochs, with dropout."""
    run = tmp_path_factory.mktemp("runs") / "undisturbed"
    commands_in(run.parent)(*arguments(shards, run, *DROPOUT), check=True)
    return run


@pytest.mark.slow
def test_a_run_on_the_cores_needs_no_dali(shards: Path, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['nvidia.dali'] = None")
    code = ("-c", "from gdt.cli import console; console()")
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
    command = [sys.executable, *code, *arguments(shards, tmp_path / "run", "--steps", 2)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(losses(tmp_path / "run")) == 2
    missing = subprocess.run([sys.executable, "-c", "import nvidia.dali"], env=environment, capture_output=True)
    assert missing.returncode == 1


def test_a_run_is_reproducible(command: Run, shards: Path, undisturbed: Path, tmp_path: Path) -> None:
    again, other = tmp_path / "again", tmp_path / "other"
    command(*arguments(shards, again, *DROPOUT, "--loading.decode-batch-size", 3), check=True)
    assert losses(again) == losses(undisturbed)
    assert command(*arguments(shards, other, *DROPOUT, "--steps", 3, "--seed", 1)).returncode == 0
    assert losses(other) != losses(undisturbed)[:3]


def test_a_killed_run_resumes_with_bitwise_equal_losses(
    command: Run, shards: Path, undisturbed: Path, tmp_path: Path
) -> None:
    """Meanwhile, another run is refused in its folder."""
    run = tmp_path / "killed"
    more = (*DROPOUT, "--checkpoint-steps", 2)
    process = start_gdt(arguments(shards, run, *more), tmp_path, **pausing(4))
    paused(process.pid)
    done = command(*arguments(shards, run, *more, "--lr", 0.001))
    refused = f"error: another run is writing to {run}; wait for it, or set --out to another folder\n"
    assert (done.returncode, done.stderr) == (2, refused)
    process.kill()
    process.wait()
    assert len(losses(run)) == 8
    command(*arguments(shards, run, *more), check=True)
    assert losses(run) == losses(undisturbed) and not [*run.glob("*.partial")]
    one, other = (torch.load(folder / "checkpoint.pt", weights_only=True) for folder in (run, undisturbed))
    assert all(torch.equal(one["model"][name], other["model"][name]) for name in other["model"])


def test_a_default_batch_size_is_lowered_to_the_number_of_videos(command: Run, shards: Path, tmp_path: Path) -> None:
    run = ("pretrain", "--size", "tiny", "--shards", shards, "--out", tmp_path / "run", "--split", "val",
           "--threads", 1, "--lr-decay", 0)  # fmt: skip
    done = command(*run, "--steps", 1)
    assert "batch        6 videos, " in done.stdout, done.stderr
    assert json.loads((tmp_path / "run" / "settings.json").read_text())["batch_size"] == 6
    longer = " ".join(command(*run, "--steps", 2).stdout.split())
    assert "resume from step 1 of 1; now 2 steps" in longer
    assert "batch_size was 6, now 5" in command(*run, "--steps", 2, "--batch-size", 5).stderr
    assert "a batch takes 7 videos but only 6 can be used" in command(*run, "--batch-size", 7).stderr
    grouped = ("--out", tmp_path / "grouped", "--steps", 1, "--group-size", 4)
    assert "batch        4 videos, 16 clips per modality, groups of 4 clips" in command(*run, *grouped).stdout


def test_short_videos_are_counted(index: Index) -> None:
    lines: list[str] = []
    short = replace(index, frame_count=np.where(np.arange(len(index)) % 4 == 0, 20, index.frame_count))
    run = replace(TINY, preset="e", batch_size=4)
    tree_of(run, compose(run), short, lines.append)
    number = int((short.frame_count[short.split == "train"] == 20).sum())
    reason = f"not used: {number} too short for a clip of 1.00 s"
    assert lines == [f"{24 - number} of 24 train videos of {index.folder}; {reason}"]


def test_the_clips_of_pictures_do_not_limit_sounds(index: Index) -> None:
    """Two starts of 50 rows, a frame apart, take 53 rows at 30 fps, also where pictures of that length are missing."""
    lines: list[str] = []
    rows = np.where(np.arange(len(index)) % 4 == 0, 52, 53)
    sounds = replace(index, mel_count=rows, frame_count=np.zeros(len(index), np.int64))
    factors = "video:d time_shift:i:2 modality(audio):i:1 augmentation:i:1"
    run = replace(TINY, preset="l", factors=factors, batch_size=4, clip=replace(TINY.clip, mel_frames=50))
    tree = tree_of(run, compose(run), sounds, lines.append)
    number = int((rows[index.split == "train"] == 52).sum())
    reason = f"not used: {number} too short for 2 different starts of a clip of 0.51 s"
    assert lines == [f"{24 - number} of 24 train videos of {index.folder}; {reason}"]
    assert {*tree.plan(0, 0).leaves.start.tolist()} == {0, 1}


@pytest.mark.slow
def test_pretraining_on_real_videos_lowers_the_loss(command: Run, real: Path, shards: Path, tmp_path: Path) -> None:
    """48 talking faces."""
    run, videos, made = (tmp_path / name for name in ("grid", "videos", "made"))
    videos.mkdir()
    for path in sorted((real / "grid").glob("*.mpg"))[:48]:
        (videos / path.name).symlink_to(path)
    preprocess(Preprocess("folder", videos, made, videos_per_shard=12))
    more = ("--preset", "e", "--batch-size", 24, "--steps", 60)
    command("pretrain", "--shards", made, "--out", run, *more, check=True)
    curve = losses(run)
    assert np.mean(curve[-10:]) < np.mean(curve[:10]) - 0.1
    # not that the run's batch size is too large for them
    other = command("pretrain", "--shards", shards, "--split", "val", "--out", run)
    assert other.returncode == 2 and f"{run} holds a run on different shards" in other.stderr
