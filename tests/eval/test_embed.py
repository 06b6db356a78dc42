"""Features of videos: their values and files, and runs that go on where they were stopped."""

import errno
import random
import shutil
import unicodedata
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import h5py
import numpy as np
import pytest
import torch

from gdt.common.errors import Unusable, UserError
from gdt.common.files import locked
from gdt.eval.embed import Embedder, embed, features
from gdt.eval.export import export
from gdt.eval.features import Features, read, sameness
from gdt.eval.nearest import nearest
from gdt.eval.parts import Parts
from gdt.eval.settings import Embed, Export, Nearest
from gdt.pipeline.clips import uniform_clips
from gdt.pipeline.loader import Loader
from gdt.pipeline.shards.index import Index
from gdt.pipeline.transformations.augmentation import EVALUATION, centred
from gdt.preprocess import named
from gdt.preprocess.ffmpeg import Extraction
from gdt.preprocess.settings import Preprocess
from gdt.preprocess.stage import run
from gdt.train.checkpoint import load_model, read_run
from gdt.train.checkpoint import write as write_run
from gdt.train.trained import Trained
from tests.conftest import Run, few
from tests.pipeline.test_loader import CPU
from tests.tamper import flip
from tests.test_kills import EMBEDDING, kill, run_command


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


def features_of(trained: Trained, index: Index, *settings: Any) -> Features:
    """Of all videos."""
    asked = dict(zip(("modalities", "clips", "kind", "every"), settings, strict=False))
    embedder = Embedder(Embed("x", shards=Path(), **asked | {"modalities": tuple(asked["modalities"])}), trained)
    return embedder.rows(index, np.arange(len(index)))


def test_embed_a_folder_and_find_neighbours(command: Run, checkpoint: Path, videos: Path, tmp_path: Path) -> None:
    embedding = ("embed", "--ckpt", checkpoint, "--source", videos, "--clips", 2)
    done = command(*embedding, check=True)
    assert done.stdout.startswith(
        "features.h5: embeddings of 5 videos: video [5, 128], audio [5, 128]; from 2 clips per video, each of 8 frames"
    )
    assert f"\nskipped {videos / 'broken.mp4'}: " in done.stdout
    assert "\nof the model: the run is too short to " in done.stdout
    assert {path.name for path in tmp_path.iterdir()} == {"features.h5"}  # no temporary files
    one = str(videos / "more" / "one.mp4")
    with h5py.File(tmp_path / "features.h5") as file:
        assert np.allclose(np.linalg.norm(file["video"][:], axis=1), 1)
        assert file["id"].asstr()[0] == one and file.attrs["checkpoint"] == str(checkpoint)
    found = command("nearest", "--query", one, "--k", 3, check=True)
    lines = found.stdout.splitlines()
    assert lines[0].split() == ["cosine", "video"] and len(lines) == 2 + 3 + 2 + 1
    rows = read(tmp_path / "features.h5").features["video"]
    assert lines[6] == f"median cosine of {len(rows) - 1} candidates: {np.median(rows[1:] @ rows[0]):.3f}"
    assert one not in found.stdout
    (tmp_path / "one.mp4").symlink_to(one)
    assert one not in command("nearest", "--query", "one.mp4").stdout  # the same file by another name
    # a copy is decoded, and finds its original
    shutil.copy(one, tmp_path / "copy.mp4")
    found = command("nearest", "--query", "copy.mp4", "--by", "audio")
    best = found.stdout.splitlines()[2].split()
    assert best[1] == one and float(best[0]) > 0.98  # of its moments, to the mean of all
    refused = command("nearest", "--query", f"{one}x")
    assert refused.stderr.startswith(f"error: unknown query '{one}x'; did you mean '{one}'? set --query to a file")
    refused = command("nearest", "--query", videos / "broken.mp4")
    assert f"the first, {videos / 'broken.mp4'}: " in refused.stderr
    across = command("nearest", "--query", one, "--by", "audio", "--among", "video")
    assert across.returncode == 0 and len(across.stdout.splitlines()) == 2 + 4 + 2 + 1


def test_rows_are_in_the_order_of_the_sources(checkpoint: Path, synthetic: Path, shards: Path, tmp_path: Path) -> None:
    """25 files with two broken ones and folders among them, whose names are in both normal forms of Unicode."""
    files = sorted(synthetic.rglob("*.mp4"))[:25]
    random.Random(0).shuffle(files)
    kept = files.copy()
    for place, form in ((5, "NFC"), (15, "NFD")):
        files[place] = tmp_path / unicodedata.normalize(form, "é")
        files[place].mkdir()
        kept[place] = Path(shutil.copy(kept[place], files[place]))
    for place in (3, 12):
        broken = tmp_path / f"{place}.mp4"
        broken.write_bytes(b"nonsense")
        files.insert(place, broken)
    base = Embed(checkpoint, tuple(files), out=tmp_path / "f.npz", clips=1, workers=1)
    rows, stored = features(base), features(replace(base, source=(), shards=shards, workers=0))
    assert rows.id.tolist() == [str(path) for path in kept]
    assert [file.path for file in rows.skipped] == [str(tmp_path / "3.mp4"), str(tmp_path / "12.mp4")]
    places = [stored.id.tolist().index(path.stem) for path in kept]
    assert np.allclose(rows.features["video"], stored.features["video"][places], atol=1e-5)


def test_files_are_decoded_at_the_frame_rate_of_the_model(
    checkpoint: Path, synthetic: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slow = Preprocess("folder", synthetic / "test", tmp_path / "slow", extraction=Extraction(fps=10), workers=1)
    index = run(slow).index
    state = read_run(checkpoint.parent)
    assert state is not None and state.record.fps == 30
    write_run(tmp_path / "slow.pt", state._replace(record=replace(state.record, fps=10)))
    export(Export(tmp_path / "slow.safetensors", ckpt=str(tmp_path / "slow.pt")))
    files = tuple(synthetic / "test" / id for id in index.id)
    for model in ("slow.pt", "slow.safetensors"):
        asked = Embed(tmp_path / model, files, clips=1, workers=1)
        rows, stored = features(asked), features(replace(asked, source=(), shards=tmp_path / "slow", workers=0))
        assert np.allclose(rows.features["video"], stored.features["video"], atol=1e-5)
    assert "another speed" not in capsys.readouterr().err
    features(Embed(checkpoint, shards=tmp_path / "slow", clips=1))
    said = "slow has 10 frames/s, and the model was trained with 30, so its clips play at another speed"
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["embeddings", "features"])
def test_features_are_means_of_the_outputs_of_the_networks(checkpoint: Path, index: Index, kind: str) -> None:
    trained = load_model(checkpoint)
    rows = features_of(trained, index, ["video", "audio"], 3, kind)
    assert rows.id.tolist() == index.id.tolist()
    side = trained.settings.augmentation.scale[0]
    plan = uniform_clips(index, np.array([2]), 3, trained.settings.clip, replace(EVALUATION, scale=(side, side)),
                         modalities=("video", "audio"))  # fmt: skip
    with Loader(index, [plan], trained.inputs, CPU) as loader, torch.inference_mode():
        (batch,) = loader
        for name in ("video", "audio"):
            trunk = trained.model.get_submodule(f"{name}_network")(batch.inputs[name])
            clips = trunk if kind == "features" else trained.model.get_submodule(f"mlp_{name[0]}")(trunk)
            mean = clips.numpy().mean(0)
            expected = mean / np.linalg.norm(mean) if kind == "embeddings" else mean
            assert np.allclose(rows.features[name][2], expected, atol=1e-5)
    for parameter in trained.model.mlp_v.parameters():
        parameter.data.zero_()
    with pytest.raises(UserError, match="the video network gives NaN, infinity or nothing but zeros; use other"):
        features_of(trained, index, ["video"], 3, "embeddings")


def test_a_fault_of_the_machine_is_not_a_verdict_on_the_files(
    checkpoint: Path, videos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken, whole = videos / "broken.mp4", videos / "more" / "one.mp4"
    with pytest.raises(Unusable, match="no video can be used; the first, .*broken.mp4: ") as raised:
        features(Embed(checkpoint, (broken,), workers=1))
    assert [file.path for file in raised.value.skipped] == [str(broken)]
    with monkeypatch.context() as patch:
        patch.setattr("gdt.preprocess.worker.write_shard", Mock(side_effect=OSError(errno.ENOSPC, "No space left")))
        with pytest.raises(UserError, match="no space left on the disk") as full:
            features(Embed(checkpoint, (broken, whole), workers=1))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="ffmpeg is not installed") as absent:
        features(Embed(checkpoint, (whole,), workers=1))
    assert not {Unusable} & {type(full.value), type(absent.value)}


@pytest.mark.parametrize("suffix", [".npz", ".parquet"])
@pytest.mark.parametrize("asked", few([{"every": 0.8}, {"clips": 2}]))
def test_formats_are_equal(checkpoint: Path, shards: Path, tmp_path: Path, suffix: str, asked: dict[str, Any]) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    for name in ("a.h5", f"a{suffix}"):
        embed(Embed(checkpoint, dataset="x", shards=shards, out=tmp_path / name, **asked))
    one, other = read(tmp_path / "a.h5"), read(tmp_path / f"a{suffix}")
    assert one.id.tolist() == other.id.tolist() and one.metadata == other.metadata and one.contents == other.contents
    assert len(one.id) == 42 * (3 if "every" in asked else 1)
    assert ("start" in one.columns) == ("every" in asked)
    assert list(one.columns) == list(other.columns)
    for name, values in one.columns.items():
        assert np.array_equal(values, other.columns[name]) and values.dtype == other.columns[name].dtype
    if suffix == ".parquet":
        table = parquet.read_table(tmp_path / "a.parquet")  # as pandas does
        assert table.column_names == ["id", "content", *one.columns]
        assert np.array_equal(np.stack(table["video"].to_pylist()), one.features["video"])


def test_moments_start_together_as_long_as_a_clip_fits(checkpoint: Path, index: Index) -> None:
    trained, count = load_model(checkpoint), np.arange(len(index))
    lengths = np.where(count == 4, 40, np.where(count == 5, 10, index.mel_count))
    some = replace(index, mel_count=np.where(count == 3, 0, lengths))  # one mute, one too short, of its sound
    clip = trained.settings.clip
    rows = features_of(trained, some, ["video", "audio"], 10, "embeddings", 0.5)
    pictures = (index.frame_count - (clip.frames - 1) * clip.stride - 1) / index.fps
    for row in (0, 3, 5):
        start = rows.start[rows.id == index.id[row]]
        last = min(pictures[row], (index.mel_count[row] - 99) / 100) if row == 0 else pictures[row]
        assert np.allclose(start, np.arange(0, last + 1e-6, 0.5), atol=1 / index.fps) and len(start) > 3
        assert np.isnan(rows.features["audio"][rows.id == index.id[row]]).all() == (row > 0)
    assert np.isfinite(rows.features["video"]).all() and rows.count == f"{len(rows.id)} moments"
    for name, start in (("video", 1.0), ("audio", 0.5)):  # a moment is a clip that starts there
        plan = uniform_clips(index, count[:1], 1, clip, centred(trained.inputs.short_side), [name],
                             np.array([[round(start * index.fps)]]))  # fmt: skip
        with Loader(index, [plan], trained.inputs, CPU) as loader, torch.inference_mode():
            (batch,) = loader
            expected = trained.model.embed(name, batch.inputs[name])[0].numpy()
        row = np.flatnonzero((rows.id == index.id[0]) & np.isclose(rows.start, start, atol=0.02))
        assert np.allclose(rows.features[name][row[0]], expected / np.linalg.norm(expected), atol=1e-5)
    assert len(features_of(trained, index, ["video"], 10, "features", 100.0).id) == len(index)


@pytest.mark.parametrize("every", [0.0, 0.5])
@pytest.mark.parametrize("kind", few(["embeddings", "features"]))
def test_modalities_do_not_depend_on_each_other(checkpoint: Path, index: Index, kind: str, every: float) -> None:
    """Whether asked for alone or together, with the sound cut short or absent, and with a sound file beside them."""
    trained, count, clips = load_model(checkpoint), np.arange(len(index)), 10 if every else 3

    def of(index: Index, *modalities: str) -> dict[tuple[str, str, float], np.ndarray]:
        """By modality, video and start; moments are those at which all modalities fit."""
        rows = features_of(trained, index, modalities, clips, kind, every)
        start = np.zeros(len(rows.id)) if rows.start is None else rows.start
        found = {}
        for name, values in rows.features.items():
            found |= {(name, *row): value for row, value in zip(zip(rows.id, start, strict=True), values, strict=True)}
        return {key: value for key, value in found.items() if np.isfinite(value).all()}

    def same(found: dict[Any, np.ndarray], others: dict[Any, np.ndarray], name: str) -> bool:
        both = [key for key in found.keys() & others.keys() if key[0] == name]
        return len(both) >= 40 and all(np.allclose(found[key], others[key], atol=1e-6) for key in both)

    together = of(index, "video", "audio")
    pictures = of(index, "video")
    assert same(pictures, together, "video") and same(of(index, "audio"), together, "audio")
    for rest in (0, 50, 110):
        cut = replace(index, mel_count=np.minimum(index.mel_count, rest))
        assert same(of(cut, "video", "audio"), pictures, "video")
    sound = replace(index, frame_count=np.where(count == 5, 0, index.frame_count))
    beside = of(sound, "video", "audio")
    assert same(beside, together, "audio") and same(beside, pictures, "video")
    assert not [key for key in beside if key[:2] == ("video", index.id[5])]


@pytest.mark.parametrize("suffix", few([".h5", ".npz", ".parquet"]))
def test_damaged_features_are_refused_or_harmless(checkpoint: Path, shards: Path, tmp_path: Path, suffix: str) -> None:
    pytest.importorskip("pyarrow")
    path, draw = tmp_path / f"a{suffix}", random.Random(0)
    embed(Embed(checkpoint, dataset="x", shards=shards, clips=1, out=path))
    first, content, refused = read(path), path.read_bytes(), 0
    for cut in (0, 1, 5000, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:cut])
        with pytest.raises(UserError, match=rf"a{suffix} is damaged, or not a features file of this version"):
            read(path)
    for place in draw.sample(range(len(content)), 100):
        path.write_bytes(content)
        flip(path, place, draw.randrange(8))
        try:
            again = read(path)  # equal: a date in the archive has changed
        except UserError as error:
            assert " is damaged, or not a features file of" in str(error)
            refused += 1
        else:
            assert again.id.tolist() == first.id.tolist() and again.metadata == first.metadata
            assert all(np.array_equal(again.features[name], first.features[name]) for name in ("video", "audio"))
    assert refused >= (100 if suffix == ".h5" else 90)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"source": ()}, "set --source to files or folders, or --dataset to a preprocessed data set"),
        ({"cache": "1GB"}, "--cache has no effect on --source"),
        ({"source": (), "dataset": "x", "scheduler": "tcp://a:1"}, "nor --workers and --scheduler on shards"),
        ({"every": 1.0, "clips": 3}, "--clips has no effect with --every"),
        ({"out": Path("features.txt")}, "its name must end in .h5, .npz or .parquet"),
        ({"out": Path("a.parquet")}, "a.parquet needs pyarrow; run pip install"),
        ({"source": (Path("gone"),)}, "gone does not exist"),
        ({"source": (Path(), Path("empty"))}, "name each once"),
        ({"source": (Path("empty"),)}, "there are no videos in"),
        ({"query": "x", "out": Path("text.txt")}, "--out is text.txt; its name must end in .html"),
        ({"query": "x"}, "no features file features.h5; write one"),
    ],
)
def test_wrong_settings_and_files_are_refused(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: dict[str, Any], message: str
) -> None:
    (tmp_path / "text.txt").write_text("it is a text")
    (tmp_path / "run.pt").symlink_to(checkpoint)
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=message):
        if "query" in arguments:
            nearest(Nearest(**arguments))
        embed(Embed(checkpoint, **{"source": (tmp_path,)} | arguments))
    assert {path.name for path in tmp_path.iterdir()} == {"text.txt", "run.pt", "empty"}


@pytest.mark.parametrize("spread", [0.0, 0.05, 1.0])
def test_features_that_are_nearly_the_same_give_a_warning(spread: float) -> None:
    rng = np.random.default_rng(0)
    near = rng.normal(size=16) + spread * rng.normal(size=(300, 16))
    near[::7] = np.nan
    said = sameness({"video": rng.normal(size=(300, 16)), "audio": near})
    assert ("the audio (median cosine " in said) == (spread < 1) and "video (" not in said
    assert not sameness({"video": np.ones((4, 16))})  # too few to tell
    assert sameness({"video": np.zeros((300, 16))}) == ""


@pytest.mark.slow
def test_real_videos_are_embedded_and_bad_ones_are_listed(checkpoint: Path, real: Path, tmp_path: Path) -> None:
    """With clips that break naive pipelines."""
    rows = features(Embed(checkpoint, (real / "clips",), out=tmp_path / "f.h5", clips=1))
    files = [path for path in (real / "clips").iterdir() if path.is_file()]
    assert len(rows.id) > 10 and rows.skipped and len(rows.id) + len(rows.skipped) <= len(files)
    assert all(Path(path).is_file() for path in rows.id) and all(file.reason for file in rows.skipped)
    assert not np.isnan(rows.features["video"]).any()


@pytest.fixture
def grouped(synthetic: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Eight videos and a broken one, in groups of two."""
    monkeypatch.setattr(named, "_GROUP", 2)
    folder = tmp_path / "mine"
    folder.mkdir()
    for path in sorted(synthetic.rglob("*.mp4"))[:8]:
        shutil.copy(path, folder)
    (folder / "broken.mp4").write_bytes(b"nonsense")
    return folder


@pytest.mark.parametrize("of", ["files", "shards"])
def test_a_stopped_run_goes_on_where_it_was(
    checkpoint: Path, grouped: Path, shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of: str
) -> None:
    source: dict[str, Any] = {"shards": shards} if of == "shards" else {"source": (grouped,), "workers": 1}
    asked = Embed(str(checkpoint), clips=2, out=tmp_path / "a.h5", **source)
    said = embed(asked)
    kept: list[str] = []
    keep = Parts.keep

    def counted(self: Parts, name: str, *arguments: Any) -> None:
        if len(kept) == 2:
            raise OSError(errno.ENOSPC, "No space left on device", "rows")
        kept.append(name)
        keep(self, name, *arguments)

    other = replace(asked, out=tmp_path / "b.h5")
    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space left"):
        patch.setattr(Parts, "keep", counted)
        embed(other)
    with pytest.raises(UserError, match="b.h5.parts has features of other weights or settings: clips was 2, now 3; "):
        embed(replace(other, clips=3))
    before = kept.copy()
    kept[:] = []
    monkeypatch.setattr(Parts, "keep", lambda self, name, *rest: (kept.append(name), keep(self, name, *rest)))
    assert embed(other) == said.replace("a.h5", "b.h5")
    assert not set(before) & set(kept) and len(kept) == (1 if of == "shards" else 3)
    assert (tmp_path / "a.h5").read_bytes() == (tmp_path / "b.h5").read_bytes()
    assert not [*tmp_path.glob("*.parts")]


def test_videos_are_added_and_gone_ones_left_out_if_asked(checkpoint: Path, grouped: Path, tmp_path: Path) -> None:
    added = grouped / "a.mp4"  # before the others
    first = next(path for path in sorted(grouped.glob("*.mp4")) if path.stem != "broken")
    asked = Embed(str(checkpoint), (grouped, first), clips=2, out=tmp_path / "f.npz", workers=1)
    embed(asked)
    before = read(asked.out)
    assert len(before.id) == 8  # the first once
    shutil.copy(first, added)
    assert "\n1 video new or changed; the others had their rows\n" in embed(asked)
    after = read(asked.out)
    assert after.id.tolist() == [str(added), *before.id]
    assert np.array_equal(after.features["video"][1:], before.features["video"])
    for change, what in (({"clips": 3}, "clips was 2, now 3"), ({"kind": "features"}, "kind was embeddings, now fea")):
        with pytest.raises(UserError, match=f"f.npz has features of other weights or settings: {what}"):
            embed(replace(asked, **change))
    added.unlink()
    added.symlink_to("nowhere")
    embed(asked)  # it cannot be looked at now
    assert read(asked.out).id.tolist() == [str(added), *before.id]
    added.unlink()
    with pytest.raises(
        UserError, match=rf"of 1 video that --source lacks \(first: {added}\); restore them or name all"
    ):
        embed(asked)
    embed(replace(asked, drop_missing=True))
    assert read(asked.out).id.tolist() == before.id.tolist()
    embed(replace(asked, clips=1, overwrite=True))
    assert read(asked.out).metadata["clips"] == "1"
    asked = replace(asked, source=(first,), clips=1, modalities=("audio",), out=tmp_path / "sound.h5")
    assert "next: " not in embed(asked)
    assert f" --by audio --query {first}" in embed(replace(asked, source=(first, grouped)))
    asked.out.write_bytes(b"nonsense")
    with pytest.raises(UserError, match="sound.h5 is damaged.*; set --overwrite or another --out"):
        embed(asked)


def test_rows_of_former_content_are_made_again(
    checkpoint: Path, grouped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, *others = (path for path in sorted(grouped.glob("*.mp4")) if path.stem != "broken")
    contents = [path.read_bytes().ljust(10**6, b"\0") for path in others]  # of one size
    asked = Embed(str(checkpoint), (grouped,), clips=1, out=tmp_path / "a.h5", workers=1)
    for name, content in zip(("shards", "shards", "other"), contents, strict=False):
        first.write_bytes(content)
        run(Preprocess("folder", grouped, tmp_path / name, workers=1, allow_rejected=True))
        embed(made := replace(asked, source=(), shards=tmp_path / name, workers=0, out=tmp_path / "b.h5"))
        assert np.array_equal(read(made.out).features["video"], features(made).features["video"])
    assert "\n0 videos new" in embed(made)
    keep, calls = Parts.keep, []

    def keep_and_change(*arguments: Any) -> None:
        keep(*arguments)
        calls.append(arguments)
        if len(calls) < 3:
            first.write_bytes(contents[len(calls)])
        if len(calls) == 1:
            raise InterruptedError

    monkeypatch.setattr(Parts, "keep", keep_and_change)
    with pytest.raises(InterruptedError):
        embed(asked)
    embed(asked)
    assert len(calls) == 6  # the first group twice
    assert "\n1 video new or changed; " in embed(asked) and "\n0 videos new" in embed(asked)
    assert np.array_equal(read(asked.out).features["video"], features(asked).features["video"])


def test_of_two_runs_that_write_one_file_the_second_is_refused(checkpoint: Path, grouped: Path, tmp_path: Path) -> None:
    with locked(tmp_path / "f.h5.parts"), pytest.raises(UserError, match="another run is writing to .*f.h5.parts; "):
        embed(Embed(str(checkpoint), (grouped,), out=tmp_path / "f.h5"))
    assert [path.name for path in (tmp_path / "f.h5.parts").iterdir()] == [".lock"]


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("workers", "moments"), few([(2, EMBEDDING[4:5]), (1, EMBEDDING)]))
def test_kills_change_nothing(
    checkpoint: Path, synthetic: Path, tmp_path: Path, workers: int, moments: list[str]
) -> None:
    (tmp_path / "videos").mkdir()
    for path in sorted(synthetic.rglob("*.mp4")):
        shutil.copy(path, tmp_path / "videos")
    command = ["embed", "--ckpt", checkpoint, "--source", tmp_path / "videos", "--clips", 2]
    assert run_command([*command, "--out", "whole.h5"], tmp_path) == 0
    for moment in moments:
        kill([*command, "--workers", workers, "--out", "f.h5"], tmp_path, moment)
        assert (tmp_path / "f.h5.parts").is_dir() and not (tmp_path / "f.h5").exists()
    assert run_command([*command, "--out", "f.h5"], tmp_path) == 0
    assert (tmp_path / "f.h5").read_bytes() == (tmp_path / "whole.h5").read_bytes()
    assert not (tmp_path / "f.h5.parts").exists()
