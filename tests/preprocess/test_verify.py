"""Damage of any kind is found and named; what is sound is not."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest

from pipeline.shards.layout import SHARD, checksum, shard_attributes
from preprocess.stage import Preprocess, run
from preprocess.verify import check_shard
from tests.conftest import Run
from tests.preprocess.test_stage import digests


@pytest.fixture
def copy(shards: Path, tmp_path: Path) -> Path:
    """Shards that a test may damage."""
    shutil.copytree(shards, tmp_path / "copy")
    return tmp_path / "copy"


def resealed(file: h5py.File, *names: str) -> None:
    """Checksums that hide a change, so that only what it means can be found."""
    for name in names:
        file[name].attrs["crc32"] = checksum(file[name])


@pytest.mark.parametrize("full", [False, True])
def test_what_was_written_is_sound(shards: Path, full: bool) -> None:
    for path in shards.glob("shard-*.h5"):
        assert check_shard(path, full) == []


@pytest.mark.parametrize("name", [name for name in SHARD if not name.startswith(("text/", "rejected"))])
def test_a_changed_value_in_any_dataset_is_found(copy: Path, name: str) -> None:
    path = copy / "shard-000001.h5"
    with h5py.File(path, "a") as file:
        data = file[name]
        place = len(data) // 2
        data[place] = b"x" + data[place] if data.dtype == object else data[place] + 1
    assert f"the checksum of {name} does not match" in check_shard(path, full=False)


def test_flipped_bytes_anywhere_in_the_data_are_found(copy: Path) -> None:
    path = copy / "shard-000000.h5"
    whole = path.read_bytes()
    with h5py.File(path, "r") as file:
        spans = [
            (file[name].id.get_offset(), file[name].nbytes) for name in ("frames/jpeg", "audio/logmel", "video/mel")
        ]
    draw = random.Random(0)
    for start, size in spans * 5:
        data = bytearray(whole)
        data[start + draw.randrange(size)] ^= 1 << draw.randrange(8)
        path.write_bytes(data)
        assert check_shard(path, full=False)


def test_a_frame_without_its_markers_is_named(copy: Path) -> None:
    path = copy / "shard-000001.h5"
    with h5py.File(path, "a") as file:
        offset, frame = file["frames/offset"][:], file["video/frame"][:]
        file["frames/jpeg"][offset[frame[2] + 5]] = 0
        name = file["video/id"][2].decode()
        resealed(file, "frames/jpeg")
    assert check_shard(path, full=False) == [f"frame 5 of {name} does not begin and end as a JPEG does"]


def test_a_frame_that_cannot_be_decoded_is_found_by_decoding(copy: Path) -> None:
    path = copy / "shard-000001.h5"
    with h5py.File(path, "a") as file:
        offset = file["frames/offset"][:]
        file["frames/jpeg"][offset[7] + 2 : offset[7] + 30] = np.zeros(28, np.uint8)
        name = file["video/id"][0].decode()
        resealed(file, "frames/jpeg")
    assert check_shard(path, full=False) == []
    (problem,) = check_shard(path, full=True)
    assert problem.startswith(f"frame 7 of {name} cannot be decoded")


def test_a_frame_of_another_size_is_found_by_decoding(copy: Path) -> None:
    path = copy / "shard-000001.h5"
    with h5py.File(path, "a") as file:
        file["video/width"][3] += 2
        frames = int(np.diff(file["video/frame"][3:5])[0])
        resealed(file, "video/width")
    assert check_shard(path, full=False) == []
    problems = check_shard(path, full=True)
    assert len(problems) == frames and "or no baseline 4:2:0 JPEG" in problems[0]


@pytest.mark.parametrize(
    ("name", "place", "value", "message"),
    [
        ("frames/offset", -1, 5, "frames/offset does not fit frames/jpeg"),
        ("frames/offset", 4, 0, "frames/offset does not fit frames/jpeg"),
        ("video/frame", -1, 5, "video/frame does not fit 16 videos"),
        ("video/mel", 3, -1, "video/mel does not fit 16 videos"),
    ],
)
def test_offsets_that_do_not_fit_are_found(copy: Path, name: str, place: int, value: int, message: str) -> None:
    path = copy / "shard-000001.h5"
    with h5py.File(path, "a") as file:
        file[name][place] = value
        resealed(file, name)
    assert any(problem.startswith(message) for problem in check_shard(path, full=False))


def test_the_command_names_damage_removes_it_and_preprocessing_mends_it(
    command: Run, copy: Path, shards: Path, synthetic: Path
) -> None:
    done = command("preprocess.verify", "--shards", copy, "--full")
    assert done.returncode == 0 and "every shard" in done.stdout
    flipped, cut = copy / "shard-000000.h5", copy / "shard-000002.h5"
    with h5py.File(flipped, "a") as file:
        file["frames/jpeg"][1000] += 1
    cut.write_bytes(cut.read_bytes()[:-5])
    done = command("preprocess.verify", "--shards", copy)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert f"{flipped}: the checksum of frames/jpeg does not match" in done.stderr
    assert f"{cut}: it has" in done.stderr and "2 shards or indexes are damaged" in done.stderr
    assert flipped.exists()
    assert command("preprocess.verify", "--shards", copy, "--remove").returncode == 2
    assert not flipped.exists() and not cut.exists()
    assert command("preprocess.verify", "--shards", copy).stderr.count("it is missing") == 2
    assert run(Preprocess("synthetic", synthetic, copy, videos_per_shard=16, workers=2)).shards_made == 2
    assert digests(copy) == digests(shards)


def test_damage_anywhere_is_never_a_traceback(copy: Path) -> None:
    path = copy / "shard-000001.h5"
    whole = path.read_bytes()
    with h5py.File(path, "r") as file:  # everything but the frames and the sound
        start, size = file["frames/jpeg"].id.get_offset(), file["frames/jpeg"].nbytes
        sound, rows = file["audio/logmel"].id.get_offset(), file["audio/logmel"].nbytes
    places = [k for k in range(len(whole)) if not (start <= k < start + size or sound <= k < sound + rows)]
    draw = random.Random(1)
    found = 0
    for place in draw.sample(places, 400):
        data = bytearray(whole)
        data[place] ^= 1 << draw.randrange(8)
        path.write_bytes(data)
        found += bool(check_shard(path, full=False))
        attributes = shard_attributes(path)
        assert attributes is None or attributes["schema"] == 1
    assert found > 100  # the others hit bytes that HDF5 does not use


def test_an_index_that_is_not_what_the_shards_say_is_found(command: Run, copy: Path) -> None:
    with h5py.File(copy / "index.h5", "a") as file:
        file["video/label"][3] = b"another class"
    done = command("preprocess.verify", "--shards", copy)
    assert done.returncode == 2 and "index.h5: it is not what the shards say" in done.stderr
    (copy / "index.h5").write_bytes(b"nonsense")
    done = command("preprocess.verify", "--shards", copy)
    assert done.returncode == 2 and "index.h5 is damaged" in done.stderr and "Traceback" not in done.stderr


def test_no_shards_is_one_sentence(command: Run, tmp_path: Path) -> None:
    done = command("preprocess.verify", "--dataset", "kinetics")
    assert done.returncode == 2 and "make preprocess DATASET=kinetics" in done.stderr
