"""Commands of evaluation on tiny data, as a user runs them."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import sys
import warnings
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from gdt.common.errors import INTERRUPTED, UserError
from gdt.eval.downstream import downstream
from gdt.eval.extract import extract, load_or_extract
from gdt.eval.settings import Downstream
from gdt.eval.show_batch import ShowBatch, describe_leaves, draw, show_batch
from gdt.pipeline.leaves import VIDEO
from gdt.pipeline.loader import Loader
from gdt.pipeline.notation import parse
from gdt.pipeline.shards.index import Index, fingerprint
from gdt.pipeline.shards.reader import ShardReader
from gdt.pipeline.tree import sampling_tree
from gdt.pipeline.word2vec import WordVectors
from gdt.train.checkpoint import load_model
from gdt.train.models.gdt import GDT
from gdt.train.settings import SIZES
from tests.composed import composed
from tests.conftest import Run
from tests.pipeline.test_loader import CLIP, CPU, audio_oracle, leaf_oracle, tree
from tests.pipeline.test_notation import FREEZE
from tests.train.runs import start_gdt, wait_until


def test_downstream_runs_protocols_without_training_by_default(
    command: Run, checkpoint: Path, shards: Path, tmp_path: Path
) -> None:
    done = command("evaluate", "--ckpt", checkpoint)
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
    typed = shlex.join(["gdt", "evaluate", "--ckpt", str(checkpoint)])
    assert retrieval["provenance"]["command"].endswith(typed)


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
    done = command("ablation", "--shards", shards, *small)
    assert done.returncode == 2
    assert "e-0/checkpoint.pt cannot be read as a checkpoint" in done.stderr and "log.txt" in done.stderr


@pytest.mark.parametrize(
    ("kind", "number"),
    [
        ("ablation", signal.SIGINT),
        pytest.param("ablation", signal.SIGTERM, marks=pytest.mark.slow),
        pytest.param("evaluate", signal.SIGINT, marks=pytest.mark.slow),
    ],
)
def test_a_signal_to_the_parent_alone_stops_its_runs(
    command: Run, kind: str, number: int, shards: Path, checkpoint: Path, tmp_path: Path
) -> None:
    """As kill does; Ctrl-C reaches the runs as well. Meanwhile, a second command in the folder is refused."""
    more = {
        "ablation": ("--rows", "e", "--seeds", 0, "--steps", 10_000, "--batch-size", 8),
        "evaluate": ("--ckpt", checkpoint, "--protocols", "finetune", "--epochs", 10_000),
    }[kind]
    arguments = (kind, "--shards", shards, "--jobs", 2, "--out", tmp_path / "out", *more)
    process = start_gdt([*map(str, arguments)], tmp_path)
    logs = partial(tmp_path.glob, "out/**/*.jsonl")
    wait_until(lambda: any(log.stat().st_size for log in logs()) or process.poll() is not None)
    second = command(*arguments)
    assert second.returncode == 2 and f"another run is writing to {tmp_path / 'out'}; " in second.stderr
    process.send_signal(number)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 128 + number and (number == signal.SIGTERM or errors.endswith(f"{INTERRUPTED}\n"))
    assert "waiting for the other runs" not in errors
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
            picture = draw(batch, planned, index, preset)
        columns = batch.plan.columns
        mine = np.flatnonzero(columns["video"] == columns["video"][0])
        assert len(picture.axes) == len(mine) == leaves
        assert picture.get_suptitle().endswith(f"'{index.id[columns['video'][0]]}'")
        for axis, leaf in zip(picture.axes, mine, strict=True):
            (image,) = axis.images
            shown = np.asarray(image.get_array())
            if columns["modality"][leaf] == VIDEO:
                clip = leaf_oracle(index, reader, batch.plan, leaf)
                clip = np.clip(clip * index.statistics.pixel_std + index.statistics.pixel_mean, 0, 255)
                strip = shown.reshape(CLIP.size, 6, CLIP.size + 2, 3)
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
            assert len(ticks) == (6 if kind == "video" else 9)
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
    composition = parse(factors, 3) if factors else composed(preset, 3)
    planned = sampling_tree(index, composition, CLIP, "train", 0)
    with Loader(index, [planned.plan(0, 0)], CLIP, CPU) as loader:
        descriptions = dict(describe_leaves(next(iter(loader)), planned).values())
    (relation,) = (relation for label, relation in descriptions.items() if label.startswith(f"leaf {leaf}: "))
    assert relation == expected


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("text", "cannot be read as a checkpoint: it is damaged, truncated or not a torch file; use the"),
        ("cut", "cannot be read as a checkpoint: it is damaged, truncated or not a torch file; use the"),
        ("pickle", "cannot be read as a checkpoint: it holds a Python object"),
        ("foreign", "is not a checkpoint of"),
        ("other sizes", "holds another model: "),
    ],
)
def test_wrong_checkpoints_are_refused(
    shards: Path, checkpoint: Path, tmp_path: Path, kind: str, expected: str
) -> None:
    path = tmp_path / "x.pt"
    content = {"text": "it is a täxt\n".encode() * 500, "cut": checkpoint.read_bytes()[:10_000]}
    if kind in content:
        path.write_bytes(content[kind])
    elif kind == "foreign":
        torch.save({"state": torch.zeros(3)}, path)
    elif kind == "other sizes":
        other = GDT(replace(SIZES["tiny"].network, embedding=64)).state_dict()
        torch.save(torch.load(checkpoint, weights_only=True) | {"model": other}, path)
    else:
        torch.save(Path("/"), path)  # an object that weights_only must not build
    with pytest.raises(UserError, match=expected), warnings.catch_warnings(action="error"):
        downstream(Downstream((path,), "synthetic", shards, out=tmp_path / "out"))


def test_options_are_known_without_torch() -> None:
    """Else each mistake would cost the seconds of its import."""
    code = (
        "import sys\nfrom pkgutil import resolve_name\nfrom gdt.cli import COMMANDS\n"
        "for one in COMMANDS.values():\n    resolve_name(one.settings)\n"
        "assert 'sklearn' not in sys.modules and 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_captions_are_drawn_in_order(captioned: Path, word2vec: Path, tmp_path: Path) -> None:
    path = tmp_path / "three.png"
    said = show_batch(ShowBatch(shards=captioned, preset="three", word2vec=word2vec, seed=3, out=path))
    assert said == f"image: {path}" and path.read_bytes()[:4] == b"\x89PNG"
    index = Index.open(captioned)
    words = WordVectors.of(index, word2vec)
    planned = sampling_tree(index, composed("three", 2), CLIP, "train", 0)
    with Loader(index, [planned.plan(0, 0)], CLIP, CPU, words=words) as loader:
        batch = next(iter(loader))
        picture = draw(batch, planned, index, "three", words.words)
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
    done = command("pretrain", "--shards", shards, "--out", "run", "--batch-size", 4, "--steps", 3, *own)
    assert done.returncode == 0, done.stderr
    done = command("show-batch", "--shards", shards, "--out", "batch.png", *own)
    assert done.returncode == 0, done.stderr
    assert Image.open(tmp_path / "batch.png").height == round(8 * 1.5 * 130)  # 2 shifts x 2 x 2 modalities
    done = command("evaluate", "--ckpt", "run", "--shards", shards, "--dataset", "x", "--clips", 2)
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "runs" / "eval-x" / "results.json").read_text())
    assert {row["preset"] for row in results} == {"random weights", own[1]}
    (tmp_path / "mine.py").write_text(FREEZE.replace("// 2", "// 3"))
    done = command("pretrain", "--shards", shards, "--out", "run", "--batch-size", 4, "--steps", 3, *own)
    assert done.returncode == 2 and "holds a run with different settings (factors_digest was " in done.stderr
