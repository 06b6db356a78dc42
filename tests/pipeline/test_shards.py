"""Shards: reading returns what was written, and damage is reported."""

import errno
import json
import os
import random
from dataclasses import make_dataclass, replace
from pathlib import Path

import h5py
import numpy as np
import pytest

from gdt.common.errors import UserError
from gdt.common.folders import Folder
from gdt.pipeline.shards import container
from gdt.pipeline.shards.index import Index, gather_tables, write_index
from gdt.pipeline.shards.layout import COLUMNS, SHARD, Stored
from gdt.pipeline.shards.reader import ShardReader
from gdt.pipeline.shards.statistics import Statistics, mel_sums
from gdt.pipeline.shards.writer import VideoRecord, write_shard
from tests.preprocess.intact import problems
from tests.tamper import annotate, flip


def test_a_shard_is_contiguous_and_readable_with_h5py(shards: Path) -> None:
    with h5py.File(shards / "shard-000000.h5") as file:
        names: list[str] = []
        file.visititems(lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None)
        assert set(names) == set(SHARD)
        assert file["frames/jpeg"].chunks is None and file["frames/jpeg"].compression is None
        assert json.loads(file.attrs["settings"])["fps"] == 30
    assert problems(shards / "shard-000000.h5") == []
    line = (shards / "shard-000000.h5").read_bytes().split(b"\n")[0]
    assert line.startswith(b"gdt ") and json.loads(line[13:])["arrays"].keys() == set(SHARD)


def test_the_reader_returns_the_slices_of_the_shard(monkeypatch: pytest.MonkeyPatch, index: Index) -> None:
    monkeypatch.setattr("gdt.pipeline.shards.reader._OPEN_FILES", 1)
    reader = ShardReader(index)
    for video in (0, len(index) - 1, 5):
        path = index.folder.root / index.shard_names[index.shard[video]]
        with h5py.File(path) as file:
            offset = file["frames/offset"][:]
            for k, jpeg in enumerate(reader.frames(video, 7 + 3 * np.arange(4))):
                frame = index.frame_start[video] + 7 + 3 * k
                assert np.array_equal(jpeg, file["frames/jpeg"][offset[frame] : offset[frame + 1]])
            first = index.mel_start[video] + 11
            assert np.array_equal(reader.logmel(video, 11, 50), file["audio/logmel"][first : first + 50])


def test_reading_beyond_a_video_is_refused(index: Index) -> None:
    reader = ShardReader(index)
    frames, rows = int(index.frame_count[1]), int(index.mel_count[1])
    for first, count in ((-1, 2), (frames - 1, 2)):
        with pytest.raises(UserError, match=f"no frames {first} to {first + 1} of '{index.id[1]}', which has {frames}"):
            reader.frames(1, first + np.arange(count))
    for first in (-1, rows - 4):
        with pytest.raises(UserError, match=rf"log-mel frames {first} to {first + 4} of .* which has {rows}"):
            reader.logmel(1, first, 5)
    assert len(reader.frames(1, np.array([0, frames - 1]))) == 2 and len(reader.logmel(1, 0, rows)) == rows


def test_start_counts(index: Index) -> None:
    for mel_frames, frames, stride in [(99, 30, 1), (99, 8, 4), (0, 30, 1), (50, 5, 2)]:
        starts = index.start_counts(frames, stride, mel_frames)
        for video in range(len(index)):
            fitting = [
                start
                for start in range(int(index.frame_count[video]))
                if start + (frames - 1) * stride < index.frame_count[video]
                and np.floor(100 * start / 30 + 0.5) + mel_frames <= index.mel_count[video]
            ]
            assert starts[video] == len(fitting) and fitting == list(range(len(fitting)))


def test_statistics_of_the_stored_data(index: Index) -> None:
    mels = []
    for name in index.shard_names:
        with h5py.File(index.folder.root / name) as file:
            mels.append(file["audio/logmel"][:].astype(np.float64))
    everything = np.concatenate(mels)
    assert abs(index.statistics.mel_mean - everything.mean()) < 1e-5
    assert abs(index.statistics.mel_std - everything.std()) < 1e-5
    assert all(30 < mean < 225 for mean in index.statistics.pixel_mean)


def test_sums_give_the_statistics_and_are_exact_in_any_order_and_at_any_size() -> None:
    x = np.random.default_rng(0).integers(0, 256, (1000, 3))
    mel = np.random.default_rng(1).normal(-3, 9, (4000, 40)).astype(np.float32)
    got = Statistics.from_sums([[1000, int(c.sum()), int((c**2).sum())] for c in x.T], mel_sums(mel).tolist())
    assert np.allclose(got.pixel_mean, x.mean(0), rtol=1e-14) and np.allclose(got.pixel_std, x.std(0), rtol=1e-12)
    assert abs(got.mel_mean - mel.mean(dtype=float)) < 1e-6 and abs(got.mel_std - mel.std(dtype=float)) < 1e-6
    rng = np.random.default_rng(2)
    banks = [rng.normal(-3, 9, (int(n), 40)).astype(np.float32) for n in rng.integers(1, 2000, 50)]
    forward, backward = sum(map(mel_sums, banks)), sum(map(mel_sums, reversed(banks)))
    assert np.array_equal(forward, backward) and np.array_equal(forward, mel_sums(np.concatenate(banks)))
    once = Statistics.from_sums([[5, 600, 80_000]] * 3, forward.tolist())
    million = [int(value) * 10**9 for value in forward]  # beyond 64 bits
    often = Statistics.from_sums([[5 * 10**18, 600 * 10**18, 80_000 * 10**18]] * 3, million)
    assert np.allclose([*often.pixel_std, often.mel_std], [*once.pixel_std, once.mel_std], rtol=1e-14)


def written(folder: Path, records: list[VideoRecord]) -> Index:
    """Write a shard of these videos; return its index."""
    sums = {"pixels": np.zeros((3, 3), np.int64), "mels": np.zeros(3, np.int64)}
    (folder / "scratch").mkdir()
    write_shard(folder / "shard-000000.h5", records, sums, folder / "scratch")
    tables = gather_tables(Folder(folder), ["shard-000000.h5"])
    write_index(folder / "index.h5", tables, '{"fps": 30, "bands": 40}', {})
    return Index.open(folder)


def test_tokens_are_consecutive_words_within_the_clip(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    start = np.sort(rng.uniform(0, 30, 80)).astype(np.float32)
    end = (start + rng.uniform(0.1, 1.0, 80)).astype(np.float32)
    records = []
    for name, part in (("a", slice(0, 20)), ("b", slice(20, 20)), ("c", slice(20, 80))):
        files = tmp_path / f"{name}.jpegs", tmp_path / f"{name}.rows"
        files[0].write_bytes(b"\xff\xd8\xff\xd9" * 900)
        files[1].touch()
        words = range(part.start, part.stop), start[part], end[part]
        records.append(VideoRecord({"id": name, "height": 2, "width": 2}, files[0], np.full(900, 4), files[1], words))
    index = written(tmp_path, records)
    assert index.text_count.tolist() == [20, 0, 60]
    reader = ShardReader(index)
    assert len(reader.tokens(1, 0.0)) == 0
    for word in (20, 33, 79):  # words at the borders of the clip are in it
        begin = float(start[word])
        assert reader.tokens(2, begin)[0] == word
        assert reader.tokens(2, begin, words=99, seconds=float(end[word]) - begin)[0] == word
    for tau in rng.uniform(0, 30, 50):
        expected: list[int] = []
        for k in range(20, 80):
            if start[k] >= tau:
                if end[k] > tau + 4 or len(expected) == 16:
                    break
                expected.append(k)
        assert reader.tokens(2, tau).tolist() == expected


def test_a_new_column_takes_one_line_of_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = tmp_path / "old"
    old.mkdir()
    for name in ("c.jpeg", "c.rows"):
        (old / name).write_bytes(b"\xff\xd8\xff\xd9" if name == "c.jpeg" else b"")
    columns = {"id": "c", "height": 2, "width": 2}
    written(old, [VideoRecord(columns, old / "c.jpeg", np.full(1, 4), old / "c.rows")])
    rate = Stored(np.float32, "frames per second of the file", 25.0)  # like a line of VideoTable
    monkeypatch.setitem(COLUMNS, "rate", rate)
    monkeypatch.setitem(SHARD, "video/rate", rate)
    table = make_dataclass("Index", ["rate"], bases=(Index,), kw_only=True)
    monkeypatch.setattr("gdt.pipeline.shards.index.Index", table)
    records = []
    for name, filled in {"b": {"rate": 24.0}, "a": {}}.items():
        (tmp_path / f"{name}.jpeg").write_bytes(b"\xff\xd8\xff\xd9")
        (tmp_path / f"{name}.rows").touch()
        files = tmp_path / f"{name}.jpeg", np.full(1, 4), tmp_path / f"{name}.rows"
        records.append(VideoRecord({"id": name, "height": 2, "width": 2, **filled}, *files))
    assert written(tmp_path, records).rate.tolist() == [25.0, 24.0]
    assert table.open(old).rate.tolist() == [25.0]  # an index and a shard of before
    assert gather_tables(Folder(old), ["shard-000000.h5"]).arrays["video/rate"].tolist() == [25.0]
    monkeypatch.undo()
    assert Index.open(tmp_path).id.tolist() == ["a", "b"]  # without the column, as an earlier version


def test_folds_replace_the_split(index: Index) -> None:
    with pytest.raises(UserError, match="has an official fold 1; leave --folds out"):
        index.fold(1)
    folds = np.asarray(["train,test,unused"] * len(index), object)
    three = replace(index, folds=folds)
    assert set(three.fold(2).split) == {"test"} and set(three.fold(3).split) == {"unused"}
    with pytest.raises(UserError, match="has an official fold 4"):
        three.fold(4)


NAMES = ["colour", "a/b", ".", "..", "100%", "%2F", "/", "é ü", "label/x", " "]


def test_columns_of_labels_may_have_any_name(copy: Path, index: Index) -> None:
    draw = random.Random(0)
    values = {name: [draw.choice(["", "blue", "réd", "a/b"]) for _ in index.id] for name in NAMES}
    annotate(copy, **values)
    found = Index.open(copy)
    assert {name: column.tolist() for name, column in found.columns.items()} == values
    assert found.labelled("") is found and found.labelled("label") is found
    coloured = found.labelled("colour")
    assert coloured.label.tolist() == values["colour"] and coloured.classes == ["a/b", "blue", "réd"]
    with pytest.raises(UserError, match=r"unknown column 'color'; did you mean 'colour'\? Available:"):
        found.labelled("color")


def test_what_is_no_whole_data_set_of_this_version_is_refused(
    copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(container, "SCHEMA", container.SCHEMA + 1)
        with pytest.raises(UserError, match=r"it has schema 3 but this version reads schema 4; rebuild the"):
            Index.open(copy)
    shard = copy / "shard-000001.h5"
    shard.write_bytes(shard.read_bytes()[: shard.stat().st_size // 2])
    with pytest.raises(UserError, match=r"shard-000001.h5 has \d+ bytes instead of \d+.*same preprocessing command"):
        Index.open(copy)
    shard.unlink()
    with pytest.raises(UserError, match="shard-000001.h5 is missing"):
        Index.open(copy)
    (copy / "index.h5").unlink()
    with pytest.raises(UserError, match="has shards but no index.h5: preprocessing has not finished"):
        Index.open(copy)
    with pytest.raises(UserError, match="gdt preprocess --dataset kinetics"):
        Index.open(tmp_path / "kinetics")


def test_every_bit_flip_of_an_index_is_detected(copy: Path) -> None:
    path = copy / "index.h5"
    whole = path.read_bytes()
    draw = random.Random(0)
    for _ in range(250):
        flip(path, draw.randrange(len(whole)), draw.randrange(8))
        with pytest.raises(UserError, match="index.h5 is damaged: .* run the same preprocessing command again"):
            Index.open(copy)
        path.write_bytes(whole)
    for other, why in (
        (whole + b"x", r"it has \d+ bytes instead of"),
        (b"nonsense", "checksum mismatch in its first line"),
    ):
        path.write_bytes(other)
        with pytest.raises(UserError, match=f"index.h5 is damaged: {why}"):
            Index.open(copy)


def test_a_shard_of_another_index_is_refused(copy: Path) -> None:
    index = Index.open(copy)
    one, other = copy / "shard-000000.h5", copy / "shard-000001.h5"
    data = one.read_bytes()
    one.write_bytes(other.read_bytes())
    video = int(np.flatnonzero(index.shard == 0)[0])
    with pytest.raises(UserError, match="shard-000000.h5 is not the one that the index was made from"):
        ShardReader(index).frames(video, np.arange(5))
    one.write_bytes(data)
    assert len(ShardReader(index).frames(video, np.arange(5))) == 5


def test_reading_returns_what_was_written_or_reports_the_damaged_video(copy: Path) -> None:
    index = Index.open(copy)
    whole = ShardReader(index)
    draw = random.Random(1)
    for number, name in enumerate(index.shard_names):
        path = copy / name
        data = path.read_bytes()
        videos = np.flatnonzero(index.shard == number)
        places = [index.headers[number].arrays[piece] for piece in ("frames/jpeg", "audio/logmel")]
        for k in range(40):
            damage = bytearray(data)
            if k % 2:
                damage[(position := draw.randrange(5000, len(data)))] ^= 1 << draw.randrange(8)
            else:
                position = draw.randrange(5000, len(data) - 4096)
                damage[position : position + 4096] = bytes(4096)  # a lost block of the disk
            expected = [(whole.frames(v, np.arange(90)), whole.logmel(v, 0, int(index.mel_count[v]))) for v in videos]
            path.write_bytes(damage)
            reader, found = ShardReader(index), 0
            for video, (frames, bank) in zip(videos, expected, strict=True):
                try:
                    assert all(map(np.array_equal, reader.frames(video, np.arange(90)), frames))
                    assert np.array_equal(reader.logmel(video, 0, int(index.mel_count[video])), bank)
                except UserError as error:
                    assert f"of '{index.id[video]}'" in str(error) and "gdt verify" in str(error)
                    found += 1
            path.write_bytes(data)
            assert 0 <= found <= len(videos)
            assert found or not any(place.begin <= position < place.begin + place.nbytes for place in places)
        whole = ShardReader(index)


def test_a_disk_error_names_the_shard(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = ShardReader(index)
    reader.frames(0, np.arange(5))

    def broken(*arguments: object) -> bytes:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    monkeypatch.setattr("os.pread", broken)
    name = index.shard_names[index.shard[0]]
    with pytest.raises(UserError, match=f"{name} cannot be read: {os.strerror(errno.ESTALE)}; check its disk"):
        reader.logmel(0, 0, 10)
