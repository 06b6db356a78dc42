"""Shards: what is written is what is read, and damage is named."""

from __future__ import annotations

import shutil
from itertools import pairwise
from pathlib import Path

import h5py
import numpy as np
import pytest

from pipeline.errors import UserError
from pipeline.shards import SHARD, Index, ShardReader, Statistics, shard_attributes


@pytest.fixture
def copy(shards: Path, tmp_path: Path) -> Path:
    """Shards that a test may damage."""
    shutil.copytree(shards, tmp_path / "synthetic")
    return tmp_path / "synthetic"


def test_a_shard_is_contiguous_documented_and_readable_with_h5py_alone(shards: Path) -> None:
    with h5py.File(shards / "shard-000000-of-000003.h5") as file:
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
    assert abs(index.statistics.mel_mean - everything.mean()) < 1e-6
    assert abs(index.statistics.mel_std - everything.std()) < 1e-6
    assert (index.statistics.pixel_mean > 30).all() and (index.statistics.pixel_mean < 225).all()


def test_statistics_from_sums() -> None:
    x = np.random.default_rng(0).normal(100, 20, (1000, 3))
    sums = np.stack([np.full(3, 1000), x.sum(0), (x**2).sum(0)], 1)
    got = Statistics.from_sums(sums, np.array([1000, x[:, 0].sum(), (x[:, 0] ** 2).sum()]))
    assert np.allclose(got.pixel_mean, x.mean(0)) and np.allclose(got.pixel_std, x.std(0))
    assert np.isclose(got.mel_mean, x[:, 0].mean()) and np.isclose(got.mel_std, x[:, 0].std())


def test_no_shards_names_the_command_that_makes_them(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="make preprocess DATASET=kinetics"):
        Index.open(tmp_path / "kinetics")


def test_another_schema_is_refused(copy: Path) -> None:
    with h5py.File(copy / "index.h5", "a") as file:
        file.attrs["schema"] = 99
    with pytest.raises(UserError, match="has schema 99, this version reads schema 1"):
        Index.open(copy)


def test_a_shard_cut_in_half_is_named(copy: Path) -> None:
    shard = copy / "shard-000001-of-000003.h5"
    shard.write_bytes(shard.read_bytes()[: shard.stat().st_size // 2])
    with pytest.raises(UserError, match=r"shard-000001-of-000003.h5 has \d+ bytes instead of \d+.*make preprocess"):
        Index.open(copy)
    assert shard_attributes(shard) is None
    shard.unlink()
    with pytest.raises(UserError, match="shard-000001-of-000003.h5 is missing"):
        Index.open(copy)


def test_a_damaged_index_is_one_sentence(copy: Path) -> None:
    (copy / "index.h5").write_bytes(b"nonsense")
    with pytest.raises(UserError, match="index.h5 is damaged"):
        Index.open(copy)
