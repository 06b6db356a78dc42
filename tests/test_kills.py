"""Kills at chosen moments of preprocessing, verifying and pretraining; of embedding, in eval/test_embed.py.

Most of the forty kills are slow tests: `python -m pytest -m slow`.
"""

import shutil
import signal
from pathlib import Path

import pytest
import torch

from gdt.preprocess.settings import Preprocess
from tests.conftest import preprocess
from tests.preprocess.test_stage import digests
from tests.train.runs import losses, start_gdt, stopping


def run_command(arguments: list[object], folder: Path, **environment: str) -> int:
    """The exit status of a command in its own session."""
    process = start_gdt(arguments, folder, **environment)
    process.communicate()
    return process.returncode


def kill(arguments: list[object], folder: Path, moment: str) -> None:
    """Run a command that is killed, with all its processes, at a moment that must come."""
    ended = run_command(arguments, folder, **stopping(moment, signal.SIGKILL))
    assert ended == -signal.SIGKILL, (moment, ended)


# event, file, which occurrence of it, and seconds to wait after it
PREPROCESSING = """\
os.rename plan.jsonl 1 0
open plan.jsonl.partial 1 0.0005
open frames.mjpeg 2 0
open frames.mjpeg 4 0.02
open sound.mel 3 0
open sound.mel 2 0.01
open shard-000000.h5 1 0
open shard-000001.h5 1 0.001
os.rename shard-000000.h5 1 0
os.rename shard-000002.h5 1 0
os.rename shard-000003.h5 1 0.01
os.rename shard-000004.h5 1 0.001
os.rename shard-000005.h5 1 0.0001
open rejected.jsonl.partial 1 0
open rejected.jsonl.partial 1 0.0005
os.rename rejected.jsonl 1 0
os.rename rejected.jsonl 1 0.001
open index.h5.partial 1 0
open index.h5.partial 1 0.0005
os.rename index.h5 1 0
os.rename index.h5 1 0.001
os.rename summary.json 1 0
os.remove shard-000009.h5 1 0
""".splitlines()
VERIFYING = """\
open shard-000001.h5 1 0
open shard-000003.h5 2 0.01
open index.h5 2 0
os.remove index.h5 1 0
""".splitlines()
PRETRAINING = """\
open checkpoint.pt.partial 1 0
open checkpoint.pt.partial 2 0.002
os.rename checkpoint.pt 1 0
open checkpoint.pt.partial 3 0.004
os.rename checkpoint.pt 2 0.001
os.rename checkpoint.pt 3 0
os.rename settings.json 1 0
os.rename metrics.jsonl 1 0
open metrics.jsonl 2 0
open checkpoint.pt.partial 4 0
os.rename run.json 1 0
""".splitlines()
EMBEDDING = """\
os.rename plan.jsonl 1 0
open frames.mjpeg 3 0.01
os.rename shard-000000.h5 1 0
os.rename rows-shard-000000.h5 1 0
os.remove shard-000000.h5 1 0
open rows-shard-000001.h5.partial 1 0.001
open f.h5.partial 1 0
os.rename f.h5 1 0
""".splitlines()


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("workers", "moments"), [
    pytest.param(1, PREPROCESSING[1::13], id="few"),
    pytest.param(2, [each for k, each in enumerate(PREPROCESSING) if k % 13 != 1], id="many", marks=pytest.mark.slow),
])  # fmt: skip
def test_kills_during_preprocessing_change_nothing(
    synthetic: Path, tmp_path: Path, workers: int, moments: list[str]
) -> None:
    videos, whole, folder = tmp_path / "videos", tmp_path / "whole", tmp_path / "shards"
    videos.mkdir()
    for path in sorted(synthetic.rglob("*.mp4"))[:18]:
        shutil.copy(path, videos)
    (videos / "broken.mp4").write_bytes(b"nonsense")
    preprocess(Preprocess("folder", videos, whole, videos_per_shard=3))
    expected = digests(whole)
    source = ["--layout", "folder", "--source", videos]
    command = ["preprocess", *source, "--destination", folder, "--videos-per-shard", 3, "--workers", workers]
    for moment in moments:
        name = moment.split()[1]
        if name == "shard-000009.h5":  # not in the plan, so it is removed at the end
            shutil.copy(next(folder.glob("shard-*.h5")), folder / name)
        made = sorted(folder.glob("shard-00000[0-5].h5"))
        for path in [path for path in made if path.name == name] or made[:2]:  # so that there is work to do
            path.unlink()
        kill(command, tmp_path, moment)
    assert run_command(command, tmp_path) == 0
    assert digests(folder) == expected
    assert not [path for path in folder.iterdir() if path.is_dir()]


@pytest.mark.slow
def test_kills_during_verify_change_nothing(synthetic: Path, tmp_path: Path) -> None:
    folder = tmp_path / "shards"
    settings = Preprocess("synthetic", synthetic, folder, videos_per_shard=8)
    preprocess(settings)
    expected = digests(folder)
    for moment in VERIFYING:
        if moment.startswith("os.remove"):
            (folder / "index.h5").write_bytes(b"nonsense")
        kill(["verify", "--shards", folder, "--remove"], tmp_path, moment)
    assert preprocess(settings).shards_made == 0 and digests(folder) == expected


@pytest.mark.slow  # tests/train/test_pretrain.py has one kill
@pytest.mark.timeout(900)
def test_kills_during_pretraining_give_the_same_losses(shards: Path, tmp_path: Path) -> None:
    whole, folder = tmp_path / "whole", tmp_path / "killed"

    def command(run: Path) -> list[object]:
        sizes = ("--size", "tiny", "--batch-size", 4, "--threads", 1, "--network.dropout", 0.3, "--steps", 30)
        return ["pretrain", "--shards", shards, "--out", run, *sizes, "--checkpoint-steps", 1]

    for moment in PRETRAINING:
        kill(command(folder), tmp_path, moment)
    assert [run_command(command(one), tmp_path) for one in (folder, whole)] == [0, 0]
    assert losses(folder) == losses(whole) and len(losses(whole)) == 30
    one, other = (torch.load(run / "checkpoint.pt", weights_only=True)["model"] for run in (folder, whole))
    assert all(torch.equal(one[name], other[name]) for name in other)
