"""Commands of evaluation on tiny data, as a user runs them."""

from __future__ import annotations

import json
import pickle
import re
import shlex
import signal
import subprocess
import sys
import warnings
import zipfile
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from gdt.common.commandline import _descriptions
from gdt.common.errors import INTERRUPTED, UserError
from gdt.common.lock import is_locked
from gdt.eval.command import COMMANDS
from gdt.eval.downstream import downstream
from gdt.eval.extract import extract, load_or_extract
from gdt.eval.settings import Downstream
from gdt.eval.show_batch import ShowBatch, describe_leaves, draw, show_batch
from gdt.pipeline import presets
from gdt.pipeline.leaves import VIDEO
from gdt.pipeline.loader import Loader
from gdt.pipeline.notation import parse
from gdt.pipeline.shards.index import Index, fingerprint
from gdt.pipeline.shards.reader import ShardReader
from gdt.pipeline.tree import sampling_tree
from gdt.pipeline.word2vec import WordVectors
from gdt.train.checkpoint import load_model
from gdt.train.models.gdt import GDT
from gdt.train.pretrain import pretrain
from gdt.train.settings import SIZES
from tests.conftest import Run
from tests.pipeline.test_loader import CLIP, CPU, audio_oracle, leaf_oracle, tree
from tests.pipeline.test_notation import FREEZE
from tests.train.runs import start_gdt, wait_until


def test_downstream_runs_protocols_without_training_by_default(
    command: Run, checkpoint: Path, shards: Path, tmp_path: Path
) -> None:
    done = command("eval", "downstream", "--ckpt", checkpoint)
    assert done.returncode == 0, done.stderr
    assert re.search(r"% on test +R@1 +R@5 +R@20\n(.*\n)*% on test +1-shot +5-shot\n", done.stdout)
    results = json.loads((tmp_path / "runs" / "eval-synthetic" / "results.json").read_text())
    assert [(row["protocol"], row["model"]) for row in results] == [
        (protocol, model) for model in ("random weights", "e") for protocol in ("cross-modal", "retrieval", "few-shot")
    ]
    (retrieval,) = (row for row in results if row["model"] == "e" and row["protocol"] == "retrieval")
    assert (retrieval["gallery"], retrieval["queries"], retrieval["classes"]) == (24, 12, 3)
    assert retrieval["metrics"]["R@1"][1:3] == [pytest.approx(100 / 3), 12]
    assert retrieval["data"] == fingerprint(Index.open(shards))
    typed = shlex.join(["gdt", "eval", "downstream", "--ckpt", str(checkpoint)])
    assert retrieval["provenance"]["command"].endswith(typed)


def test_help_has_a_line_per_option() -> None:
    for name, command in COMMANDS.items():
        assert len((command.settings.__doc__ or "").partition("\n")[0]) <= 90, name
        for option, text in _descriptions(command.settings).items():
            assert len(text) <= 72, f"{name} --{option}: {text}"
            assert "efault" not in text or re.search(r"; default: [^;]+\.$", text), f"{name} --{option}: {text}"


def test_features_do_not_depend_on_the_batch(index: Index, checkpoint: Path) -> None:
    trained, videos = load_model(checkpoint), np.array([0, 30, 7])
    together = extract(trained, index, videos, 10, CPU)
    assert together.average.shape == together.maximum.shape == (3, 128)
    alone = extract(trained, index, videos[1:2], 10, CPU, clips_per_batch=10)
    assert np.allclose(together.average[1], alone.average[0], atol=1e-5)
    assert np.allclose(together.maximum[1], alone.maximum[0], atol=1e-5)


def test_features_are_computed_once(index: Index, checkpoint: Path, tmp_path: Path) -> None:
    trained, videos, path = load_model(checkpoint), np.array([0, 7, 30]), tmp_path / "features.npz"
    first = load_or_extract(path, trained, index, videos, 2, CPU)
    trained.model.video_network.base.stem[0].weight.data.zero_()  # extracting again would give other features
    assert np.array_equal(load_or_extract(path, trained, index, videos, 2, CPU).average, first.average)
    other = load_or_extract(path, trained, index, videos[:2], 2, CPU)
    assert other.average.shape == (2, 128) and not np.allclose(other.average, first.average[:2])
    path.write_bytes(path.read_bytes()[:-100])
    assert np.array_equal(load_or_extract(path, trained, index, videos[:2], 2, CPU).average, other.average)


def test_a_failed_run_of_an_ablation_names_its_log(command: Run, shards: Path, tmp_path: Path) -> None:
    small = ("--rows", "e", "--seeds", 0, "--out", "o")
    (tmp_path / "o" / "e-0").mkdir(parents=True)
    (tmp_path / "o" / "e-0" / "checkpoint.pt").write_text("no checkpoint")
    done = command("eval", "ablation", "--shards", shards, *small)
    assert done.returncode == 2
    assert "e-0/checkpoint.pt cannot be read as a checkpoint" in done.stderr and "log.txt" in done.stderr


@pytest.mark.parametrize(
    ("kind", "number"),
    [
        ("ablation", signal.SIGINT),
        pytest.param("ablation", signal.SIGTERM, marks=pytest.mark.slow),
        pytest.param("downstream", signal.SIGINT, marks=pytest.mark.slow),
    ],
)
def test_a_signal_to_the_parent_alone_stops_its_runs(
    command: Run, kind: str, number: int, shards: Path, checkpoint: Path, tmp_path: Path
) -> None:
    """As kill does; Ctrl-C reaches the runs as well. Meanwhile, a second command in the folder is refused."""
    more = {
        "ablation": ("--rows", "e", "--seeds", 0, "--steps", 10_000, "--batch-size", 8),
        "downstream": ("--ckpt", checkpoint, "--protocols", "finetune", "--size", "tiny", "--epochs", 10_000),
    }[kind]
    arguments = ("eval", kind, "--shards", shards, "--jobs", 2, "--out", tmp_path / "out", *more)
    process = start_gdt([*map(str, arguments)], tmp_path)
    logs = partial(tmp_path.glob, "out/**/*.jsonl")
    wait_until(lambda: any(log.stat().st_size for log in logs()) or process.poll() is not None)
    second = command(*arguments)
    assert second.returncode == 2 and f"another run is writing to {tmp_path / 'out'}; " in second.stderr
    process.send_signal(number)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 128 + number and (number == signal.SIGTERM or errors.endswith(f"{INTERRUPTED}\n"))
    assert "waiting for the other runs" not in errors and not is_locked(tmp_path / "out")
    if kind == "ablation" and number == signal.SIGINT:
        assert "stopped after step" in (tmp_path / "out" / "e-0" / "log.txt").read_text()


def test_show_batch_draws_the_inputs_of_the_network(index: Index) -> None:
    """Against the oracles of the loader's tests."""
    reader = ShardReader(index)
    for preset, leaves in (("a", 2), ("l", 8)):
        planned = tree(index, preset)
        plan = planned.plan(0, 1)
        with Loader(index, [plan], CLIP, CPU) as loader:
            batch = next(iter(loader))
            picture = draw(batch, planned, index, preset, frames=4)
        columns = batch.plan.columns
        mine = np.flatnonzero(columns["video"] == columns["video"][0])
        assert len(picture.axes) == len(mine) == leaves
        assert picture.get_suptitle().endswith(f"'{index.id[columns['video'][0]]}'")
        for axis, leaf in zip(picture.axes, mine, strict=True):
            (image,) = axis.images
            shown = np.asarray(image.get_array())
            if columns["modality"][leaf] == VIDEO:
                clip = leaf_oracle(index, reader, batch.plan, leaf)[[0, 2, 3, 5]]  # 4 of its 6 frames
                clip = np.clip(clip * index.statistics.pixel_std + index.statistics.pixel_mean, 0, 255)
                strip = shown.reshape(CLIP.size, 4, CLIP.size + 2, 3)
                assert (strip[:, :, [0, -1]] == 255).all()  # a white line on both sides of a frame
                difference = np.abs(strip[:, :, 1:-1].astype(float) - clip.transpose(1, 0, 2, 3))
                assert difference.mean() < 1 and difference.max() < 6
            else:
                assert np.array_equal(shown, audio_oracle(index, reader, batch.plan, leaf))
            seconds = columns["time_shift"][leaf] / 30
            direction = "reversed" if columns["time_reversal"][leaf] else "forward"
            kind = "video" if columns["modality"][leaf] == VIDEO else "audio"
            number = columns["leaf"][leaf]
            assert axis.get_title("left") == f"leaf {number}: from {seconds:.2f} s, {kind}, {direction}"
            ticks = [label.get_text() for label in axis.get_xticklabels()]
            shown = [float(label.removesuffix(" s")) for label in ticks]
            assert len(ticks) == (4 if kind == "video" else 9)
            # from the first frame of the clip to its last, or from the last to the first
            first, last = (shown[0], shown[-1]) if direction == "forward" else (shown[-1], shown[0])
            span = 5 * CLIP.stride / 30 if kind == "video" else (CLIP.mel_frames - 1) / 100
            assert first == pytest.approx(seconds, abs=0.011) and last - first == pytest.approx(span, abs=0.011)
            assert shown == sorted(shown, reverse=direction == "reversed")
            if kind == "audio":
                assert [label.get_text() for label in axis.get_yticklabels()] == HERTZ


HERTZ = ["0.3 kHz", "1.1 kHz", "3.1 kHz", "8.2 kHz"]


@pytest.mark.parametrize(
    ("preset", "factors", "leaf", "expected"),
    [
        # the augmentations of one clip; every other video has 2
        ("a", "", 0, "positive: 1; negative: 2 leaves of every other video"),
        # the sound of the same shift, in either direction; not its own modality
        ("l", "", 0, "positive: 2, 3; negative: 6, 7 and 4 leaves of every other video"),
        ("l", "", 6, "positive: 4, 5; negative: 0, 1 and 4 leaves of every other video"),
        ("l", "video:d modality:i:2:differs augmentation:i:1", 1, "positive: 0; negative: 1 leaf of every other video"),
    ],
)
def test_positive_and_negative_leaves_are_listed(
    index: Index, preset: str, factors: str, leaf: int, expected: str
) -> None:
    composition = parse(factors, 3) if factors else presets.composition(preset, 3)
    planned = sampling_tree(index, composition, CLIP, "train", 0)
    with Loader(index, [planned.plan(0, 0)], CLIP, CPU) as loader:
        descriptions = dict(describe_leaves(next(iter(loader)), planned))
    (relation,) = (relation for label, relation in descriptions.items() if label.startswith(f"leaf {leaf}: "))
    assert relation == expected


def test_show_batch_writes_the_picture(command: Run, shards: Path, tmp_path: Path) -> None:
    path = tmp_path / "l.png"
    done = command("eval", "show-batch", "--shards", shards, "--preset", "l", "--out", path)
    assert done.returncode == 0, done.stderr
    picture = np.asarray(Image.open(path).convert("RGB")).astype(int)
    assert picture.shape[:2] == (round(8 * 1.5 * 130), 8 * 130)
    coloured = np.ptp(picture, axis=2).max(1) > 60  # lines with colour in them: of frames and of spectrograms
    assert all(part.mean() > 0.2 for part in np.array_split(coloured[30:], 8))  # below the title


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("missing", "there is no checkpoint"),
        ("empty", "cannot be read as a checkpoint: it is an empty file; use the checkpoint.pt of a run, or external"),
        ("garbage", "cannot be read as a checkpoint: it is damaged, truncated or not a torch file; use the"),
        ("text", "cannot be read as a checkpoint: it is a text file; use the checkpoint.pt of a run, or external"),
        ("zip", "cannot be read as a checkpoint: it is a zip archive without weights; use"),
        ("shards", "cannot be read as a checkpoint: it is an HDF5 file, such as shards or features; use"),
        ("plain pickle", "cannot be read as a checkpoint: it is a pickle that torch did not write; use"),
        ("folder", r"x.pt has no checkpoint.pt; did you mean .*/x.pt/run/checkpoint.pt\?$"),
        ("cut", "cannot be read as a checkpoint: it is damaged, truncated or not a torch file; use the"),
        ("pickle", "cannot be read as a checkpoint: it holds a Python object"),
        ("foreign", "is not a checkpoint of"),
        ("other sizes", "holds another model: 4 have another shape"),
    ],
)
def test_wrong_checkpoints_are_refused(
    shards: Path, checkpoint: Path, tmp_path: Path, kind: str, expected: str
) -> None:
    path = tmp_path / "x.pt"
    content = {"empty": b"", "garbage": b"garbage\0" * 100, "text": "it is a täxt\n".encode() * 500,
               "cut": checkpoint.read_bytes()[:10_000], "plain pickle": pickle.dumps({"a": 1}),
               "shards": (shards / "index.h5").read_bytes()}  # fmt: skip
    if kind in content:
        path.write_bytes(content[kind])
    elif kind == "zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("a", "b")
    elif kind == "folder":
        (path / "run").mkdir(parents=True)
        (path / "run" / "checkpoint.pt").touch()
    elif kind == "foreign":
        torch.save({"state": torch.zeros(3)}, path)
    elif kind == "other sizes":
        other = GDT(replace(SIZES["tiny"][1].network, embedding=64)).state_dict()
        torch.save(torch.load(checkpoint, weights_only=True) | {"model": other}, path)
    elif kind == "pickle":
        torch.save(Path("/"), path)  # an object that weights_only must not build
    with pytest.raises(UserError, match=expected), warnings.catch_warnings(action="error"):
        downstream(Downstream((path,), "synthetic", shards, out=tmp_path / "out"))


REFUSALS = {
    "downstream --ckpt nope.pt": "there is no checkpoint nope.pt; ",
    "factors --ckpt text.pt": "text.pt cannot be read as a checkpoint: it is a text file; ",
    "downstream --ckpt x --protocols retreival": "unknown --protocols 'retreival'; did you mean 'retrieval'? ",
    "ablation --dataset foldr": "there are no shards in data/shards/foldr (no index.h5); ",
    "show-batch --preset lx": "unknown preset 'lx'; did you mean 'l'? ",
    "embed --ckpt x --clips x": "--clips is 'x'; it must be an integer",
    "downstream --ckpt": "--ckpt lacks a value",
    "export --ckpt text.pt": "gdt eval export needs --out PATH; ",
    "nerest": "unknown command 'nerest'; did you mean 'nearest'? ",
}
"""Mistakes in `gdt eval`, and how their messages begin."""


def test_mistakes_are_reported_before_torch_is_imported(tmp_path: Path) -> None:
    """In one process, as each costs an interpreter."""
    (tmp_path / "text.pt").write_text("it is a text")
    code = (
        "import sys\nfrom gdt.cli import _run\nfrom gdt.common.errors import UserError\n"
        "for line in sys.argv[1:]:\n    try:\n        _run('eval', line.split())\n    except UserError as error:\n"
        "        print(str(error).splitlines()[0])\n"
        "assert 'sklearn' not in sys.modules and 'torch' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code, *REFUSALS], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for said, expected in zip(done.stdout.splitlines(), REFUSALS.values(), strict=True):
        assert said.startswith(expected), said


def test_captions_are_drawn_in_order(captioned: Path, word2vec: Path, tmp_path: Path) -> None:
    path = show_batch(
        ShowBatch(shards=captioned, preset="three", word2vec=word2vec, seed=3, out=tmp_path / "three.png")
    )
    assert path.read_bytes()[:4] == b"\x89PNG"
    index = Index.open(captioned)
    words = WordVectors.of(index, word2vec)
    planned = sampling_tree(index, presets.composition("three", 2), CLIP, "train", 0)
    with Loader(index, [planned.plan(0, 0)], CLIP, CPU, words=words) as loader:
        batch = next(iter(loader))
        picture = draw(batch, planned, index, "three", 4, words.words)
    mine = np.flatnonzero(batch.plan.columns["video"] == batch.plan.columns["video"][0])
    said = {leaf: axis.texts[0].get_text() for axis, leaf in zip(picture.axes, mine, strict=True) if axis.texts}
    reader = ShardReader(index)
    assert len(said) == 4
    for leaf, text in said.items():
        columns = batch.plan.columns
        tokens = reader.tokens(int(columns["video"][leaf]), columns["time_shift"][leaf] / index.fps).tolist()
        expected = [words.words[token] for token in (tokens[::-1] if columns["time_reversal"][leaf] else tokens)]
        assert text == (" ".join(expected) or "(no words)")


def test_custom_transformations_are_trained_evaluated_and_drawn(command: Run, shards: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(FREEZE)
    own = ["--factors", "video:d time_shift:d:2 freeze:d:2 modality:i:2:differs augmentation:i:1",
           "--factors-from", tmp_path / "mine.py"]  # fmt: skip
    done = command("pretrain", "tiny", "--shards", shards, "--out", "run", "--batch-size", 4, "--steps", 3, *own)
    assert done.returncode == 0, done.stderr
    done = command("eval", "show-batch", "--shards", shards, "--out", "batch.png", *own)
    assert done.returncode == 0, done.stderr
    assert Image.open(tmp_path / "batch.png").height == round(8 * 1.5 * 130)  # 2 shifts x 2 x 2 modalities
    done = command("eval", "downstream", "--ckpt", "run", "--shards", shards, "--dataset", "x", "--clips", 2)
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "runs" / "eval-x" / "results.json").read_text())
    assert {row["preset"] for row in results} == {"random weights", own[1]}
    (tmp_path / "mine.py").write_text(FREEZE.replace("// 2", "// 3"))
    done = command("pretrain", "tiny", "--shards", shards, "--out", "run", "--batch-size", 4, "--steps", 3, *own)
    assert done.returncode == 2 and "holds a run with different settings (factors_digest was " in done.stderr


def test_a_model_without_video_has_no_video_features(captioned: Path, word2vec: Path, tmp_path: Path) -> None:
    factors = "video:d time_shift:d:2 modality(audio,text):i:2:differs augmentation:i:1"
    tiny = replace(SIZES["tiny"][1], factors=factors, word2vec=word2vec, batch_size=4, steps=2)
    path = pretrain(replace(tiny, shards=captioned, out=tmp_path / "run"))
    with pytest.raises(UserError, match="trained without video, so it has no video features"):
        downstream(Downstream((path,), "x", captioned, ("retrieval",), out=tmp_path / "eval"))
