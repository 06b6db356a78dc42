"""Damage of any kind is found and named; intact files are not reported."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gdt.common.errors import UserError
from gdt.common.lock import is_locked, locked
from gdt.pipeline.shards.layout import SHARD
from gdt.pipeline.shards.seal import SCHEMA, SEAL_BYTES, check_seal
from gdt.pipeline.shards.writer import VideoRecord, write_shard
from gdt.preprocess import cluster
from gdt.preprocess import verify as module
from gdt.preprocess.stage import Preprocess, run
from gdt.preprocess.verify import Verify, check_shard, verify
from tests.conftest import ROOT, Run
from tests.preprocess.test_stage import digests
from tests.tamper import changed, flip

pytestmark = pytest.mark.usefixtures("alone")  # commands in their own process have workers


@pytest.fixture
def copy(shards: Path, tmp_path: Path) -> Path:
    """A copy of the shards, to be damaged."""
    shutil.copytree(shards, tmp_path / "copy")
    return tmp_path / "copy"


@pytest.mark.parametrize("full", [False, True])
def test_new_shards_are_intact(shards: Path, full: bool) -> None:
    for path in shards.glob("shard-*.h5"):
        assert check_shard(path, full) == []


@pytest.mark.parametrize("name", [name for name in SHARD if not name.startswith(("text/t", "text/s", "text/e", "rej"))])
def test_changed_value_in_any_dataset_is_found(copy: Path, name: str) -> None:
    path = copy / "shard-000001.h5"
    with changed(path) as file:
        data = file[name]
        place = len(data) // 2
        data[place] = b"x" + data[place] if data.dtype == object else data[place] + 1
    problems = check_shard(path, full=False)
    if name.startswith("video/"):
        assert problems == ["checksum mismatch"]
    else:
        assert all("checksum mismatch" in problem for problem in problems) and 1 <= len(problems) <= 2


def test_changed_word_is_found(tmp_path: Path) -> None:
    jpeg, sound = tmp_path / "jpeg", tmp_path / "sound"
    records = []
    for name in "ab":
        jpeg, sound = tmp_path / f"{name}.jpeg", tmp_path / f"{name}.sound"
        jpeg.write_bytes(b"\xff\xd8\xff\xd9" * 30)
        sound.write_bytes(np.zeros((150, 40), np.float32).tobytes())
        words = [1, 2, 3], [0.0, 0.2, 0.4], [0.1, 0.3, 0.5]
        records.append(VideoRecord({"id": name, "height": 2, "width": 2}, jpeg, np.full(30, 4), sound, words))
    (tmp_path / "scratch").mkdir()
    path = tmp_path / "shard-000000.h5"
    write_shard(path, records, [], {}, "content", 40, tmp_path / "scratch")
    assert check_shard(path, full=False) == []
    for name in ("token", "start", "end", "crc32"):
        whole = path.read_bytes()
        with changed(path) as file:
            file[f"text/{name}"][-1] += 1
        assert check_shard(path, full=False) == ["the text of b has a checksum mismatch"]
        path.write_bytes(whole)


def test_every_flipped_bit_is_found(copy: Path) -> None:
    path = copy / "shard-000000.h5"
    whole = path.read_bytes()
    draw = random.Random(0)
    places = [draw.randrange(len(whole)) for _ in range(60)]  # mostly in the frames and the sound
    edge = check_seal(path)
    spans = [(begin, size) for begin, size in edge.spans.values() if size < 20_000 and size]
    places += [begin + draw.randrange(size) for begin, size in spans for _ in range(10)]
    places += [draw.randrange(SEAL_BYTES + 3000) for _ in range(60)]  # the seal and tables of HDF5
    places += [len(whole) - 1 - draw.randrange(20_000) for _ in range(40)]
    for place in places:
        flip(path, place, draw.randrange(8))
        assert check_shard(path, full=False), place
        path.write_bytes(whole)


def test_damaged_frames_with_a_valid_checksum_are_named(copy: Path) -> None:
    path = copy / "shard-000001.h5"
    intact = path.read_bytes()
    with changed(path, hidden=True) as file:
        offset, frame, ids = file["frames/offset"][:], file["video/frame"][:], file["video/id"].asstr()[:]
        file["frames/jpeg"][offset[frame[2] + 5]] = 0
    assert check_shard(path, full=False) == [f"frame 5 of {ids[2]} lacks the markers of a JPEG"]
    path.write_bytes(intact)
    with changed(path, hidden=True) as file:
        file["frames/jpeg"][offset[7] + 2 : offset[7] + 30] = np.zeros(28, np.uint8)
        file["video/width"][3] += 2
    assert check_shard(path, full=False) == []  # found only by decoding
    undecodable, *resized = check_shard(path, full=True)
    assert undecodable.startswith(f"frame 7 of {ids[0]} cannot be decoded")
    assert len(resized) == frame[4] - frame[3] and "or not a baseline 4:2:0 JPEG" in resized[0]


@pytest.mark.parametrize(
    ("name", "place", "value", "message"),
    [
        ("frames/offset", -1, 5, "frames/offset does not fit frames/jpeg"),
        ("frames/offset", 4, 0, "frames/offset does not fit frames/jpeg"),
        ("video/frame", -1, 5, "video/frame does not fit 16 videos"),
        ("video/mel", 3, -1, "video/mel does not fit 16 videos"),
    ],
)
def test_wrong_offsets_are_found(copy: Path, name: str, place: int, value: int, message: str) -> None:
    path = copy / "shard-000001.h5"
    with changed(path, hidden=True) as file:
        file[name][place] = value
    assert any(problem.startswith(message) for problem in check_shard(path, full=False))


def test_command_names_and_removes_damage_and_preprocessing_rebuilds(
    command: Run, copy: Path, shards: Path, synthetic: Path
) -> None:
    done = command("verify", "--shards", copy, "--full")
    assert done.returncode == 0 and "every shard" in done.stdout
    flipped, cut = copy / "shard-000000.h5", copy / "shard-000002.h5"
    with changed(flipped) as file:
        file["frames/jpeg"][1000] += 1
    cut.write_bytes(cut.read_bytes()[:-5])
    done = command("verify", "--shards", copy)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert re.search(rf"{flipped}: frame \d+ of \w+ has a checksum mismatch", done.stderr)
    assert f"{cut}: it has" in done.stderr and "2 files damaged: " in done.stderr
    assert flipped.exists()
    assert command("verify", "--shards", copy, "--remove").returncode == 2
    assert not flipped.exists() and not cut.exists()
    assert command("verify", "--shards", copy).stderr.count("it is missing") == 2
    assert run(Preprocess("synthetic", synthetic, copy, videos_per_shard=16)).shards_made == 2
    assert digests(copy) == digests(shards)


def test_index_is_compared_without_writing(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_here(monkeypatch)

    def full(*_: object, **__: object) -> None:
        raise system(errno.ENOSPC)

    monkeypatch.setattr("tempfile.mkdtemp", full)
    monkeypatch.setattr("gdt.pipeline.shards.index.writing_sealed", full)
    assert verify(Verify(shards=copy)) == {}


def test_index_that_does_not_match_the_shards_is_found(command: Run, copy: Path) -> None:
    with changed(copy / "index.h5", hidden=True) as file:
        file["video/label"][3] = b"another class"
    done = command("verify", "--shards", copy)
    assert done.returncode == 2 and "index.h5: it does not match the shards" in done.stderr
    (copy / "index.h5").write_bytes(b"nonsense")
    done = command("verify", "--shards", copy)
    assert done.returncode == 2 and "index.h5: checksum mismatch in its first line" in done.stderr
    assert "Traceback" not in done.stderr


def test_unfinished_data_set_is_checked(command: Run, copy: Path) -> None:
    (copy / "index.h5").unlink()
    done = command("verify", "--shards", copy)
    assert done.returncode == 2 and "index.h5: it is missing: preprocessing is unfinished" in done.stderr
    with locked(copy):  # as during a run
        done = command("verify", "--shards", copy)
        assert done.returncode == 0 and "3 finished shards were checked" in done.stdout, done.stderr
        flip(copy / "shard-000001.h5", 9000)
        done = command("verify", "--shards", copy)
        assert done.returncode == 2 and "shard-000001.h5: frame" in done.stderr
        done = command("verify", "--shards", copy, "--remove")
        assert done.returncode == 2 and "run is writing to" in done.stderr
    assert len(list(copy.glob("shard-*.h5"))) == 3


def test_zero_workers_are_refused(command: Run) -> None:
    done = command("verify", "--workers", "0")
    assert done.returncode == 2 and "--workers is 0; it must be 1 or more" in done.stderr


def test_declared_shapes_are_bounded_by_the_file(copy: Path) -> None:
    path = copy / "shard-000001.h5"
    with changed(path, hidden=True) as file:
        del file["video/silence"]
        file.create_dataset("video/silence", (1 << 50,), np.float32, chunks=(1,))  # nothing is stored
    assert check_shard(path, full=True) == ["video/silence is not contiguous, or longer than the file"]


def test_no_shards_is_one_sentence(command: Run, tmp_path: Path) -> None:
    done = command("verify", "--dataset", "kinetics")
    assert done.returncode == 2 and "gdt preprocess --dataset kinetics" in done.stderr


Around = Callable[[], contextlib.AbstractContextManager[object]]


def run_here(monkeypatch: pytest.MonkeyPatch, around: Around = contextlib.nullcontext) -> None:
    """Let verify's tasks run in this process, each inside `around`."""

    def map_here(client: object, function: Callable[[Any], Any], tasks: Iterable[Any], expected: int) -> Iterator[Any]:
        for task in tasks:
            with around():
                result = function(task)
            yield result

    monkeypatch.setattr(cluster, "connect", lambda scheduler, workers: contextlib.nullcontext())
    monkeypatch.setattr(cluster, "map_unordered", map_here)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != ".lock")


@pytest.mark.parametrize("worker", ["nothing", "a broken link"])
def test_worker_that_does_not_see_the_folder_removes_nothing(
    copy: Path, monkeypatch: pytest.MonkeyPatch, worker: str
) -> None:
    before, hidden = names(copy), copy.with_name("hidden")

    @contextlib.contextmanager
    def unmounted() -> Iterator[None]:
        copy.rename(hidden)
        if worker == "a broken link":
            copy.mkdir()
            for path in hidden.glob("shard-*.h5"):
                (copy / path.name).symlink_to("nowhere")
        yield
        shutil.rmtree(copy, ignore_errors=True)
        hidden.rename(copy)

    run_here(monkeypatch, unmounted)
    monkeypatch.setattr("socket.gethostname", lambda: "node7")
    message = rf"{copy}/shard-000000.h5 exists, but node7 does not see it; mount the disk of {copy} on every machine"
    with pytest.raises(UserError, match=message):
        verify(Verify(shards=copy, remove=True))
    assert names(copy) == before


def system(number: int) -> OSError:
    return OSError(number, os.strerror(number))


UNREADABLE = [
    *map(system, (errno.EACCES, errno.EIO, errno.ESTALE, errno.EMFILE, errno.ENOENT)),
    OSError("Unable to synchronously read data"), MemoryError(), RuntimeError("a bug"), KeyError("video/id"),
]  # fmt: skip


@pytest.mark.parametrize("error", UNREADABLE, ids=repr)
@pytest.mark.parametrize("place", ["open_sealed", "_problems", "read_seal", "_decoding_problem", "kind"])
def test_unreadable_shards_are_never_removed(
    copy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception, place: str
) -> None:
    before = names(copy)
    run_here(monkeypatch)

    def fail(*_: object) -> None:
        raise error

    if place in ("open_sealed", "kind"):  # also used for the index
        real = getattr(module, place)
        monkeypatch.setattr(module, place, lambda path: fail() if path.name.startswith("shard") else real(path))
    else:
        monkeypatch.setattr(module, place, fail)
    with pytest.raises(UserError, match=r"^3 files not checked, and kept: check the disk"):
        module.command(Verify(shards=copy, full=True, remove=True))
    assert "shard-000002.h5: it cannot be read (" in capsys.readouterr().err and names(copy) == before


def test_remove_locks_the_folder(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = []

    @contextlib.contextmanager
    def look() -> Iterator[None]:
        held.append(is_locked(copy))
        yield

    run_here(monkeypatch, look)
    flip(copy / "shard-000001.h5", 9000)
    assert list(verify(Verify(shards=copy))) == ["shard-000001.h5"] and held == [False] * 3
    assert list(verify(Verify(shards=copy, remove=True))) == ["shard-000001.h5"] and held[3:] == [True] * 3
    assert not (copy / "shard-000001.h5").exists() and not is_locked(copy)


def test_remove_creates_no_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there are no shards"):
        verify(Verify(shards=tmp_path / "none", remove=True))
    assert not (tmp_path / "none").exists()


def test_shard_found_intact_by_the_second_check_is_kept(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = copy / "shard-000001.h5"

    @contextlib.contextmanager
    def damaged() -> Iterator[None]:
        flip(path, 9000)
        yield
        flip(path, 9000)

    run_here(monkeypatch, damaged)
    (state, (problem,)) = verify(Verify(shards=copy, remove=True))[path.name]
    assert state == "unchecked" and problem.endswith("a second check on this machine found no problem")
    assert check_shard(path, full=False) == []


def test_shards_of_another_version_are_named_and_kept(
    command: Run, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gdt.pipeline.shards.seal.SCHEMA", SCHEMA + 1)
    with changed(copy / "shard-000001.h5", hidden=True):
        pass
    (copy / "shard-000002.h5").write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(5000))
    before = names(copy)
    done = command("verify", "--shards", copy, "--remove")
    assert done.returncode == 2 and names(copy) == before
    assert "shard-000001.h5: it was made by another version: it has schema 3" in done.stderr
    assert "error: 2 files made by another version: rebuild the shards in another folder" in done.stderr


def test_stray_shard_is_kept(command: Run, copy: Path, synthetic: Path) -> None:
    with changed(copy / "shard-000001.h5", hidden=True) as file:
        file["video/label"][3] = b"another class"
    done = command("verify", "--shards", copy, "--remove")
    assert done.returncode == 2 and "it is not the shard that the index was made from" in done.stderr
    assert "remove" not in done.stderr and "rebuilds the index" in done.stderr
    assert run(Preprocess("synthetic", synthetic, copy, videos_per_shard=16)).shards_made == 0
    assert command("verify", "--shards", copy).returncode == 0


def test_printed_advice_works(copy: Path) -> None:
    folder = copy.rename(copy.with_name("it's a folder"))
    path = folder / "shard-000001.h5"
    with changed(path, hidden=True) as file:  # found only by decoding
        offset = file["frames/offset"][:]
        file["frames/jpeg"][offset[7] + 2 : offset[7] + 30] = np.zeros(28, np.uint8)
    with changed(folder / "index.h5", hidden=True) as file:
        file["shard/seal"][1] = check_seal(path).own
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    verifying = [sys.executable, "-m", "gdt", "verify", "--shards", folder, "--full"]
    done = subprocess.run(verifying, capture_output=True, text=True, env=environment)
    assert done.returncode == 2 and "cannot be decoded" in done.stderr and "object at" not in done.stderr
    assert "then the same preprocessing command as before rebuilds them" in done.stderr
    advice = re.search(r"`\S*gdt (.*)`", done.stderr)[1]
    assert shlex.split(advice) == ["verify", "--shards", str(folder), "--full", "--remove"]
    done = subprocess.run(
        f"{sys.executable} -m gdt {advice}", shell=True, capture_output=True, text=True, env=environment
    )
    assert done.returncode == 2 and "damaged and removed: the same" in done.stderr and not path.exists()


def test_non_files_are_named_and_the_rest_checked(command: Run, copy: Path) -> None:
    (copy / "shard-000005.h5").mkdir()
    (copy / "shard-000007.h5").symlink_to("nowhere")
    os.mkfifo(copy / "shard-000008.h5")
    flip(copy / "shard-000001.h5", 9000)
    before = names(copy)
    done = command("verify", "--shards", copy, "--remove")
    assert done.returncode == 2 and "Traceback" not in done.stderr
    for number, what in ((5, "a folder"), (7, "a broken link"), (8, "a FIFO")):
        assert f"shard-00000{number}.h5: it is {what}, not a file" in done.stderr
    assert "shard-000001.h5: frame" in done.stderr and "3 files not regular: " in done.stderr
    assert sorted([*names(copy), "shard-000001.h5"]) == before


def test_missing_shard_is_reported_without_remove(command: Run, copy: Path) -> None:
    (copy / "shard-000001.h5").unlink()
    done = command("verify", "--shards", copy)
    message = "error: 1 file missing: the same preprocessing command as before rebuilds what is missing\n"
    assert done.returncode == 2 and done.stderr.endswith(message) and "remove" not in done.stderr


@pytest.mark.parametrize("error", [system(errno.EIO), MemoryError(), None], ids=repr)
def test_index_that_cannot_be_checked_is_kept(
    copy: Path, monkeypatch: pytest.MonkeyPatch, error: Exception | None
) -> None:
    run_here(monkeypatch)

    def fail(*_: object) -> None:
        raise error

    if error:
        monkeypatch.setattr(module, "gather", fail)
    else:
        real = module.open_sealed
        gone = copy / "gone"
        monkeypatch.setattr(module, "open_sealed", lambda path: real(gone if path.name == "index.h5" else path))
    before = names(copy)
    ((state, (problem,)),) = verify(Verify(shards=copy, remove=True)).values()
    assert problem.startswith("it cannot be compared with the shards (" if error else "it cannot be read (")
    assert state == "unchecked" and names(copy) == before


@pytest.mark.parametrize("damaged", [False, True])
def test_unwritable_output_is_one_sentence(copy: Path, damaged: bool) -> None:
    if damaged:
        (copy / "index.h5").unlink()
    with locked(copy), Path("/dev/full").open("w") as full:  # during a run there is always something to print
        if damaged:
            flip(copy / "shard-000001.h5", 9000)
        done = subprocess.run(
            [sys.executable, "-m", "gdt", "verify", "--shards", copy, "--workers", "1"], stdout=full,
            stderr=subprocess.PIPE, text=True, cwd=ROOT, env=os.environ | {"PYTHONUNBUFFERED": ""},
        )  # fmt: skip
    assert done.returncode == 2 and done.stderr.count("error: ") == 1 and "Traceback" not in done.stderr
    assert ("1 file damaged" if damaged else "error: No space left on device") in done.stderr
    assert "Exception ignored" not in done.stderr
