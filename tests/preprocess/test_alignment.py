"""Sound stays aligned with the video whatever its time stamps do: every flash has its click within one frame."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from gdt.preprocess import decode
from gdt.preprocess.clock import put_on_clock
from gdt.preprocess.decode import Extracted
from gdt.preprocess.ffmpeg import Extraction, decode_command
from gdt.preprocess.process import run
from gdt.preprocess.videos import ListedVideo
from tests.conftest import few
from tests.preprocess.media import FRAME, assert_events, encode, events, group, kept, made, seconds, shard, target, tone

GAPS = (0.01, 0.02, 0.04, 0.08, 0.12)


def flashes(length: float) -> str:
    """A video with one white frame every second."""
    return f"color=black:s=32x32:r=30:d={length},geq=lum='if(eq(mod(N,30),0)*gt(N,0),235,16)':cb=128:cr=128"


def clicking(stamp: str, length: float, rate: int = 48_000) -> str:
    """A sound with a click of 30 ms at each second of `stamp`, an expression of {t}."""
    at = stamp.format(t="t")
    click = f"lt(mod({at},1),0.03)*gt({at},0.5)*0.9*sin(2*PI*1000*mod({at},1)+1)"
    return f"aevalsrc='{click}':s={rate}:d={length}"


def stamped(stamp: str, frame: int) -> str:
    """A filter that stamps frames of `frame` samples."""
    return f"asetnsamples=n={frame}:p=0,asetpts='({stamp.format(t='T')})/TB'"


def clicks(stamp: str, length: float, rate: int = 48_000) -> str:
    """A sound that clicks by its own stamps."""
    return f"{clicking(stamp, length, rate)},{stamped(stamp, 480)}"


def jumping(sizes: Sequence[float]) -> str:
    """Stamps that jump by these seconds, one jump per second, between two flashes."""
    jumps = [f"{size}*gte({{t}},{k + 0.5 - sum(sizes[:k]):.4f})" for k, size in enumerate(sizes)]
    return "+".join(["{t}", *jumps])


# ------------------------------------------------------------------------------------------------------ files with gaps

CONTAINERS = [
    # AVI and unfragmented PCM in MOV have no time stamps that could jump
    ("mp4", 44_100, "aac"), ("mp4", 8_000, "aac"), ("mov", 96_000, "aac"),
    ("mov", 22_050, "pcm_s16be -bf 0 -movflags +frag_keyframe+empty_moov+default_base_moof -g 15"),
    ("mkv", 96_000, "pcm_s16le"), ("mkv", 12_000, "flac"),
    ("nut", 12_000, "pcm_s16le"), ("webm", 48_000, "libopus -c:v libvpx"), ("flv", 44_100, "libmp3lame"),
    ("ts", 48_000, "aac -pes_payload_size 0"),
    ("mpg", 44_100, "mp2"), ("vob", 48_000, "ac3"), ("wmv", 44_100, "wmav2"),
    ("ogv", 48_000, "libvorbis -c:v libtheora -page_duration 20000"),
]  # fmt: skip


@pytest.mark.parametrize(("suffix", "rate", "codec"), few(CONTAINERS, 3))
def test_gaps_are_filled_in_every_container(tmp_path: Path, suffix: str, rate: int, codec: str) -> None:
    count = len(GAPS)
    sound = clicks(jumping(GAPS), count + 0.5 - sum(GAPS), rate)
    path = made(tmp_path / f"gaps.{suffix}", flashes(count + 0.5), sound, "-b:a", "64k", "-c:a", *codec.split())
    taken = kept(path, tmp_path)
    assert_events(taken, range(1, count + 1))
    assert abs(seconds(taken) - count - 0.5) < 0.2  # codecs pad their last frame


@pytest.fixture(scope="module")
def picture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """4.5 s with flashes."""
    return made(tmp_path_factory.mktemp("flashes") / "flashes.mkv", flashes(4.5))


def muxed(path: Path, picture: Path, sound: str, *options: object) -> Path:
    """A file of an encoded video and a sound."""
    return made(path, "", sound, "-i", picture, "-map", "1:v", "-map", "0:a", "-c:v", "copy", *options)


def test_a_group_gives_the_same_bytes_as_single_files(
    tmp_path: Path, picture: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = (0.04, 0.095, 0.0)
    sounds = [clicks(jumping((size,) * 4), 4.5 - 4 * size) for size in sizes]
    paths = [muxed(tmp_path / f"{k}.mp4", picture, sound) for k, sound in enumerate(sounds)]
    single = [kept(path, tmp_path) for path in paths]
    monkeypatch.delattr(decode, "_extract")  # they are decoded together
    for one, other in zip(group(tmp_path, *paths), single, strict=True):
        assert isinstance(one, Extracted)
        assert_events(one, range(1, 5))
        assert one.jpeg.read_bytes() == other.jpeg.read_bytes()
        assert np.array_equal(one.waveform[:], other.waveform[:])


def joined(path: Path, parts: Sequence[tuple[str, str]], *options: object) -> Path:
    """A transport stream of videos and sounds, 4 s each, one after the other."""
    data = b""
    for k, (picture, sound) in enumerate(parts):
        clock = ("-muxdelay", 0, "-muxpreload", 0, "-output_ts_offset", 1 + 4 * k)
        data += made(path.with_suffix(f".{k}.ts"), picture, sound, *options, *clock).read_bytes()
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    ("suffix", "codecs", "change", "sounds"),
    few([
        ("ts", ("-c:v", "mpeg2video", "-c:a", "ac3"), "scale=96:64", [(48, "stereo"), (44.1, "stereo"), (32, "mono")]),
        ("mkv", ("-c:v", "libx264", "-c:a", "mp2"), "format=yuv422p", [(48, "mono")] * 3),
    ]),
)  # fmt: skip
def test_formats_may_change_in_the_file(
    tmp_path: Path, suffix: str, codecs: tuple[str, ...], change: str, sounds: list[tuple[float, str]]
) -> None:
    """ffmpeg rebuilds its filters there. The sound of each part is 60 ms shorter than its video."""
    pictures = [flashes(4), f"{flashes(4)},{change}", flashes(4)]
    parts = [
        (f"{picture},setsar=1", f"{clicks('{t}', 3.94, round(1000 * rate))},aformat=cl={layout}")
        for picture, (rate, layout) in zip(pictures, sounds, strict=True)
    ]
    path = joined(tmp_path / "both.ts", parts, *codecs)
    if suffix == "mkv":
        path = encode(tmp_path / "both.mkv", "-i", path, "-c", "copy")
    for stretches, count, expected in (
        ((), 360, [1, 2, 3, 5, 6, 7, 9, 10, 11]),
        (((0.5, 1.5), (2.8, 5.2), (7.5, 9.5)), 162, [0.5, 1.2, 3.2, 4.9]),
    ):
        taken = kept(ListedVideo("parts", path, stretches=stretches), tmp_path)
        assert len(taken.sizes) == count and taken.note == ""
        assert np.abs(events(taken)[0] - expected).max() < 1e-6
        assert_events(taken, expected)


# -------------------------------------------------------------------------------------------------------- wrong stamps


@pytest.fixture(scope="module")
def tags(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """9.5 s with flashes and clicks in an FLV, which stores a stamp per packet."""
    sound = clicking("{t}", 9.5, 44_100)
    return made(tmp_path_factory.mktemp("tags") / "tags.flv", flashes(9.5), sound, "-c:a", "libmp3lame")


def moved(source: Path, path: Path, seconds: float, begin: float, end: float = 1e6) -> Path:
    """An FLV whose sound stamps are `seconds` later from `begin` to `end`; one tag if these are equal."""
    data = bytearray(source.read_bytes())
    at, done = 13, False
    while at < len(data):
        stamp = int.from_bytes(data[at + 4 : at + 7], "big") | data[at + 7] << 24
        if data[at] == 8 and begin <= stamp / 1000 and (stamp / 1000 < end or not done):
            later = stamp + round(1000 * seconds)
            data[at + 4 : at + 8] = (later & 0xFFFFFF).to_bytes(3, "big") + bytes([later >> 24])
            done = True
        at += 11 + int.from_bytes(data[at + 1 : at + 4], "big") + 4
    assert done
    path.write_bytes(data)
    return path


def test_single_wrong_stamp_changes_nothing_in_a_segment(tmp_path: Path, tags: Path) -> None:
    path = moved(tags, tmp_path / "wrong.flv", 50, 4.5, 4.5)
    taken = [kept(ListedVideo("part", file, segment=(1.5, 6.5)), tmp_path) for file in (tags, path)]
    assert taken[0].waveform[:].tolist() == taken[1].waveform[:].tolist()
    assert_events(taken[1], 0.5 + np.arange(5))
    assert abs(len(taken[1].sizes) - 150) <= 1 and abs(seconds(taken[1]) - 5) < 1e-3


@pytest.mark.parametrize("wrong", [3, 50])
def test_lasting_late_stamps_make_a_gap_up_to_the_limit(tmp_path: Path, tags: Path, wrong: float) -> None:
    path = moved(tags, tmp_path / "later.flv", wrong, 4.5)
    taken = kept(path, tmp_path, Extraction(max_hours=10 / 3600))
    flash, click = events(taken)
    expected = [1, 2, 3, 4, 8, 9] if wrong == 3 else [1, 2, 3, 4]
    assert len(flash) == 9 and len(click) == len(expected)
    assert np.abs(click - expected).max() < FRAME and seconds(taken) <= 10


def test_sound_and_video_are_cut_at_the_limit_and_a_note_says_so(tmp_path: Path, tags: Path) -> None:
    """Beside an error, and of stretches."""
    limit, cut = Extraction(max_hours=3.3 / 3600), "cut at 3.3 s (--max-hours)"
    taken = kept(tags, tmp_path, limit)
    assert (seconds(taken), len(taken.sizes), taken.note) == (3.3, 99, cut)
    damaged = tmp_path / "damaged.flv"
    content = bytearray(tags.read_bytes())
    content[len(content) // 5 : len(content) // 5 + 200] = bytes(200)
    damaged.write_bytes(content)
    first, *_, last = kept(damaged, tmp_path, limit).note.split("; ")
    assert first != last == cut
    for end, note in ((3.0, ""), (6.0, cut)):
        taken = kept(ListedVideo("x", tags, stretches=[(0.0, 1.0), (2.0, end)]), tmp_path, limit)
        assert taken.note == note


# ----------------------------------------------------------------------------------------------------- drift and jitter


@pytest.mark.parametrize("drift", few([-0.01, 0.02]))
def test_drifting_sound_stays_aligned(tmp_path: Path, drift: float) -> None:
    sound = clicks(f"{{t}}*{1 + drift}", 12.5 / (1 + drift))
    assert_events(kept(made(tmp_path / "drift.mp4", flashes(12.5), sound), tmp_path), range(1, 13))


def breaks(taken: Extracted) -> int:
    """Number of breaks in a tone of 440 Hz, of which each sample follows from the two before it."""
    wave = taken.waveform[2400:-2400].astype(float)
    rest = wave[2:] - 2 * np.cos(2 * np.pi * 440 / 24_000) * wave[1:-1] + wave[:-2]
    return np.count_nonzero(np.diff(np.flatnonzero(np.abs(rest) > 200), prepend=-2400) >= 240)


JITTERS = {
    "each for itself": "2*random(0)-1",
    "three at a time": "mod(3000-floor({t}*46.875+0.5),3)-1",
    "one in twenty late": "2*lt(random(0),0.05)",
}


@pytest.mark.parametrize(("suffix", "milliseconds"), few([("mkv", 15), ("flv", 30)]))
@pytest.mark.parametrize("kind", few(JITTERS))
def test_jitter_leaves_the_sound_unbroken(
    tmp_path: Path, picture: Path, suffix: str, kind: str, milliseconds: int
) -> None:
    # the first stamp is exact: ffmpeg counts from it
    jitter = stamped(f"{{t}}+gt({{t}},0)*{milliseconds / 1000}*({JITTERS[kind]})", 1024)
    codec = ("-c:a", "pcm_s16le" if suffix == "mkv" else "libmp3lame", "-ar", 48_000 if suffix == "mkv" else 44_100)
    tone = muxed(tmp_path / f"tone.{suffix}", picture, f"sine=440:d=4.5:r=48000,{jitter}", *codec)
    assert breaks(kept(tone, tmp_path)) <= 3
    path = muxed(tmp_path / f"clicks.{suffix}", picture, f"{clicking('{t}', 4.5)},{jitter}", *codec)
    assert_events(kept(path, tmp_path), range(1, 5))


def test_constant_stamps_do_not_fill_the_disk(tmp_path: Path, picture: Path) -> None:
    sound = f"sine=440:d=20:r=48000,{stamped('0.001*floor({t})', 1024)}"
    path = muxed(tmp_path / "still.mkv", picture, sound, "-c:a", "libopus")
    files = target(tmp_path, path)
    settings = Extraction(max_hours=2 / 3600)
    run(decode_command([files], settings), settings.limits, files.log)
    assert files.pcm.stat().st_size <= 2 * 2 * 2 * 24_000
    assert len(kept(path, tmp_path, settings).sizes) == 60


# ----------------------------------------------------------------------------------------------------- stamps to pieces

FRAME_SAMPLES = 512


def regular(count: int) -> np.ndarray:
    """Stamps of frames of 21 ms without gaps."""
    return np.arange(count) * FRAME_SAMPLES


def on_clock(folder: Path, wave: np.ndarray, pts: np.ndarray) -> np.ndarray:
    """The samples after `put_on_clock`, given the stamps of frames of FRAME_SAMPLES."""
    pcm, stamps = folder / "sound.pcm", folder / "sound.stamps"
    wave.astype(np.int16).tofile(pcm)
    rows = [f"0, {-(10**12) + k}, {at}, {FRAME_SAMPLES}, {2 * FRAME_SAMPLES}, 0x1234abcd" for k, at in enumerate(pts)]
    stamps.write_text("\n".join(["#tb 0: 1/24000", *rows, ""]))
    put_on_clock(pcm, stamps, 10**6)
    assert sorted(path.name for path in folder.iterdir()) == ["sound.pcm", "sound.stamps"]
    return np.fromfile(pcm, np.int16)


def slowly(wave: np.ndarray, pts: np.ndarray) -> list[int]:
    """Oracle: each sample at its own time, unless that has passed."""
    placed: list[int] = []
    for sample, value in enumerate(wave.tolist()):
        at = int(pts[sample // FRAME_SAMPLES]) + sample % FRAME_SAMPLES
        if at >= len(placed):
            placed += [0] * (at - len(placed)) + [value]
    return placed


@pytest.mark.parametrize("first", [-(10**6), -700, 0, 700])
@pytest.mark.parametrize("gap", [-2048, -400, 0, 400, 100_000])
def test_samples_are_at_their_times_in_spite_of_gaps_and_repetitions(tmp_path: Path, first: int, gap: int) -> None:
    for count, begin in ((1, 0), (2, 1), (9, 1), (9, 8), (40, 20)):
        wave, stamps = 1 + np.arange(count * FRAME_SAMPLES), regular(count) + gap * (np.arange(count) >= begin)
        assert on_clock(tmp_path, wave, first + stamps).tolist() == slowly(wave, first + stamps)


@pytest.mark.parametrize("lasts", [1, 20, 30, 100])
@pytest.mark.parametrize("jump", [-1200, 1200, 500_000])
def test_lasting_jumps_are_gaps_and_short_ones_jitter(tmp_path: Path, lasts: int, jump: int) -> None:
    wave, k = np.ones(600 * FRAME_SAMPLES), np.arange(600)
    moved = on_clock(tmp_path, wave, regular(600) + jump * ((k >= 200) & (k < 200 + lasts)))
    assert (len(moved) != len(wave) or not moved.all()) == (lasts > 23)  # frames of 21 ms


@pytest.mark.filterwarnings("ignore:loadtxt")
@pytest.mark.parametrize("count", [0, 1, 10, 30])
def test_sound_and_stamps_may_end_too_early(tmp_path: Path, count: int) -> None:
    wave = np.arange(1, 10 * FRAME_SAMPLES - 99)
    assert np.array_equal(on_clock(tmp_path, wave, 100 + regular(count)), np.append(np.zeros(100 * bool(count)), wave))


@pytest.mark.parametrize(
    ("pictured", "heard", "note"),
    few([
        (2, 12, "its picture ends 10.0 s before its sound, whose rest is cut"),
        (6, 2, "its sound ends 4.0 s before its picture"), (2, 2.8, ""), (2.8, 2, ""),
    ], 2),
)  # fmt: skip
def test_ends_that_are_apart_are_noted_and_sound_after_the_last_frame_is_cut(
    tmp_path: Path, pictured: float, heard: float, note: str
) -> None:
    path = made(tmp_path / "apart.mkv", flashes(pictured), tone(heard), "-c:a", "flac")
    with shard(tmp_path, [ListedVideo("apart", path)], Extraction()) as file:
        assert file["video/note"].asstr()[0] == note and file["video/frame"][1] == round(30 * pictured)
        assert file["video/mel"][1] == round(100 * min(pictured, heard)) - 1
