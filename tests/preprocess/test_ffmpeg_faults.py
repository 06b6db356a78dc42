"""ffmpeg with broken files, faults of the machine, limits, and groups of files."""

import errno
import os
import shutil
import struct
import subprocess
import tempfile
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gdt.common.errors import UserError
from gdt.preprocess import process
from gdt.preprocess.decode import Extracted, Unread, pixel_sums
from gdt.preprocess.ffmpeg import Extraction
from gdt.preprocess.process import Failed, Limits, Rejected
from gdt.preprocess.videos import ListedVideo
from tests.conftest import few
from tests.preprocess.media import (
    Fake,
    assert_gone,
    clock,
    extract,
    frames,
    grey,
    group,
    kept,
    made,
    pair,
    reason,
    seconds,
    shard,
    shown_times,
    tone,
)
from tests.tamper import small_disk

# -------------------------------------------------------------------------------------------------- cut and lying files


@pytest.mark.parametrize(("suffix", "options"), few([("mp4", ["-movflags", "+faststart"]), ("mkv", []), ("webm", [])]))
def test_truncated_file_is_kept_up_to_its_end(tmp_path: Path, suffix: str, options: list[str]) -> None:
    whole = made(tmp_path / f"whole.{suffix}", "testsrc=s=160x120:r=30:d=4", tone(4), "-g", 15, *options)
    cut = tmp_path / f"cut.{suffix}"
    cut.write_bytes(whole.read_bytes()[: whole.stat().st_size * 6 // 10])
    taken = kept(cut, tmp_path)
    assert 45 <= len(taken.sizes) <= 105
    assert taken.note != ""
    notes = [one.note for one in pair(tmp_path, made(tmp_path / "plain.mkv", grey(60), tone(1.2)), cut)]
    assert notes == ["", taken.note]
    cut.write_bytes(whole.read_bytes()[: whole.stat().st_size // 10])
    assert reason(cut, tmp_path).startswith(("it is too short", "ffmpeg cannot decode it"))


@pytest.mark.parametrize("suffix", ["h264", "mkv"])
def test_file_without_declared_length_is_decoded(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"stream.{suffix}"
    container = {"mkv": "matroska", "h264": "h264"}[suffix]
    with path.open("wb") as file:  # through a pipe, which leaves the header without a length
        pipe = ["ffmpeg", "-v", "error", "-f", "lavfi", "-i", clock(2, 25), "-c:v", "libx264", "-f", container, "-"]
        subprocess.run(pipe, stdout=file, check=True)
    assert abs(len(kept(path, tmp_path).sizes) - 60) <= 1
    if suffix == "mkv":  # it may be an original
        taken = kept(ListedVideo("part", path, segment=(0.6, 1.6)), tmp_path)
        assert np.abs(shown_times(taken) - 0.6 - np.arange(30) / 30).max() < 0.07


def test_late_time_stamp_does_not_repeat_a_frame_for_an_hour(tmp_path: Path) -> None:
    late = clock(2, 10) + ",setpts='PTS+if(gte(N,19),3600/TB,0)'"
    path = made(tmp_path / "late.mkv", late, tone(2), "-fps_mode", "passthrough", "-bf", 0)
    taken = kept(path, tmp_path)
    assert len(taken.sizes) == 30 * 260
    assert taken.note == "cut at 260 s (10 s for each of its 20 frames)"
    assert abs(seconds(taken) - 2) < 0.06


@pytest.mark.parametrize("sound", few(["", "anoisesrc=d=0.5:r=24000,apad=whole_dur=1200"]))
def test_slides_are_not_cut_for_their_small_file(tmp_path: Path, sound: str) -> None:
    """Alone and among others; of sounds, packets count."""
    options = ["-c:a", "flac"] if sound else ["-g", 1200, "-crf", 40, "-tune", "stillimage"]
    slides = "color=gray:s=32x32:r=1:d=1200,format=yuv420p"
    path = made(tmp_path / ("quiet.flac" if sound else "slides.mp4"), "" if sound else slides, sound, *options)
    assert path.stat().st_size < 250 * 1100
    for taken in (kept(path, tmp_path), *pair(tmp_path, made(tmp_path / "plain.mkv", grey(60), tone(1.2)), path)[1:]):
        assert (seconds(taken) if sound else len(taken.sizes) / 30) == pytest.approx(1200, abs=1) and not taken.note


# ------------------------------------------------------------------------------------------------------- memory, limits


def test_frames_too_large_for_the_memory_are_rejected(tmp_path: Path) -> None:
    path = made(tmp_path / "huge.avi", grey(128, "yuvj420p"), "", "-c:v", "mjpeg")
    memory = Extraction(limits=Limits(ffmpeg_memory=0.5))
    assert len(kept(path, tmp_path, memory).sizes) == 36
    small, huge = (b"\xff\xc0\x00\x11\x08" + struct.pack(">HH", side, side) for side in (64, 16_000))
    assert path.read_bytes().count(small) == 36
    path.write_bytes(path.read_bytes().replace(small, huge))
    assert reason(path, tmp_path, memory).startswith("ffmpeg cannot decode it: ")


STOPPED = '$real "$@" & until [ "$(find {} -name frames.mjpeg -size +99k)" ]; do sleep 0.01; done; kill -{} $!; wait $!'
"""ffmpeg, and a signal to it in the middle of the video, after which it ends as if it were done."""


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (STOPPED.format("{}", "INT"), "ffmpeg was stopped from outside"),
        (STOPPED.format("{}", "TERM"), "ffmpeg was stopped from outside"),
        ("kill -TERM $$", "ffmpeg was stopped from outside"),
        ("echo 'ffmpeg: cannot execute' >&2; exit 126", "ffmpeg cannot be started"),
        ("ulimit -v 20000; exec $real", "ffmpeg cannot be started"),  # the dynamic linker ends with 127
    ],
)  # fmt: skip
def test_stopped_or_missing_ffmpeg_neither_shortens_nor_rejects_the_video(
    real: Path, tmp_path: Path, fake: Fake, script: str, message: str
) -> None:
    fake(script.replace("{}", str(tmp_path)))
    with pytest.raises(UserError, match=message):
        extract(real / "clips" / "nasa_13013.mp4", tmp_path)


SAYS_FULL = "echo '[out#0 @ 0x1] [error] Error writing trailer: No space left on device' >&2; exit 1"


MIXED = "printf '[info]     encoder : File ended prematurely\\n[info] Lavf59\\n' >&2"
"""Output of ffmpeg when one thread reports an error while another is in the middle of a line."""
UNREAD = "echo '[error] file:a.mp4: Input/output error' >&2; exit 1"
"""What ffmpeg also says of a truncated file of Matroska, which can be read."""


@pytest.mark.parametrize(
    "fault",
    [
        "kill -TERM $$", "kill -KILL $$", UNREAD, MIXED,
        "echo '[out#0 @ 0x1] [error] Error writing trailer: Stale file handle' >&2; exit 1",
    ],
)  # fmt: skip
def test_ffmpeg_runs_again_after_a_fault_that_may_pass(ticking: Path, tmp_path: Path, fake: Fake, fault: str) -> None:
    fake(f'[ -e {tmp_path}/once ] || {{ touch {tmp_path}/once; {fault}; }}; exec $real "$@"')
    taken = kept(ticking, tmp_path)
    assert len(taken.sizes) == 120 and taken.note == "" and (tmp_path / "once").exists()


def test_an_error_line_that_is_always_interrupted_is_noted(ticking: Path, tmp_path: Path, fake: Fake) -> None:
    fake(f'{MIXED}; exec $real "$@"')
    assert "File ended prematurely" in kept(ticking, tmp_path).note


def test_full_disk_message_is_checked(ticking: Path, tmp_path: Path, fake: Fake) -> None:
    fake(f'[ -e {tmp_path}/once ] && exec $real "$@"; touch {tmp_path}/once; {SAYS_FULL}')
    with pytest.raises(UserError, match="no space left on the disk of"):  # at once: it would be full again
        extract(ticking, tmp_path)
    with small_disk(tmp_path / "disk", "1m") as disk:
        for full in ("", f"head -c 2M /dev/zero > {disk}/full; "):  # the second cannot write its log
            fake(full + SAYS_FULL)
            with pytest.raises(UserError, match="no space left on the disk of"):
                extract(ticking, disk)


@pytest.mark.parametrize(
    "name",
    few([
        "x: No space left on device", 'it\'s a "name"', "a\n[fatal] b: No space left on device", "matches no streams",
        "\x01\x1f: Disk quota exceeded", "non monotonically increasing dts", "long " * 40 + ": Permission denied",
        "-rf", "ünï cödé 映画", "http:x", "a%03d[0]", "a\nb\\", "$(x);`y`",
    ], 3),
)  # fmt: skip
def test_any_file_name_is_accepted_and_not_mistaken_for_an_error(ticking: Path, tmp_path: Path, name: str) -> None:
    path = tmp_path / f"{name}.mp4"
    path.write_bytes(ticking.read_bytes()[:3000])
    message = reason(path, tmp_path)
    assert message.startswith("ffmpeg cannot decode it: ") and "space" not in message and "quota" not in message
    shutil.copy(ticking, path)
    taken = kept(path, tmp_path)
    assert len(taken.sizes) == 120 and taken.note == ""
    (tmp_path / name).mkdir()  # also as the folder of the shards
    assert len(kept(path, tmp_path / name).sizes) == 120


def test_a_reading_error_is_no_verdict_on_the_video(
    ticking: Path, tmp_path: Path, fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    for script in (UNREAD, "echo '[error] file:a.mp4: Operation not permitted' >&2; exit 255"):  # that of ffmpeg 7
        fake(script)
        assert isinstance(extract(ticking, tmp_path), Failed)

    start = Path.open

    def fail(path: Path, *arguments: Any, **options: Any) -> Any:
        if path == ticking:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return start(path, *arguments, **options)

    monkeypatch.setattr(Path, "open", fail)
    taken = extract(ticking, tmp_path)
    assert isinstance(taken, Unread) and str(taken).startswith("it cannot be read (Operation not permitted); ")


@pytest.mark.parametrize(
    ("program", "script", "said"),
    few([
        ("ffmpeg", "exec sleep 60", "0 s to decode 0 s"), ("ffprobe", "exec sleep 60", "0 s to decode 0 s"),
        ("ffmpeg", "echo out_time_us=2000000; while :; do :; done", "2 s to decode 2 s"),
        ("ffmpeg", "while true; do echo out_time_us=10000; sleep 0.05; done", "0 s to decode 0 s"),
    ], 3),
)  # fmt: skip
def test_stalled_ffmpeg_is_killed_and_the_video_rejected(
    ticking: Path, tmp_path: Path, fake: Fake, monkeypatch: pytest.MonkeyPatch, program: str, script: str, said: str
) -> None:
    monkeypatch.setattr(process, "_GRACE", 0.4)
    fake(f"echo $$ > {tmp_path}/pid; {script}", program)
    found = reason(ticking, tmp_path, Extraction(limits=Limits(timeout_factor=1)))
    assert found == f"ffmpeg took more than {said} of the video"
    assert_gone(tmp_path / "pid")


def test_time_limit_grows_with_the_output(
    ticking: Path, tmp_path: Path, fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "_GRACE", 2.0)
    fake('echo out_time_us=2000000; sleep 2.5; exec $real "$@"')
    assert len(kept(ticking, tmp_path, Extraction(limits=Limits(timeout_factor=50))).sizes) == 120


def test_flood_of_errors_neither_hangs_nor_takes_memory(ticking: Path, tmp_path: Path, fake: Fake) -> None:
    fake("echo '[h264 @ 0x1] [error] one of many' >&2; yes '[error] another' | head -c 50000000 >&2; exit 1")
    tracemalloc.start()
    try:
        assert reason(ticking, tmp_path) == "ffmpeg cannot decode it: one of many"
        assert tracemalloc.get_traced_memory()[1] < 10e6
    finally:
        tracemalloc.stop()
    log = next(tmp_path.rglob("*.log"))
    assert log.stat().st_size > 50_000_000
    log.unlink()


# -------------------------------------------------------------------------------------------------- groups, names, etc.


def test_broken_file_does_not_affect_its_group(synthetic: Path, tmp_path: Path, fake: Fake) -> None:
    fake('case "$*" in *crash*) kill -SEGV $$;; esac; exec $real "$@"')
    good = sorted((synthetic / "train").rglob("*.mp4"))[:2]
    crash = Path(shutil.copy(good[0], tmp_path / "crash.mp4"))
    broken, empty, gone = (tmp_path / f"{name}.mp4" for name in ("broken", "empty", "gone"))
    broken.write_bytes(good[0].read_bytes()[:2000])
    empty.touch()
    for bad in (
        {crash: "ffmpeg crashes on it (SIGSEGV)"},
        {broken: "ffmpeg cannot decode it", empty: "the file is empty", gone: "the file does not exist"},
    ):
        folder = Path(tempfile.mkdtemp(dir=tmp_path))
        first, *results, last = group(folder, good[0], *bad, good[1])
        assert all(isinstance(taken, Extracted) and len(taken.sizes) == 90 for taken in (first, last))
        assert all(isinstance(taken, Rejected) for taken in results)
        assert [str(taken).partition(":")[0] for taken in results] == [*bad.values()]


def test_variables_that_change_ffmpegs_messages_have_no_effect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AV_LOG_FORCE_COLOR", "1")
    monkeypatch.setenv("FFREPORT", f"file={tmp_path}/report.log")
    (tmp_path / "broken.mp4").write_bytes(bytes(range(256)))
    assert reason(tmp_path / "broken.mp4", tmp_path).startswith("ffmpeg cannot decode it: moov atom not found")
    assert not (tmp_path / "report.log").exists()


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("#EXTM3U\n#EXT-X-TARGETDURATION:3\n#EXTINF:3,\nhttp://127.0.0.1:9/x.ts\n", "hls"),
        ("ffconcat version 1.0\nfile other.mp4\n", "concat"), ("GIF89a@\0@\0", "gif"),
    ],
)  # fmt: skip
def test_a_format_that_is_not_accepted_is_named_and_a_playlist_opens_no_other_file(
    ticking: Path, tmp_path: Path, text: str, name: str
) -> None:
    shutil.copy(ticking, tmp_path / "other.mp4")
    (tmp_path / "list.mp4").write_text(text)
    expected = f"ffmpeg cannot decode it: files of the format {name} are not accepted"
    assert reason(tmp_path / "list.mp4", tmp_path) == expected


def test_bytes_that_are_not_counted_are_not_stored(ticking: Path, tmp_path: Path, fake: Fake) -> None:
    cut = "for last; do case $last in *.mjpeg) printf '\\xff\\xd8cut' >> $last;; esac; done"
    fake(f'$real "$@"; status=$?; {cut}; exit $status')
    videos = [ListedVideo(str(k), Path(shutil.copy(ticking, tmp_path / f"{k}.mp4"))) for k in range(2)]
    with shard(tmp_path, videos, Extraction()) as file:
        data, offset = file["frames/jpeg"][:], file["frames/offset"][:]
        assert len(data) == offset[-1] and file["video/frame"][:].tolist() == [0, 120, 240]
        assert all(data[start : start + 2].tobytes() == b"\xff\xd8" for start in offset[:-1])


def test_pixel_sums_are_exact(synthetic: Path, tmp_path: Path) -> None:
    taken = kept(next((synthetic / "train").rglob("*.mp4")), tmp_path)
    chosen = frames(taken)[::30].reshape(-1, 3).astype(np.int64)
    expected = np.stack([np.full(3, len(chosen)), chosen.sum(0), (chosen**2).sum(0)], 1)
    sums = pixel_sums(taken.jpeg, taken.sizes, 30)
    assert sums.dtype == np.int64 and np.array_equal(sums, expected)
