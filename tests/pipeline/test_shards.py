"""Shards: what is written is what is read, and damage is named."""

from __future__ import annotations

import shutil
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import h5py
import numpy as np
import pytest

from pipeline.errors import UserError
from pipeline.shards.index import Index, Statistics, mel_sums, write_index
from pipeline.shards.layout import SHARD, VideoRecord, shard_attributes, write_shard
from pipeline.shards.reader import ShardReader


@pytest.fixture
def copy(shards: Path, tmp_path: Path) -> Path:
    """Shards that a test may damage."""
    shutil.copytree(shards, tmp_path / "synthetic")
    return tmp_path / "synthetic"


def test_a_shard_is_contiguous_documented_and_readable_with_h5py_alone(shards: Path) -> None:
    with h5py.File(shards / "shard-000000.h5") as file:
        names: list[str] = []
        file.visititems(lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None)
        assert set(names) == set(SHARD)
        assert file["frames/jpeg"].chunks is None and file["frames/jpeg"].compression is None
        offset, frame = file["frames/offset"][:], file["video/frame"][:]
        assert offset[0] == 0 and offset[-1] == len(file["frames/jpeg"]) and (np.diff(offset) > 0).all()
        assert frame[0] == 0 and frame[-1] == len(offset) - 1
        for start, end in pairwise(offset):
            jpeg = file["frames/jpeg"][start:end].tobytes()
            assert jpeg[:2] == b"\xff\xd8" and jpeg[-2:] == b"\xff\xd9"
        assert file["video/mel"][-1] == len(file["audio/logmel"])
        assert file.attrs["schema"] == 1


def test_the_reader_returns_the_slices_of_the_shard(index: Index) -> None:
    reader = ShardReader(index, open_files=1)
    for video in (0, len(index) - 1, 5):
        path = index.folder / index.shard_names[index.shard[video]]
        with h5py.File(path) as file:
            offset = file["frames/offset"][:]
            for k, jpeg in enumerate(reader.frames(video, 7, 4, 3)):
                frame = index.frame_start[video] + 7 + 3 * k
                assert np.array_equal(jpeg, file["frames/jpeg"][offset[frame] : offset[frame + 1]])
            first = index.mel_start[video] + 11
            assert np.array_equal(reader.logmel(video, 11, 50), file["audio/logmel"][first : first + 50])


def test_start_frames_are_those_whose_frames_and_sound_fit(index: Index) -> None:
    for mel_frames, frames, stride in [(99, 30, 1), (99, 8, 4), (0, 30, 1), (50, 5, 2)]:
        starts = index.starts(frames, stride, mel_frames)
        for video in range(len(index)):
            fitting = [
                start
                for start in range(int(index.frame_count[video]))
                if start + (frames - 1) * stride < index.frame_count[video]
                and np.floor(100 * start / 30 + 0.5) + mel_frames <= index.mel_count[video]
            ]
            assert starts[video] == len(fitting) and fitting == list(range(len(fitting)))


def test_statistics_are_those_of_the_stored_data(index: Index) -> None:
    mels = []
    for name in index.shard_names:
        with h5py.File(index.folder / name) as file:
            mels.append(file["audio/logmel"][:].astype(np.float64))
    everything = np.concatenate(mels)
    assert abs(index.statistics.mel_mean - everything.mean()) < 1e-5
    assert abs(index.statistics.mel_std - everything.std()) < 1e-5
    assert (index.statistics.pixel_mean > 30).all() and (index.statistics.pixel_mean < 225).all()


def test_statistics_from_sums() -> None:
    x = np.random.default_rng(0).integers(0, 256, (1000, 3))
    mel = np.random.default_rng(1).normal(-3, 9, (4000, 40)).astype(np.float32)
    got = Statistics.from_sums([[1000, int(c.sum()), int((c**2).sum())] for c in x.T], mel_sums(mel).tolist())
    assert np.allclose(got.pixel_mean, x.mean(0), rtol=1e-14) and np.allclose(got.pixel_std, x.std(0), rtol=1e-12)
    assert abs(got.mel_mean - mel.mean(dtype=float)) < 1e-6 and abs(got.mel_std - mel.std(dtype=float)) < 1e-6


def test_sums_do_not_depend_on_the_order_or_on_how_much_there_is() -> None:
    rng = np.random.default_rng(2)
    banks = [rng.normal(-3, 9, (int(n), 40)).astype(np.float32) for n in rng.integers(1, 2000, 50)]
    forward, backward = sum(map(mel_sums, banks)), sum(map(mel_sums, reversed(banks)))
    assert np.array_equal(forward, backward) and np.array_equal(forward, mel_sums(np.concatenate(banks)))
    once = Statistics.from_sums([[5, 600, 80_000]] * 3, forward.tolist())
    million = [int(value) * 10**9 for value in forward]  # beyond 64 bits, where floating point would lose digits
    often = Statistics.from_sums([[5 * 10**18, 600 * 10**18, 80_000 * 10**18]] * 3, million)
    assert np.allclose(often.pixel_std, once.pixel_std, rtol=1e-14) and np.isclose(
        often.mel_std, once.mel_std, rtol=1e-14
    )


def test_tokens_are_consecutive_words_within_a_time(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    start = np.sort(rng.uniform(0, 30, 80)).astype(np.float32)
    end = (start + rng.uniform(0.1, 1.0, 80)).astype(np.float32)
    others = {"label": "", "split": "train", "folds": "", "height": 2, "width": 2, "silence": 0.0, "note": ""}
    records = []
    for name, part in (("a", slice(0, 20)), ("b", slice(20, 20)), ("c", slice(20, 80))):
        files = tmp_path / f"{name}.jpegs", tmp_path / f"{name}.rows"
        files[0].write_bytes(b"\xff\xd8\xff\xd9" * 900)
        files[1].touch()
        records.append(
            VideoRecord(
                name, jpeg=files[0], sizes=np.full(900, 4), logmel=files[1],
                token=list(range(part.start, part.stop)), start=start[part].tolist(), end=end[part].tolist(), **others,
            )
        )  # fmt: skip
    sums = {"pixel_sums": np.zeros((3, 3), np.int64), "mel_sums": np.zeros(3, np.int64)}
    (tmp_path / "scratch").mkdir()
    write_shard(tmp_path / "shard-000000.h5", records, [], sums, 40, tmp_path / "scratch")
    write_index(tmp_path, [tmp_path / "shard-000000.h5"], {"settings": '{"fps": 30, "bands": 40}'})
    index = Index.open(tmp_path)
    assert index.text_count.tolist() == [20, 0, 60]
    reader = ShardReader(index)
    assert len(reader.tokens(1, 0.0)) == 0
    for tau in rng.uniform(0, 30, 50):
        expected: list[int] = []
        for k in range(20, 80):
            if start[k] >= tau:
                if end[k] > tau + 4 or len(expected) == 16:
                    break
                expected.append(k)
        assert reader.tokens(2, tau).tolist() == expected


def test_folds_replace_the_split(tmp_path: Path, index: Index) -> None:
    with pytest.raises(UserError, match="has no fold 1; its videos have 0 official folds"):
        index.fold(1)
    folds = np.asarray(["train,test,unused"] * len(index), object)
    three = replace(index, folds=folds)
    assert set(three.fold(2).split) == {"test"} and set(three.fold(3).split) == {"unused"}
    with pytest.raises(UserError, match="has no fold 4; its videos have 3 official folds"):
        three.fold(4)


def test_no_shards_names_the_command_that_makes_them(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="make preprocess DATASET=kinetics"):
        Index.open(tmp_path / "kinetics")


def test_another_schema_is_refused(copy: Path) -> None:
    with h5py.File(copy / "index.h5", "a") as file:
        file.attrs["schema"] = 99
    with pytest.raises(UserError, match="has schema 99, this version reads schema 1"):
        Index.open(copy)


def test_a_shard_cut_in_half_is_named(copy: Path) -> None:
    shard = copy / "shard-000001.h5"
    shard.write_bytes(shard.read_bytes()[: shard.stat().st_size // 2])
    with pytest.raises(UserError, match=r"shard-000001.h5 has \d+ bytes instead of \d+.*make preprocess"):
        Index.open(copy)
    assert shard_attributes(shard) is None
    shard.unlink()
    with pytest.raises(UserError, match="shard-000001.h5 is missing"):
        Index.open(copy)


def test_a_damaged_index_is_one_sentence(copy: Path) -> None:
    (copy / "index.h5").write_bytes(b"nonsense")
    with pytest.raises(UserError, match="index.h5 is damaged"):
        Index.open(copy)
