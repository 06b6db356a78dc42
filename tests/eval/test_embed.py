"""Features of videos and their nearest neighbours."""

from __future__ import annotations

import errno
import json
import os
import random
import shlex
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from gdt.common.commandline import gdt_command, parse
from gdt.common.errors import UserError
from gdt.common.lock import locked
from gdt.eval.embed import FORMAT, Embed, Features, _next_steps, describe_missing, embed, features, features_of, read
from gdt.eval.nearest import Nearest, nearest
from gdt.pipeline.clips import uniform_clips
from gdt.pipeline.loader import Loader
from gdt.pipeline.shards import container
from gdt.pipeline.shards.index import Index
from gdt.pipeline.sources.loading import Loading
from gdt.pipeline.transformations.augmentation import EVALUATION
from gdt.train.checkpoint import load_model
from tests.conftest import Run
from tests.pipeline.test_loader import CPU
from tests.tamper import flip

pytestmark = pytest.mark.usefixtures("alone")


@pytest.fixture(scope="module")
def videos(synthetic: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five videos, one of them in a subfolder, and a broken one."""
    folder = tmp_path_factory.mktemp("mine")
    for path in sorted((synthetic / "test").rglob("*.mp4"))[::3]:
        shutil.copy(path, folder)
    (folder / "more").mkdir()
    shutil.copy(sorted((synthetic / "val").rglob("*.mp4"))[0], folder / "more" / "one.mp4")
    (folder / "broken.mp4").write_bytes(b"nonsense")
    return folder


def test_embed_a_folder_and_find_neighbours(
    command: Run, checkpoint: Path, videos: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """After a run that was killed while it decoded; the temporary files of a run that goes on remain."""
    killing = tmp_path_factory.mktemp("bin") / "ffmpeg"
    killing.write_text("#!/bin/bash\nkill -KILL -- -$(ps -o pgid= -p $PPID | tr -d ' ')\n")
    killing.chmod(0o755)
    embedding = ("embed", "--ckpt", checkpoint, "--source", videos, "--clips", 2)
    killed = command(*embedding, "--workers", 1, PATH=f"{killing.parent}:{os.environ['PATH']}")
    assert killed.returncode == -signal.SIGKILL and len(list(tmp_path.glob(".embed-*"))) == 1
    with locked(tmp_path / ".embed-other"):
        done = command(*embedding)
        assert done.returncode == 0, done.stderr
        assert (tmp_path / ".embed-other").exists()
    assert "features.h5: embeddings of 5 videos, one row per video: video [5, 128], audio [5, 128]" in done.stdout
    assert "\nfrom 2 clips per video, each of 8 frames, stride 4, 32x32\n" in done.stdout
    assert "1 skipped:" in done.stdout and str(videos / "broken.mp4") in done.stdout
    assert {path.name for path in tmp_path.iterdir()} == {"features.h5"}  # no temporary files
    with h5py.File(tmp_path / "features.h5") as file:
        assert np.allclose(np.linalg.norm(file["video"][:], axis=1), 1)
        assert [file[name].asstr()[0] for name in ("id", "path")] == ["more/one.mp4", str(videos / "more/one.mp4")]
        assert file.attrs["checkpoint"] == str(checkpoint)
        assert "gdt embed --ckpt" in json.loads(file.attrs["provenance"])["command"]
    steps = done.stdout.partition("next: find similar videos\n")[2].splitlines()
    program = shlex.split(steps[0])[0]
    assert Path(program).name == "gdt"
    assert steps[0] == f"  {program} nearest --features features.h5 --query more/one.mp4"
    path = repr(str(tmp_path / "features.h5"))
    snippet = "\n".join(line.strip() for line in steps[2:]).replace("'features.h5'", path)
    names: dict[str, Any] = {}
    exec(snippet, names)
    assert names["features"].id[0] == "more/one.mp4"
    refused = command("embed", "--ckpt", checkpoint, "--source", videos)
    assert refused.returncode == 2 and "features.h5 already exists" in refused.stderr
    found = command("nearest", "--query", "more/one.mp4", "--k", 3)
    assert found.returncode == 0, found.stderr
    lines = found.stdout.splitlines()
    assert lines[0].split() == ["cosine", "video", "file"] and lines[5:7] == ["", "left out: the query, more/one.mp4"]
    rows = names["features"].features["video"]
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    assert lines[7:] == [f"median cosine of {len(rows) - 1} candidates: {np.median(unit[1:] @ unit[0]):.3f}"]
    assert not any("more/one.mp4" in line for line in lines[:5])
    # an embedded file is found by its path; a copy is decoded, and its original has cosine 1
    known = command("nearest", "--query", videos / "more" / "one.mp4", "--k", 3)
    assert known.stdout == found.stdout
    shutil.copy(videos / "more" / "one.mp4", tmp_path / "copy.mp4")
    found = command("nearest", "--query", "copy.mp4", "--by", "audio")
    assert found.stdout.splitlines()[2].split()[:2] == ["1.000", "more/one.mp4"]
    for query, known in (("one.mp4", "more/one.mp4"), ("more/onne.mp4", "more/one.mp4"), ("ONE.mp4", "more/one.mp4")):
        refused = command("nearest", "--query", query)
        assert (
            refused.stderr
            == f"error: '{query}' is neither a file nor a video in features.h5; did you mean '{known}'?\n"
        )
    refused = command("nearest", "--query", videos / "broken.mp4")
    assert f"{videos / 'broken.mp4'} cannot be used: " in refused.stderr and "/.embed-" not in refused.stderr
    across = command("nearest", "--query", "more/one.mp4", "--by", "audio", "--among", "video")
    assert across.returncode == 0 and len(across.stdout.splitlines()) == 2 + 4 + 3


@pytest.mark.parametrize(
    ("name", "id", "expected"),
    [
        ("video", "a b.mp4", "gdt nearest --features 'my videos.h5' --query 'a b.mp4'"),
        ("audio", "-x.mp4", "gdt nearest --features 'my videos.h5' --query=-x.mp4 --by audio"),
    ],
)
def test_the_printed_command_can_be_pasted(name: str, id: str, expected: str) -> None:
    empty = np.array([""], object)
    rows = Features(np.array([id], object), empty, np.zeros(1), {name: np.zeros((1, 2))}, {})
    steps = _next_steps(Path("my videos.h5"), rows)
    assert steps[1] == f"  {gdt_command()}{expected.removeprefix('gdt')}"
    assert parse(Nearest, "gdt nearest", shlex.split(expected)[2:]).query == id


def test_features_of_a_video_are_the_same_from_folder_file_and_shards(
    checkpoint: Path, videos: Path, synthetic: Path, shards: Path, tmp_path: Path
) -> None:
    base = Embed(checkpoint, (videos,), out=tmp_path / "f.npz", clips=3, workers=1)
    folder = features(base)
    name = next(name for name in folder.id if name.startswith("test_"))
    alone = features(replace(base, source=(videos / name,)))
    stored = features(replace(base, source=(), shards=shards))
    assert len(folder.skipped) == 1 and alone.id.tolist() == [str(videos / name)]
    for modality in ("video", "audio"):
        one = folder.features[modality][folder.id.tolist().index(name)]
        assert np.allclose(one, alone.features[modality][0], atol=1e-5)
        assert np.allclose(one, stored.features[modality][stored.id.tolist().index(Path(name).stem)], atol=1e-5)


def test_rows_are_in_the_order_of_the_sources(
    checkpoint: Path, videos: Path, synthetic: Path, shards: Path, tmp_path: Path
) -> None:
    """25 files with two broken ones and a folder among them."""
    files = sorted(synthetic.rglob("*.mp4"))[:25]
    random.Random(0).shuffle(files)
    kept = files.copy()
    for place in (3, 12):
        broken = tmp_path / f"{place}.mp4"
        broken.write_bytes(b"nonsense")
        files.insert(place, broken)
    files.insert(20, videos / "more")
    kept.insert(18, videos / "more" / "one.mp4")
    base = Embed(checkpoint, tuple(files), out=tmp_path / "f.npz", clips=1, workers=1)
    rows, stored = features(base), features(replace(base, source=(), shards=shards))
    assert rows.id.tolist() == rows.path.tolist() == [str(path) for path in kept]
    assert [path for path, _ in rows.skipped] == [str(tmp_path / "3.mp4"), str(tmp_path / "12.mp4")]
    places = [stored.id.tolist().index(path.stem) for path in kept if path.stem != "one"]
    found = np.delete(rows.features["video"], 18, 0)
    assert np.allclose(found, stored.features["video"][places], atol=1e-5)


@pytest.mark.parametrize("kind", ["embeddings", "features"])
def test_rows_per_clip_are_the_outputs_of_the_networks(checkpoint: Path, index: Index, kind: str) -> None:
    trained = load_model(checkpoint)
    rows = features_of(trained, index, ["video", "audio"], 3, kind, "clip", CPU)
    assert rows.id.tolist() == np.repeat(index.id, 3).tolist()
    side = trained.settings.augmentation.scale[0]
    plan = uniform_clips(index, np.array([2]), 3, trained.settings.clip, replace(EVALUATION, scale=(side, side)),
                         modalities=("video", "audio"))  # fmt: skip
    with (
        Loader(trained.normalise(index), [plan], trained.settings.clip, CPU, Loading()) as loader,
        torch.inference_mode(),
    ):
        (batch,) = loader
        for name in ("video", "audio"):
            trunk = trained.model.get_submodule(f"{name}_network")(batch.inputs[name])
            expected = trunk if kind == "features" else trained.model.get_submodule(f"mlp_{name[0]}")(trunk)
            assert np.allclose(rows.features[name][6:9], expected.numpy(), atol=1e-5)
    assert rows.start[6:9].tolist() == pytest.approx((plan.leaves.start[:3] / 30).tolist())
    mean = features_of(trained, index, ["video", "audio"], 3, kind, "video", CPU).features["video"][2]
    clips = rows.features["video"][6:9].mean(0)
    assert np.allclose(mean, clips / np.linalg.norm(clips) if kind == "embeddings" else clips, atol=1e-5)


def test_videos_without_audio_have_rows_of_nan(checkpoint: Path, index: Index) -> None:
    mute = replace(index, mel_count=np.where(np.arange(len(index)) == 3, 0, index.mel_count))
    trained = load_model(checkpoint)
    rows = features_of(trained, mute, ["video", "audio"], 1, "embeddings", "video", CPU)
    assert np.isnan(rows.features["audio"][3]).all() and not np.isnan(rows.features["video"]).any()
    assert np.isnan(rows.features["audio"]).any(1).sum() == 1
    clips = features_of(trained, mute, ["video", "audio"], 2, "embeddings", "clip", CPU)
    expected = f"'audio' is NaN for 1 video whose audio is missing or shorter than a clip: {index.id[3]}"
    assert describe_missing(rows) == describe_missing(clips) == [expected]


def test_a_file_of_the_shards_is_not_its_own_neighbour(
    checkpoint: Path, synthetic: Path, shards: Path, tmp_path: Path
) -> None:
    embed(Embed(checkpoint, dataset="x", shards=shards, clips=1, out=tmp_path / "f.npz"))
    id = read(tmp_path / "f.npz").id[0]
    (file,) = synthetic.rglob(f"{id}.*")
    lines = nearest(Nearest(str(file), tmp_path / "f.npz", k=3)).splitlines()
    assert lines[0].split() == ["cosine", "video"] and lines[5:7] == ["", f"left out: the query, {id}"]
    assert len(lines) == 8 and lines[7].startswith("median cosine of ")
    assert not any(id in line for line in lines[:5])


def test_npz_and_h5_hold_the_same(checkpoint: Path, shards: Path, tmp_path: Path) -> None:
    for name in ("a.h5", "a.npz"):
        embed(Embed(checkpoint, dataset="x", shards=shards, clips=1, out=tmp_path / name))
    one, other = read(tmp_path / "a.h5"), read(tmp_path / "a.npz")
    assert one.id.tolist() == other.id.tolist() and len(one.id) == 42 and one.metadata.keys() == other.metadata.keys()
    assert all(np.array_equal(one.features[name], other.features[name]) for name in ("video", "audio"))
    assert {path.name for path in tmp_path.iterdir()} == {"a.h5", "a.npz"}


@pytest.mark.parametrize("suffix", [".h5", ".npz"])
def test_a_full_disk_keeps_the_old_features(
    checkpoint: Path, shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    settings = Embed(checkpoint, dataset="x", shards=shards, clips=1, out=tmp_path / f"a{suffix}")
    rows = features(settings)
    monkeypatch.setattr("gdt.eval.embed.features", lambda _: rows)
    embed(settings)
    before = settings.out.read_bytes()

    def full(file: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(
        UserError, match=rf"a{suffix} cannot be written \(No space left on device\); check the free disk"
    ):
        embed(replace(settings, overwrite=True))
    assert [*tmp_path.iterdir()] == [settings.out] and settings.out.read_bytes() == before


@pytest.mark.parametrize("suffix", [".h5", ".npz"])
def test_flipped_bits_and_cut_features_are_refused_or_harmless(
    checkpoint: Path, shards: Path, tmp_path: Path, suffix: str
) -> None:
    path, draw = tmp_path / f"a{suffix}", random.Random(0)
    embed(Embed(checkpoint, dataset="x", shards=shards, clips=1, out=path))
    first, content, refused = read(path), path.read_bytes(), 0
    for cut in (0, 1, 5000, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:cut])
        what = r"damaged, or not a features file \(.+\)" if cut > 1 else r"not a features file \(.h5 or .npz\)"
        with pytest.raises(UserError, match=rf"a{suffix} is {what}; write one with 'gdt embed'$"):
            read(path)
    for place in draw.sample(range(len(content)), 100):
        path.write_bytes(content)
        flip(path, place, draw.randrange(8))
        try:
            again = read(path)  # equal: a date in the archive has changed
        except UserError as error:
            assert " is damaged, or not a features file (" in str(error)
            refused += 1
        else:
            assert again.id.tolist() == first.id.tolist() and again.metadata == first.metadata
            assert all(np.array_equal(again.features[name], first.features[name]) for name in ("video", "audio"))
    assert refused >= (100 if suffix == ".h5" else 90)


ARRAYS = {"id": np.array(["a", "b"]), "path": np.array(["", ""]), "start": np.zeros(2, np.float32),
          "video": np.ones((2, 4), np.float32)}  # fmt: skip
MADE = {"format": FORMAT, "kind": "embeddings", "per": "video", "clips": "1", "checkpoint": "x"}


@pytest.mark.parametrize(
    ("change", "made", "message"),
    [
        ({}, [], "its metadata is not a table of text"),
        ({}, {"format": FORMAT}, "it has no checkpoint, clips, kind, per"),
        ({}, MADE | {"clips": "many"}, "its number of clips is 'many'"),
        ({"video": None}, MADE, "it has no features"),
        ({"start": np.zeros(3, np.float32)}, MADE, r"start has shape \[3\] and type float32"),
        ({"path": np.array([{}, {}])}, MADE, "Object arrays cannot be loaded"),
    ],
)
def test_crafted_npz_files_are_refused(tmp_path: Path, change: dict[str, Any], made: Any, message: str) -> None:
    path = tmp_path / "x.npz"
    arrays = {name: values for name, values in (ARRAYS | change).items() if values is not None}
    np.savez(path, made=np.asarray(json.dumps(made)), **arrays)
    with pytest.raises(UserError, match=rf"x.npz is damaged, or not a features file \({message}.*\); write one with"):
        read(path)


def test_other_h5_files_are_refused(tmp_path: Path) -> None:
    path, stored = tmp_path / "x.h5", {name: values for name, values in ARRAYS.items() if values.dtype.kind == "f"}
    stored |= {name: container.text_array(ARRAYS[name].tolist()) for name in ("id", "path")}
    container.write(path, stored, MADE)
    assert read(path).id.tolist() == ["a", "b"]
    container.write(path, stored | {"start": np.zeros(3, np.float32)}, MADE)
    with pytest.raises(UserError, match=r"x.h5 is damaged, or not a features file \(start has shape \[3\]"):
        read(path)
    with h5py.File(path, "a") as file:
        file.attrs["more"] = 1
    with pytest.raises(UserError, match=r"x.h5 is damaged, or not a features file \(it has .* bytes instead of"):
        read(path)
    with h5py.File(path, "w") as file:
        file["id"] = ["a"]
    with pytest.raises(UserError, match=r"x.h5 is damaged, or not a features file \(checksum mismatch in its first"):
        read(path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"source": ()},
            "set --source to files or folders of videos, or --dataset to a preprocessed data set, but not both",
        ),
        ({"out": Path("features.txt")}, "its name must end in .h5, .npz, .parquet"),
        ({"out": Path("nowhere/features.h5")}, "the folder nowhere does not exist"),
        ({"source": (Path("gone"),)}, "no file or folder gone"),
        ({"source": (Path("text.txt"),)}, "text.txt does not have the suffix of a video file"),
        ({"source": (Path("empty"),)}, "there are no videos in"),
        ({"query": "x"}, "no features file features.h5; write one"),
        ({"query": "x", "features": Path("text.txt")}, "text.txt is not a features file \\(.h5 or .npz\\); write one"),
    ],
)
def test_wrong_settings_and_files_are_refused(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: dict[str, Any], message: str
) -> None:
    (tmp_path / "text.txt").write_text("it is a text")
    (tmp_path / "run.pt").symlink_to(checkpoint)
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=message):
        if "query" in arguments:
            nearest(Nearest(**arguments))
        embed(Embed(checkpoint, **{"source": (tmp_path,)} | arguments))
    assert {path.name for path in tmp_path.iterdir()} == {"text.txt", "run.pt", "empty"}


def test_real_videos_are_embedded_and_bad_ones_are_listed(checkpoint: Path, real: Path, tmp_path: Path) -> None:
    """With clips that break naive pipelines."""
    rows = features(Embed(checkpoint, (real / "clips",), out=tmp_path / "f.h5", clips=1))
    files = [path for path in (real / "clips").iterdir() if path.is_file()]
    assert len(rows.id) > 10 and rows.skipped and len(rows.id) + len(rows.skipped) <= len(files)
    assert all(Path(path).is_file() for path in rows.path) and all(reason for _, reason in rows.skipped)
    assert not np.isnan(rows.features["video"]).any()


def test_parquet_without_pyarrow_is_refused_before_anything_is_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gdt.eval.embed.find_spec", lambda name: None)
    with pytest.raises(
        UserError, match="needs pyarrow; run '\\S*python -m pip install pyarrow', or set --out to .h5 or .npz"
    ):
        Embed(tmp_path / "x.pt", (tmp_path,), out=tmp_path / "x.parquet")
