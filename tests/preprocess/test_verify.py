"""Damage of any kind is found and named; what is sound is not."""

from __future__ import annotations

import random
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from pipeline.shards.layout import SHARD, VideoRecord, write_shard
from pipeline.shards.seal import SEAL_BYTES, check_seal
from preprocess.lock import locked
from preprocess.stage import Preprocess, run
from preprocess.verify import check_shard
from tests.conftest import Run
from tests.preprocess.test_stage import digests
from tests.tamper import changed, flip


@pytest.fixture
def copy(shards: Path, tmp_path: Path) -> Path:
    """Shards that a test may damage."""
    shutil.copytree(shards, tmp_path / "copy")
    return tmp_path / "copy"


@pytest.mark.parametrize("full", [False, True])
def test_what_was_written_is_sound(shards: Path, full: bool) -> None:
    for path in shards.glob("shard-*.h5"):
        assert check_shard(path, full) == []


@pytest.mark.parametrize("name", [name for name in SHARD if not name.startswith(("text/t", "text/s", "text/e", "rej"))])
def test_a_changed_value_in_any_dataset_is_found(copy: Path, name: str) -> None:
    path = copy / "shard-000001.h5"
    with changed(path) as file:
        data = file[name]
        place = len(data) // 2
        data[place] = b"x" + data[place] if data.dtype == object else data[place] + 1
    problems = check_shard(path, full=False)
    if name.startswith("video/"):
        assert problems == ["its structure is not what was written (the checksum does not match)"]
    else:
        assert all("not what was written" in problem for problem in problems) and 1 <= len(problems) <= 2


def test_a_changed_word_is_found(tmp_path: Path) -> None:
    jpeg, sound = tmp_path / "jpeg", tmp_path / "sound"
    others = {"label": "", "split": "train", "folds": "", "height": 2, "width": 2, "silence": 0.0, "note": ""}
    records = []
    for name in "ab":
        jpeg, sound = tmp_path / f"{name}.jpeg", tmp_path / f"{name}.sound"
        jpeg.write_bytes(b"\xff\xd8\xff\xd9" * 30)
        sound.write_bytes(np.zeros((150, 40), np.float32).tobytes())
        words = {"token": [1, 2, 3], "start": [0.0, 0.2, 0.4], "end": [0.1, 0.3, 0.5]}
        records.append(VideoRecord(name, jpeg=jpeg, sizes=np.full(30, 4), logmel=sound, **words, **others))
    (tmp_path / "scratch").mkdir()
    path = tmp_path / "shard-000000.h5"
    write_shard(path, records, [], {}, "content", 40, tmp_path / "scratch")
    assert check_shard(path, full=False) == []
    for name in ("token", "start", "end", "crc32"):
        whole = path.read_bytes()
        with changed(path) as file:
            file[f"text/{name}"][-1] += 1
        assert check_shard(path, full=False) == ["the words of b are not what was written"]
        path.write_bytes(whole)


def test_every_flipped_bit_is_found(copy: Path) -> None:
    path = copy / "shard-000000.h5"
    whole = path.read_bytes()
    draw = random.Random(0)
    places = [draw.randrange(len(whole)) for _ in range(60)]  # mostly in the frames and the sound
    edge = check_seal(path)
    spans = [(begin, size) for begin, size in edge.spans.values() if size < 20_000 and size]
    places += [begin + draw.randrange(size) for begin, size in spans for _ in range(10)]
    places += [draw.randrange(SEAL_BYTES + 3000) for _ in range(60)]  # the seal and HDF5's own tables
    places += [len(whole) - 1 - draw.randrange(20_000) for _ in range(40)]
    for place in places:
        flip(path, place, draw.randrange(8))
        assert check_shard(path, full=False), place
        path.write_bytes(whole)


def test_a_frame_without_its_markers_is_named(copy: Path) -> None:
    path = copy / "shard-000001.h5"
    with changed(path, hidden=True) as file:
        offset, frame = file["frames/offset"][:], file["video/frame"][:]
        file["frames/jpeg"][offset[frame[2] + 5]] = 0
        name = file["video/id"][2].decode()
    assert check_shard(path, full=False) == [f"frame 5 of {name} does not begin and end as a JPEG does"]


def test_a_frame_that_cannot_be_decoded_is_found_by_decoding(copy: Path) -> None:
    path = copy / "shard-000001.h5"
    with changed(path, hidden=True) as file:
        offset = file["frames/offset"][:]
        file["frames/jpeg"][offset[7] + 2 : offset[7] + 30] = np.zeros(28, np.uint8)
        name = file["video/id"][0].decode()
    assert check_shard(path, full=False) == []
    (problem,) = check_shard(path, full=True)
    assert problem.startswith(f"frame 7 of {name} cannot be decoded")


def test_a_frame_of_another_size_is_found_by_decoding(copy: Path) -> None:
    path = copy / "shard-000001.h5"
    with changed(path, hidden=True) as file:
        file["video/width"][3] += 2
        frames = int(np.diff(file["video/frame"][3:5])[0])
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
    with changed(path, hidden=True) as file:
        file[name][place] = value
    assert any(problem.startswith(message) for problem in check_shard(path, full=False))


def test_the_command_names_damage_removes_it_and_preprocessing_mends_it(
    command: Run, copy: Path, shards: Path, synthetic: Path
) -> None:
    done = command("preprocess.verify", "--shards", copy, "--full")
    assert done.returncode == 0 and "every shard" in done.stdout
    flipped, cut = copy / "shard-000000.h5", copy / "shard-000002.h5"
    with changed(flipped) as file:
        file["frames/jpeg"][1000] += 1
    cut.write_bytes(cut.read_bytes()[:-5])
    done = command("preprocess.verify", "--shards", copy)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert re.search(rf"{flipped}: frame \d+ of \w+ is not what was written", done.stderr)
    assert f"{cut}: it has" in done.stderr and "2 shards or indexes are damaged" in done.stderr
    assert flipped.exists()
    assert command("preprocess.verify", "--shards", copy, "--remove").returncode == 2
    assert not flipped.exists() and not cut.exists()
    assert command("preprocess.verify", "--shards", copy).stderr.count("it is missing") == 2
    assert run(Preprocess("synthetic", synthetic, copy, videos_per_shard=16, workers=2)).shards_made == 2
    assert digests(copy) == digests(shards)


def test_an_index_that_is_not_what_the_shards_say_is_found(command: Run, copy: Path) -> None:
    with changed(copy / "index.h5", hidden=True) as file:
        file["video/label"][3] = b"another class"
    done = command("preprocess.verify", "--shards", copy)
    assert done.returncode == 2 and "index.h5: it is not what the shards say" in done.stderr
    (copy / "index.h5").write_bytes(b"nonsense")
    done = command("preprocess.verify", "--shards", copy)
    assert done.returncode == 2 and "index.h5: its first line is not what was written" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_data_set_that_is_still_being_made_is_checked_as_far_as_it_is(command: Run, copy: Path) -> None:
    (copy / "index.h5").unlink()
    done = command("preprocess.verify", "--shards", copy)
    assert done.returncode == 2 and "index.h5: it is missing: preprocessing has not come to its end" in done.stderr
    with locked(copy):  # a run is at it
        done = command("preprocess.verify", "--shards", copy)
        assert done.returncode == 0 and "3 finished shards were checked" in done.stdout, done.stderr
        flip(copy / "shard-000001.h5", 9000)
        done = command("preprocess.verify", "--shards", copy)
        assert done.returncode == 2 and "shard-000001.h5: frame" in done.stderr
        done = command("preprocess.verify", "--shards", copy, "--remove")
        assert done.returncode == 2 and "a run is writing to" in done.stderr
    assert len(list(copy.glob("shard-*.h5"))) == 3


def test_no_workers_are_refused(command: Run) -> None:
    done = command("preprocess.verify", "--workers", "0")
    assert done.returncode == 2 and "--workers is 0; it must be 1 or more" in done.stderr


def test_declared_shapes_are_bounded_by_the_file(copy: Path) -> None:
    path = copy / "shard-000001.h5"
    with changed(path, hidden=True) as file:
        del file["video/silence"]
        file.create_dataset("video/silence", (1 << 50,), np.float32, chunks=(1,))  # none of it is there
    assert check_shard(path, full=True) == ["video/silence is not stored in one piece, or longer than the file"]


def test_no_shards_is_one_sentence(command: Run, tmp_path: Path) -> None:
    done = command("preprocess.verify", "--dataset", "kinetics")
    assert done.returncode == 2 and "make preprocess DATASET=kinetics" in done.stderr
