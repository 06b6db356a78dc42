"""One pass of ffmpeg over real and broken files."""

from __future__ import annotations

import io
import shutil
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pipeline.errors import UserError
from preprocess.ffmpeg import (
    Extracted,
    Extraction,
    Rejected,
    Target,
    extract_group,
    frame_sizes,
    groups,
    pixel_sums,
    require_ffmpeg,
)  # fmt: skip


def extract(video: Path, folder: Path, settings: Extraction = Extraction()) -> Extracted | Rejected:
    return extract_group([Target.within(folder / "out", video)], settings)[0]


def frames(taken: Extracted) -> list[np.ndarray]:
    data, ends = taken.jpeg.read_bytes(), np.cumsum(taken.sizes)
    starts = ends - taken.sizes
    return [np.asarray(Image.open(io.BytesIO(data[a:b]))) for a, b in zip(starts, ends, strict=True)]


# frames and seconds of sound, or the reason; measured once, checked by eye against ffprobe
CLIPS: dict[str, tuple[int, float] | str] = {
    "SAR-2by3.mp4": (60, 2.0), "awesome_movie.mov": (218, 7.6), "bbaf2n.mpg": (90, 3.0),
    "bbb_960x540_60fps_vp8.webm": (30, 1.0), "big_buck_bunny_small.mp4": (158, 5.3),
    "broken.mp4": "moov atom not found", "corrupted.mp4": (150, 0.0), "edit_list_positive_shift.mp4": (300, 10.0),
    "empty.flv": "Invalid data", "flipping_a_pancake.mkv": (310, 10.4), "h265_10bits.mp4": (30, 0.0),
    "nasa_13013.mp4": (390, 13.1), "sample_missing_stsd.mp4": (30, 0.0), "sample_sef_slow_motion.mp4": (63, 2.1),
    "sample_shorter_audio.mp4": (36, 0.8), "silent-black-10s.mp4": (300, 10.0), "te_s_t__video_____.flv": (55, 0.0),
    "test.avi": (198, 6.6), "trim_optimization_failure.mp4": (167, 5.6), "video_270.mov": "only 0.10 s",
    "weird_aspect.small.mpg": (44, 1.3),
}  # fmt: skip


def test_every_real_clip_ends_where_it_should(real: Path, tmp_path: Path) -> None:
    paths = sorted((real / "clips").iterdir())
    assert [path.name for path in paths] == sorted(CLIPS)
    for number, path in enumerate(paths):
        (tmp_path / str(number)).mkdir()
        taken, expected = extract(path, tmp_path / str(number)), CLIPS[path.name]
        if isinstance(expected, str):
            assert isinstance(taken, Rejected) and expected in str(taken), (path.name, taken)
        else:
            assert isinstance(taken, Extracted), (path.name, taken)
            assert len(taken.sizes) == expected[0], path.name
            assert abs(len(taken.waveform) / 24_000 - expected[1]) < 0.06, path.name
            assert min(taken.height, taken.width) == 160
            image = frames(taken)[0]
            assert image.shape == (taken.height, taken.width, 3)


@pytest.fixture(scope="module")
def flash_and_click(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """4 s of black with a white frame and a click at 1, 2 and 3 s."""
    path = tmp_path_factory.mktemp("flash") / "flash.mp4"
    flash = "color=black:s=320x240:r=30:d=4,geq=lum='if(eq(mod(N,30),0)*gt(N,0),235,16)':cb=128:cr=128"
    click = "aevalsrc='if(lt(mod(t,1),0.005)*gt(t,0.5),0.9*sin(2*PI*3000*t),0)':s=48000:d=4"
    subprocess.run(
        ["ffmpeg", "-v", "error", "-f", "lavfi", "-i", flash, "-f", "lavfi", "-i", click, "-c:v", "libx264",
         "-qp", "10", "-c:a", "aac", path],
        check=True,
    )  # fmt: skip
    return path


def events(taken: Extracted) -> tuple[np.ndarray, np.ndarray]:
    """Times of white frames and of clicks, seconds."""
    bright = [image.mean() for image in frames(taken)]
    loud = np.abs(taken.waveform.astype(float)) > 6000
    onsets = np.flatnonzero(loud & ~np.roll(np.convolve(loud, np.ones(2400), "full")[: len(loud)] > 0, 1))
    return np.flatnonzero(np.array(bright) > 128) / 30, onsets / 24_000


def test_flashes_and_clicks_stay_together_within_one_frame(flash_and_click: Path, tmp_path: Path) -> None:
    taken = extract(flash_and_click, tmp_path)
    assert isinstance(taken, Extracted)
    flash, click = events(taken)
    assert len(flash) == len(click) == 3
    assert np.abs(flash - [1, 2, 3]).max() <= 1 / 30
    assert np.abs(click - flash).max() <= 1 / 30


@pytest.mark.parametrize("shift", [0.5, -0.5])
def test_sound_that_starts_late_or_early_is_moved_on_the_clock(
    flash_and_click: Path, tmp_path: Path, shift: float
) -> None:
    moved = tmp_path / "moved.mkv"
    subprocess.run(
        ["ffmpeg", "-v", "error", "-i", flash_and_click, "-itsoffset", str(shift), "-i", flash_and_click,
         "-map", "0:v", "-map", "1:a", "-c", "copy", moved],
        check=True,
    )  # fmt: skip
    taken = extract(moved, tmp_path)
    assert isinstance(taken, Extracted)
    flash, click = events(taken)
    assert len(flash) == 3
    assert np.abs(click[:3] - flash - shift).max() <= 1 / 30


def test_a_group_gives_the_same_bytes_as_each_alone(synthetic: Path, tmp_path: Path) -> None:
    videos = sorted((synthetic / "train").rglob("*.mp4"))[:5]
    together = extract_group([Target.within(tmp_path / f"g{k}", v) for k, v in enumerate(videos)], Extraction())
    for k, (video, one) in enumerate(zip(videos, together, strict=True)):
        other = extract_group([Target.within(tmp_path / f"a{k}", video)], Extraction())[0]
        assert isinstance(one, Extracted) and isinstance(other, Extracted)
        assert one.jpeg.read_bytes() == other.jpeg.read_bytes()
        assert np.array_equal(one.waveform, other.waveform)


def test_one_broken_file_does_not_spoil_its_group(synthetic: Path, tmp_path: Path) -> None:
    good = sorted((synthetic / "train").rglob("*.mp4"))[:2]
    broken, empty = tmp_path / "broken.mp4", tmp_path / "empty.mp4"
    broken.write_bytes(good[0].read_bytes()[:2000])
    empty.touch()
    videos = [good[0], broken, empty, tmp_path / "gone.mp4", good[1]]
    results = extract_group([Target.within(tmp_path / str(k), v) for k, v in enumerate(videos)], Extraction())
    assert [isinstance(result, Extracted) for result in results] == [True, False, False, False, True]
    assert "ffmpeg cannot decode it" in str(results[1]) and str(results[2]) == "the file is empty"
    assert str(results[3]) == "the file does not exist"


@pytest.mark.parametrize("name", ['it\'s a "name".mp4', "-rf.mp4", "ünï cödé.mp4", "http:x.mp4", "a%03d[0].mp4"])
def test_strange_names_are_only_names(synthetic: Path, tmp_path: Path, name: str) -> None:
    video = tmp_path / name
    shutil.copy(next((synthetic / "train").rglob("*.mp4")), video)
    assert isinstance(extract(video, tmp_path), Extracted)


@pytest.mark.parametrize(
    "text",
    [
        "#EXTM3U\n#EXT-X-TARGETDURATION:3\n#EXTINF:3,\nhttp://127.0.0.1:9/x.ts\n",
        "#EXTM3U\n#EXT-X-TARGETDURATION:3\n#EXTINF:3,\nother.mp4\n#EXT-X-ENDLIST\n",
        "ffconcat version 1.0\nfile other.mp4\n",
    ],
)
def test_a_playlist_cannot_make_ffmpeg_open_anything_else(synthetic: Path, tmp_path: Path, text: str) -> None:
    shutil.copy(next((synthetic / "train").rglob("*.mp4")), tmp_path / "other.mp4")
    playlist = tmp_path / "list.mp4"
    playlist.write_text(text)
    taken = extract(playlist, tmp_path)
    assert isinstance(taken, Rejected)
    assert "Connection" not in str(taken)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_ffmpeg_makes_neither_a_short_video_nor_a_rejected_one(
    real: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    def interrupted(arguments: list[str], **options: object) -> subprocess.CompletedProcess[bytes]:
        process = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
        while not (target.jpeg.is_file() and target.jpeg.stat().st_size > 100_000):
            time.sleep(0.001)
        process.send_signal(number)
        _, stderr = process.communicate()
        return subprocess.CompletedProcess(arguments, process.returncode, b"", stderr)

    target = Target.within(tmp_path / "out", real / "clips" / "nasa_13013.mp4")
    monkeypatch.setattr("preprocess.ffmpeg.subprocess.run", interrupted)
    with pytest.raises(UserError, match="ffmpeg was stopped from outside"):
        extract_group([target], Extraction())


def test_sound_without_picture_is_rejected(tmp_path: Path) -> None:
    sound = tmp_path / "sound.mp4"
    subprocess.run(["ffmpeg", "-v", "error", "-f", "lavfi", "-i", "sine=d=2", "-c:a", "aac", sound], check=True)
    taken = extract(sound, tmp_path)
    assert isinstance(taken, Rejected) and str(taken) == "there is no video stream in it"


def test_a_file_that_takes_too_long_is_left_out(real: Path, tmp_path: Path) -> None:
    taken = extract(real / "clips" / "nasa_13013.mp4", tmp_path, Extraction(timeout=0.01))
    assert isinstance(taken, Rejected) and "did not finish within 0.01 s" in str(taken)


def test_frame_sizes_leave_out_a_cut_last_frame() -> None:
    jpeg = b"\xff\xd8abc\xff\xd9"
    assert frame_sizes(jpeg * 3).tolist() == [7, 7, 7]
    assert frame_sizes(jpeg * 2 + jpeg[:4]).tolist() == [7, 7]
    assert frame_sizes(b"").tolist() == []


def test_pixel_sums_are_exact(synthetic: Path, tmp_path: Path) -> None:
    taken = extract(next((synthetic / "train").rglob("*.mp4")), tmp_path)
    assert isinstance(taken, Extracted)
    chosen = np.stack(frames(taken)[::30]).reshape(-1, 3).astype(np.int64)
    expected = np.stack([np.full(3, len(chosen)), chosen.sum(0), (chosen**2).sum(0)], 1)
    assert np.array_equal(pixel_sums(taken.jpeg, taken.sizes, 30), expected)


def test_groups_are_bounded_in_number_and_bytes(tmp_path: Path) -> None:
    small, large = tmp_path / "small", tmp_path / "large"
    small.write_bytes(b"x" * 1000)
    large.write_bytes(b"x" * (5 << 20))
    sizes = [len(group) for group in groups([small] * 20 + [large, large, small])]
    assert sizes == [16, 4, 1, 1, 1]


def test_no_ffmpeg_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UserError, match="ffmpeg is not installed; install it with"):
        require_ffmpeg()
