"""Many damaged files: every one is kept or rejected with a reason, and nothing else happens."""

import os
from pathlib import Path

import numpy as np
import pytest

from gdt.preprocess.ffmpeg import Extraction
from gdt.preprocess.videos import ListedVideo
from tests.conftest import REAL
from tests.preprocess.intact import rejected_of
from tests.preprocess.media import made, shard

CONTAINERS = {
    "mp4": ["-movflags", "+faststart"], "mkv": [], "ts": [], "avi": ["-c:v", "mpeg4", "-c:a", "libmp3lame"],
    "webm": ["-c:v", "libvpx"], "flv": ["-c:a", "aac"], "mpg": [], "wmv": [], "ogv": [],
    "mov": ["-c:v", "mjpeg", "-c:a", "pcm_s16le"], "3gp": ["-s", "128x96", "-c:v", "h263", "-c:a", "aac"],
}  # fmt: skip
REAL_FILES = [
    "clips/h265_10bits.mp4", "clips/sample_sef_slow_motion.mp4", "clips/sample_shorter_audio.mp4",
    "clips/te_s_t__video_____.flv", "grid/bbas3a.mpg",
]  # fmt: skip
SETTINGS = Extraction(short_side=32, max_hours=0.001)
"""At most 3.6 s: corrupted time stamps make a file long."""
SEED, COUNT = map(int, os.environ.get("GDT_FUZZ", "1,50").split(","))
"""Seed and number of files: GDT_FUZZ=7,5000 tests 5000 others."""
INTACT = 10
"""Every INTACT-th file is not damaged."""


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Small files of every container, with and without sound, and real ones if available."""
    folder = tmp_path_factory.mktemp("originals")
    paths = [folder / f"made.{suffix}" for suffix in CONTAINERS]
    picture = "testsrc=s=64x48:r=25:d=1.4"
    for path, options in zip(paths, CONTAINERS.values(), strict=True):
        made(path, picture, "sine=d=1.4:r=44100", "-g", 10, *options)
    mute = made(folder / "mute.mp4", picture)
    return [*paths, mute, *(path for path in (REAL / name for name in REAL_FILES) if path.is_file())]


def damaged(data: bytes, random: np.random.Generator) -> bytes:
    """Flip bytes; remove, repeat, zero or overwrite a piece; truncate: one to three of them."""
    harmed = np.frombuffer(data, np.uint8).copy()
    for _ in range(random.integers(1, 4)):
        if not (n := len(harmed)):
            break
        begin = int(random.integers(0, max(1, n // random.choice([1, 1, 20]))))  # often in headers
        end = min(n, begin + int(random.integers(1, max(2, n // 10))))
        match random.integers(0, 6):
            case 0:
                at = random.integers(0, n, random.integers(1, 201))
                harmed[at] = random.integers(0, 256, len(at))
            case 1:
                harmed[begin : begin + 8] ^= np.uint8(1 << random.integers(0, 8))
            case 2:
                harmed = np.delete(harmed, slice(begin, end))
            case 3:
                harmed = np.insert(harmed, end, harmed[begin:end])
            case 4:
                harmed[begin:end] = random.choice([0, 255])
            case 5:
                harmed = harmed[: max(1, begin)]
    return harmed.tobytes()


@pytest.mark.slow
def test_damaged_files_are_kept_or_rejected_with_a_reason(originals: list[Path], tmp_path: Path) -> None:
    left_out, random = 0, np.random.default_rng(SEED)
    for first in range(0, COUNT, 50):
        videos = []
        for number in range(first, min(first + 50, COUNT)):
            original = originals[random.integers(len(originals))]
            path = tmp_path / f"{number}-{original.name}"
            data = original.read_bytes()
            path.write_bytes(damaged(data, random) if number % INTACT else data)
            videos.append(ListedVideo(path.name, path))
        with shard(tmp_path, videos, SETTINGS) as file:
            notes = dict(zip(file["video/id"].asstr()[:], file["video/note"].asstr()[:], strict=True))
            count = np.diff(file["video/frame"][:])
            assert count.min() >= 30 and count.max() <= 30 * 3.6
            assert np.isfinite(file["audio/logmel"][:]).all()
        rejected = rejected_of(tmp_path / "shard-000000.h5")
        assert all(row["reason"].strip() for row in rejected)
        assert sorted([*notes, *(row["id"] for row in rejected)]) == sorted(video.id for video in videos)
        assert [notes.get(video.id) for video in videos[::INTACT]] == [""] * len(videos[::INTACT])
        left_out += len(rejected)
        for video in videos:
            video.path.unlink()
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]  # no scratch folder
    assert COUNT / 5 < left_out < COUNT * 4 / 5  # the damage is neither always harmless nor always fatal
