"""One pass of ffmpeg over real, generated and broken files."""

from __future__ import annotations

import errno
import io
import itertools
import os
import re
import shutil
import signal
import struct
import subprocess
import tempfile
import threading
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from PIL import Image

from gdt.common.errors import UserError
from gdt.common.folders import LocalFolder
from gdt.preprocess import extract as module
from gdt.preprocess import ffmpeg, process
from gdt.preprocess.datasets.listing import Video
from gdt.preprocess.extract import Extracted, Unread, extract_group, frame_sizes, groups, pixel_sums
from gdt.preprocess.ffmpeg import Extraction, Target
from gdt.preprocess.plan import ShardTask
from gdt.preprocess.process import Failed, Limits, Rejected
from gdt.preprocess.tools import probe
from gdt.preprocess.worker import make_shard
from tests.preprocess.intact import problems, rejected_of

Fake = Callable[[str], Path]
ENCODER = os.environ.get("GDT_TEST_ENCODER", "ffmpeg")
"""The ffmpeg that makes files; other versions may decode them, see test_tools.py."""


def encode(path: Path, *arguments: object) -> Path:
    subprocess.run([ENCODER, "-v", "error", *map(str, arguments), path], check=True, stdin=subprocess.DEVNULL)
    return path


def made(path: Path, picture: str = "", sound: str = "", *options: object) -> Path:
    """A file of video and sound from these sources of ffmpeg."""
    sources = [part for source in (picture, sound) if source for part in ("-f", "lavfi", "-i", source)]
    return encode(path, *sources, *options)


def clock(seconds: float, rate: int = 30, size: str = "64x64") -> str:
    """A video whose brightness encodes the time: see `shown_times`."""
    return f"color=black:s={size}:r={rate}:d={seconds},format=yuv420p,geq=lum='20+50*T':cb=128:cr=128"


def numbered(seconds: float, rate: int) -> str:
    """A video of up to 2744 frames whose grey levels encode their numbers: see `shown_numbers`."""
    digits = "24+16*if(lt(X,32),mod(N,14),if(lt(X,64),mod(floor(N/14),14),floor(N/196)))"
    return f"color=black:s=96x32:r={rate}:d={seconds},format=yuv420p,geq=lum='{digits}':cb=128:cr=128"


def tone(seconds: float = 2, hertz: int = 440) -> str:
    return f"sine={hertz}:d={seconds}:r=48000"


def grey(luma: int, pixels: str = "yuv420p", seconds: float = 1.2) -> str:
    middle = 512 if "10le" in pixels else 128
    return f"color=black:s=64x64:r=30:d={seconds},format={pixels},geq=lum={luma}:cb={middle}:cr={middle}"


def extract(source: Path | Video, folder: Path, settings: Extraction = Extraction()) -> Extracted | Rejected:
    video = source if isinstance(source, Video) else Video(source.name, source)
    return extract_group([Target.within(Path(tempfile.mkdtemp(dir=folder)) / "out", video)], settings)[0]


def kept(source: Path | Video, folder: Path, settings: Extraction = Extraction()) -> Extracted:
    taken = extract(source, folder, settings)
    assert isinstance(taken, Extracted), taken
    return taken


def reason(source: Path | Video, folder: Path, settings: Extraction = Extraction()) -> str:
    taken = extract(source, folder, settings)
    assert isinstance(taken, Rejected), taken
    return str(taken)


def frames(taken: Extracted) -> np.ndarray:
    """All frames, uint8 [n, height, width, 3]; checks their size."""
    data, ends = taken.jpeg.read_bytes(), np.cumsum(taken.sizes)
    starts = ends - taken.sizes
    images = np.stack([np.asarray(Image.open(io.BytesIO(data[a:b]))) for a, b in zip(starts, ends, strict=True)])
    assert images.shape == (len(taken.sizes), taken.height, taken.width, 3)
    return images


def seconds(taken: Extracted) -> float:
    return len(taken.waveform) / 24_000


def shown_times(taken: Extracted) -> np.ndarray:
    """The time that each frame of a `clock` shows."""
    return ((16 + frames(taken).mean((1, 2, 3)) * 219 / 255) - 20) / 50


def shown_numbers(taken: Extracted) -> np.ndarray:
    """The number in each frame of a `numbered` video."""
    levels = frames(taken).mean((1, 3)).reshape(-1, 3, 32)[:, :, 8:24].mean(2)
    numbers: np.ndarray = np.rint((16 + levels * 219 / 255 - 24) / 16).astype(int) @ [1, 14, 196]
    return numbers


def hertz_and_purity(taken: Extracted) -> tuple[float, float]:
    """Strongest frequency of the sound, and its fraction of the power."""
    wave = taken.waveform[:].astype(float)
    power = np.abs(np.fft.rfft(wave * np.hanning(len(wave)), 1 << 18)) ** 2
    peak, width = int(power.argmax()), int(8 * (1 << 18) / len(wave))
    return peak * 24_000 / (1 << 18), power[max(0, peak - width) : peak + width].sum() / power.sum()


# ---------------------------------------------------------------------------------------------------------- real files


@pytest.mark.parametrize(
    ("name", "count", "sound", "why"),
    [
        ("corrupted.mp4", 150, 0.0, "Invalid NAL unit size"), ("weird_aspect.small.mpg", 44, 1.3, "ac-tex damaged"),
        ("sample_missing_stsd.mp4", 30, 0.0, "its sound cannot be decoded"), ("sample_shorter_audio.mp4", 36, 0.8, ""),
        ("broken.mp4", 0, 0.0, "ffmpeg cannot decode it: moov atom not found"),
        ("empty.flv", 0, 0.0, "ffmpeg cannot decode it: "),
        ("video_270.mov", 0, 0.0, "only 0.10 s of it can be decoded, 1 s are needed"),
    ],
)  # fmt: skip
def test_real_clips_with_faults(real: Path, tmp_path: Path, name: str, count: int, sound: float, why: str) -> None:
    """The numbers of the others are in tests/golden."""
    taken = extract(real / "clips" / name, tmp_path)
    if isinstance(taken, Rejected):
        assert not count and str(taken).startswith(why)
    else:
        assert len(frames(taken)) == count and abs(seconds(taken) - sound) < 0.06
        assert taken.note.startswith(why) and bool(taken.note) == bool(why)


# ------------------------------------------------------------------------------------------------------------- picture


@pytest.mark.parametrize("rate", [10, 24, 60])
def test_frame_rates_become_30_on_the_same_clock(tmp_path: Path, rate: int) -> None:
    taken = kept(made(tmp_path / "clock.mp4", clock(2, rate), "", "-qp", "4"), tmp_path)
    assert abs(len(taken.sizes) - 60) <= 1
    assert np.abs(shown_times(taken) - np.arange(len(taken.sizes)) / 30).max() <= 1 / rate + 0.03


@pytest.mark.parametrize(
    ("rate", "suffix", "late"),
    [(24, "mp4", 1 / 60), (25, "mkv", 1 / 60), (50, "ts", 1 / 60), (60, "mp4", 1 / 60), (100, "avi", 0),
     (120, "mp4", 0), (144, "flv", 0.0005), (240, "mov", 0), (240, "mkv", 0.0005)],
)  # fmt: skip
def test_frames_are_those_of_their_times(tmp_path: Path, rate: int, suffix: str, late: float) -> None:
    """The last at or before the time; of videos up to 60 per second, the last within half an interval after it.

    `late` includes the rounding of stamps to milliseconds.
    """
    path = made(tmp_path / f"fast.{suffix}", numbered(1.5, rate), "", "-qp", 4, "-q:v", 2)
    asked = ["-v", "error", "-show_entries", "frame=pts_time", "-of", "csv=p=0", path]
    told = subprocess.run(["ffprobe", *asked], capture_output=True, text=True, check=True).stdout
    stamps = np.array([float(line.strip(",")) for line in told.split()])
    shown = shown_numbers(kept(path, tmp_path))
    times = np.arange(len(shown)) / 30 + late + 1e-6 - (late == 1 / 60) * 2e-6
    assert shown.tolist() == (np.searchsorted(stamps - stamps[0], times, side="right") - 1).tolist()


@pytest.mark.parametrize(("rate", "late"), [(30, 1 / 60), (60, 1 / 60), (120, 0.0005)])
def test_rate_is_that_of_the_frames(tmp_path: Path, rate: int, late: float) -> None:
    """Not of the container: where stamps of 1 ms jitter and no duration is declared, ffmpeg guesses 1000 per second."""
    jitter = f"settb=1/1000,setpts='max(PREV_OUTPTS+1,round(N*1000/{rate}+gt(N,0)*{240 / rate}*(2*random(0)-1)))'"
    options = ["-fps_mode", "passthrough", "-enc_time_base", "1/1000", "-bf", 0, "-qp", 4, "-c:a", "flac"]
    path = made(tmp_path / "jitter.mkv", f"{numbered(2, rate)},{jitter}", tone(), *options)
    asked = ["-v", "error", "-show_entries", "frame=pts_time:stream=r_frame_rate", "-of", "csv=p=0"]
    asked += ["-select_streams", "v", path]
    told = subprocess.run(["ffprobe", *asked], capture_output=True, text=True, check=True).stdout.split()
    assert told[-1] == "1000/1"
    stamps = np.array([float(line.strip(",")) for line in told[:-1]])
    taken = kept(path, tmp_path)
    times = np.arange(len(taken.sizes)) / 30 + late + 1e-6 - (late == 1 / 60) * 2e-6
    assert shown_numbers(taken).tolist() == (np.searchsorted(stamps, times, side="right") - 1).tolist()
    assert rate > 30 or shown_numbers(taken).tolist() == list(range(len(taken.sizes)))
    _, together = pair(tmp_path, made(tmp_path / "plain.mkv", grey(60), tone(1.2)), path)
    assert together.jpeg.read_bytes() == taken.jpeg.read_bytes()


def test_variable_frame_rate_keeps_the_clock(tmp_path: Path) -> None:
    variable = clock(2, 60) + ",select='lt(t,1)+not(mod(n,6))'"  # 60 per second, then 10
    taken = kept(made(tmp_path / "vfr.mkv", variable, "", "-fps_mode", "vfr", "-qp", "4"), tmp_path)
    assert abs(len(taken.sizes) - 57) <= 4  # the file does not declare the duration of the last frame
    assert np.abs(shown_times(taken) - np.arange(len(taken.sizes)) / 30).max() <= 0.1 + 0.03


MARKER = "color=black:s=128x64:r=30:d=1.2,drawbox=0:0:20:20:red:fill"
CORNERS = {0: (0, 0), 90: (0, -1), 180: (-1, -1), 270: (-1, 0)}
"""Position of the top left corner, by degrees clockwise."""


def turn(path: Path, degrees: int) -> None:
    """Write a rotation into the only track header of an MP4 file, as phones do."""
    data = path.read_bytes()
    at = data.index(b"tkhd") + 44
    a, b, c, d = {0: (1, 0, 0, 1), 90: (0, 1, -1, 0), 180: (-1, 0, 0, -1), 270: (0, -1, 1, 0)}[degrees]
    one = 1 << 16
    matrix = struct.pack(">9i", a * one, b * one, 0, c * one, d * one, 0, 0, 0, 1 << 30)
    assert data[at : at + 4] == struct.pack(">i", one)
    path.write_bytes(data[:at] + matrix + data[at + len(matrix) :])


@pytest.mark.parametrize("degrees", CORNERS)
def test_rotation_is_applied(tmp_path: Path, degrees: int) -> None:
    path = made(tmp_path / "turned.mp4", MARKER)
    turn(path, degrees)
    taken = kept(path, tmp_path)
    assert (taken.height, taken.width) == ((64, 128) if degrees % 180 == 0 else (128, 64))
    for y, x in CORNERS.values():
        red, green, _ = frames(taken)[0, 8 if y == 0 else -8, 8 if x == 0 else -8].astype(int)
        assert (red - green > 150) == ((y, x) == CORNERS[degrees])


HALVES = "color=black:s={}:r=30:d=1.2,drawbox=iw/2:0:iw:ih:white:fill{}"


@pytest.mark.parametrize(
    ("size", "aspect", "height", "width"),
    [
        ("640x360", "1", 160, 284), ("360x640", "1", 284, 160), ("320x240", "1/2", 240, 160), ("64x64", "2", 64, 128),
        ("120x96", "16/15", 96, 128), ("16x16", "1", 16, 16), ("32x1280", "1", 1280, 32), ("161x91", "1", 92, 162),
        ("333x777", "1", 374, 160), ("160x160", "400", 160, 16 * 160),
    ],
)  # fmt: skip
def test_pixels_become_square_sides_even_and_the_short_one_at_most_160(
    tmp_path: Path, size: str, aspect: str, height: int, width: int
) -> None:
    taken = kept(made(tmp_path / "shape.mp4", HALVES.format(size, f",setsar={aspect},format=yuv444p")), tmp_path)
    assert (taken.height, taken.width) == (height, width)
    columns = frames(taken)[-1].mean((0, 2))
    blurred = max(3, width // 64)
    assert columns[: width // 2 - blurred].max() < 30 and columns[width // 2 + blurred :].min() > 225


@pytest.mark.parametrize(
    ("pixels", "codec", "luma"),
    [
        ("yuv420p", "libx264", 126), ("yuv422p10le", "libx264", 504), ("yuvj420p", "mjpeg", 128), ("gray", "ffv1", 128),
    ],
)  # fmt: skip
def test_brightness_does_not_depend_on_bit_depth_and_range(tmp_path: Path, pixels: str, codec: str, luma: int) -> None:
    source = grey(luma, pixels) if pixels != "gray" else f"color=black:s=64x64:r=30:d=1.2,format=gray,geq=lum={luma}"
    path = made(tmp_path / "grey.mkv", source, "", "-c:v", codec)
    assert np.abs(frames(kept(path, tmp_path)).astype(int) - 128).max() <= 2


@pytest.mark.parametrize("matrix", ["bt709", "smpte170m", "bt2020nc"])
def test_colours_do_not_depend_on_the_matrix(tmp_path: Path, matrix: str) -> None:
    name = {"bt2020nc": "bt2020"}.get(matrix, matrix)
    source = f"color=0xd02040:s=64x64:r=30:d=1.2,format=gbrp,scale=out_color_matrix={name},format=yuv420p"
    path = made(tmp_path / "colour.mp4", source, "", "-colorspace", matrix)
    assert np.abs(frames(kept(path, tmp_path)).mean((0, 1, 2)) - [0xD0, 0x20, 0x40]).max() <= 6


needs_tonemap = pytest.mark.skipif(
    shutil.which("ffmpeg") is None or not ffmpeg.has_tonemap(), reason="this ffmpeg was built without zscale"
)
PQ_WHITE = 572
"""10-bit code of 203 cd/m2 in SMPTE 2084, white paper in HDR; without tone mapping it becomes grey 148."""


def hdr(path: Path, transfer: str, *tags: str) -> Path:
    """A patch of white paper in HDR."""
    return made(path, grey(PQ_WHITE, "yuv420p10le"), "", "-c:v", "libx264", "-color_trc", transfer, *tags)


BT2020 = ("-color_primaries", "bt2020", "-colorspace", "bt2020nc")


@needs_tonemap
def test_hdr_is_tone_mapped(tmp_path: Path) -> None:
    taken = kept(hdr(tmp_path / "pq.mkv", "smpte2084", *BT2020), tmp_path)
    pixels = frames(taken).astype(int)
    assert len(pixels) == 36 and taken.note == ""
    assert 180 < pixels.mean() < 235 and np.ptp(pixels) <= 6
    sdr = frames(kept(hdr(tmp_path / "sdr.mkv", "bt709", *BT2020), tmp_path))
    assert abs(sdr.mean() - 148) < 3


@needs_tonemap
@pytest.mark.parametrize("transfer", ["smpte2084", "arib-std-b67"])
def test_hdr_without_colour_space_is_kept_with_a_note(tmp_path: Path, transfer: str) -> None:
    taken = kept(hdr(tmp_path / "half.mkv", transfer), tmp_path)
    assert abs(frames(taken).mean() - 148) < 3
    assert taken.note.startswith("HDR without tone mapping: ") and "no path between colorspaces" in taken.note


def combing(taken: Extracted) -> float:
    """Mean difference between neighbouring lines, minus that between every second line."""
    rows = frames(taken)[5:-5, :, :, 1].astype(float)
    next_one, next_but_one = rows[:, 1:-1] - rows[:, :-2], rows[:, 2:] - rows[:, :-2]
    return float(np.abs(next_one).mean() - np.abs(next_but_one).mean())


@pytest.mark.parametrize(("first", "codec"), [("bottom", "libx264"), ("top", "mpeg2video")])
def test_interlaced_video_is_deinterlaced(tmp_path: Path, first: str, codec: str) -> None:
    bar = "color=black:s=160x120:r=60:d=1.5[a];color=white:s=20x120:r=60:d=1.5[b];[a][b]overlay=x=90*t:y=0"
    woven = f"{bar},tinterlace=interleave_{first}"
    codec_options = ["-c:v", codec, "-b:v", "4M"]
    interlaced = ["-flags", "+ilme+ildct", "-top", int(first == "top")]
    marked = made(tmp_path / "marked.mkv", f"{woven},setfield={first[0]}ff", "", *codec_options, *interlaced)
    unmarked = made(tmp_path / "unmarked.mkv", f"{woven},setfield=prog", "", *codec_options)
    taken = kept(marked, tmp_path)
    assert abs(len(taken.sizes) - 45) <= 1
    assert combing(kept(unmarked, tmp_path)) > 0.5  # the bar is combed without deinterlacing
    assert combing(taken) < combing(kept(unmarked, tmp_path)) / 10


def streams_of(note: str) -> list[int]:
    return [int(number) for number in re.findall(r"#(\d+) is used", note)]


@pytest.mark.parametrize(
    ("size", "default"),
    [
        ("320x240", []), ("320x240", ["v:0", "a:0"]), ("320x240", ["v:1", "a:1"]), ("320x240", ["v:0", "v:1", "a:1"]),
        ("2400x2400", ["v:1", "a:0", "a:1"]),
    ],
)  # fmt: skip
def test_streams_are_those_that_ffmpeg_takes(tmp_path: Path, size: str, default: list[str]) -> None:
    """More than 5 million pixels outweigh a default picture; the sound of most channels does not outweigh a default."""
    sources = [f"color=black:s={size}:r=5:d=1.2", "color=white:s=640x480:r=5:d=1.2", tone(1.2), tone(1.2, 1000)]
    inputs = [part for source in sources for part in ("-f", "lavfi", "-i", source)]
    maps = [part for k in range(4) for part in ("-map", k)]
    marked = [f"-disposition:{kind}:{k}" for kind in "va" for k in (0, 1)]
    flags = [part for name in marked for part in (name, "default" if name.split(":", 1)[1] in default else 0)]
    path = encode(tmp_path / "four.mkv", *inputs, *maps, *flags, "-preset", "ultrafast", "-c:a", "flac", "-ac:a:1", 2)
    alone = [ENCODER, "-nostdin", "-i", path, "-t", "0.1", "-f", "null", "-"]
    said = subprocess.run(alone, capture_output=True, text=True, check=True).stderr
    picture, sound = (int(number) for number in re.findall(r"Stream #0:(\d) -> #0:\d", said))
    taken = kept(path, tmp_path)
    assert streams_of(taken.note) == [picture, sound]
    assert (frames(taken).mean() > 128) == (picture == 1)
    assert abs(hertz_and_purity(taken)[0] - (440, 1000)[sound - 2]) < 2
    _, together = pair(tmp_path, made(tmp_path / "plain.mkv", grey(60), tone(1.2)), path)
    assert streams_of(together.note) == [picture, sound]


@pytest.mark.parametrize("silent", [False, True])
def test_picture_and_sound_are_of_one_program(tmp_path: Path, silent: bool) -> None:
    sources = [grey(60), grey(200).replace("64x64", "320x240"), tone(1.2, 440), tone(1.2, 1000)]
    inputs = [part for source in sources for part in ("-f", "lavfi", "-i", source)]
    maps = [part for k in range(4) for part in ("-map", k)]
    programs = ["-program", f"st=0:st=3{':st=2' * silent}", "-program", f"st=1{':st=2' * (not silent)}"]
    codecs = ["-c:v", "mpeg2video", "-c:a", "mp2", "-ac:a:1", 2]  # the other program's has more channels
    taken = kept(encode(tmp_path / "two.ts", *inputs, *maps, *codecs, *programs), tmp_path)
    assert (taken.height, taken.width) == (160, 214)
    assert (len(taken.waveform) == 0) == silent == ("2 audio streams (#none is used)" in taken.note)
    assert silent or abs(hertz_and_purity(taken)[0] - 440) < 2


COVER = ("-c:v", "mjpeg", "-disposition:v", "attached_pic")


@pytest.mark.parametrize(("picture", "options"), [("", ()), ("testsrc=s=64x64:r=25:d=0.04", COVER)])
def test_sound_without_video_or_with_a_cover_is_rejected(
    tmp_path: Path, picture: str, options: tuple[str, ...]
) -> None:
    assert reason(made(tmp_path / "song.mp4", picture, tone(), *options), tmp_path) == "there is no video stream in it"


def test_video_shorter_than_min_seconds_is_rejected(tmp_path: Path) -> None:
    short = made(tmp_path / "short.mp4", clock(0.9))
    assert reason(short, tmp_path) == "only 0.90 s of it can be decoded, 1 s are needed"
    assert len(kept(short, tmp_path, Extraction(min_seconds=0.9)).sizes) == 27


# --------------------------------------------------------------------------------------------------------------- sound

SOUNDS = [
    ("pcm_s24le", "mov", 11_025, 2), ("pcm_s16le", "mkv", 96_000, 8), ("aac", "mp4", 44_100, 6),
    ("aac", "mp4", 8_000, 1), ("libopus", "webm", 48_000, 1), ("libmp3lame", "avi", 44_100, 2),
    ("libvorbis", "mkv", 11_025, 1),
]  # fmt: skip
LAYOUTS = {1: "mono", 2: "stereo", 6: "5.1", 8: "7.1"}


def played(channels: list[str], rate: int = 48_000, length: float = 2) -> str:
    return f"aevalsrc='{'|'.join(channels)}':c={LAYOUTS[len(channels)]}:s={rate}:d={length}"


@pytest.mark.parametrize(("codec", "suffix", "rate", "channels"), SOUNDS)
def test_sound_keeps_pitch_and_length(tmp_path: Path, codec: str, suffix: str, rate: int, channels: int) -> None:
    source = played(["0.4*sin(2*PI*440*t)"] * channels, rate)
    picture = grey(126, seconds=2)
    drawn = {"webm": "libvpx", "avi": "mpeg4"}.get(suffix, "libx264")
    options = ["-c:v", drawn, "-c:a", codec, "-ar", rate]
    taken = kept(made(tmp_path / f"tone.{suffix}", picture, source, *options), tmp_path)
    hertz, purity = hertz_and_purity(taken)
    assert abs(hertz - 440) < 1 and purity > 0.97
    assert abs(seconds(taken) - 2) <= 0.05
    assert abs(len(taken.sizes) - 60) <= 1


@pytest.mark.parametrize(("channels", "one"), [(2, 0), (6, 2), (6, 5), (8, 7)])
def test_every_channel_is_mixed_in(tmp_path: Path, channels: int, one: int) -> None:
    source = played(["0.5*sin(2*PI*440*t)" if k == one else "0" for k in range(channels)])
    taken = kept(made(tmp_path / "one.mkv", clock(2), source, "-c:a", "pcm_s16le"), tmp_path)
    assert abs(hertz_and_purity(taken)[0] - 440) < 1
    assert np.abs(taken.waveform[:].astype(int)).max() > 1000


@pytest.mark.parametrize(("channel", "codec"), [(1, "libvorbis"), (4, "pcm_s16le")])
def test_channel_with_sound_is_used_where_the_mix_is_silent(tmp_path: Path, channel: int, codec: str) -> None:
    """The mix of opposite phases is silence, or the codec's noise, and has no subwoofer."""
    low = "0.4*sin(2*PI*60*t)"
    channels = [low, f"-{low}"] if channel == 1 else ["0", "0", "0", low, "0", "0"]
    taken = kept(made(tmp_path / "mute.mkv", clock(2), played(channels), "-c:a", codec), tmp_path)
    assert taken.note == f"its sound is channel {channel} alone, since the mix of all is silent"
    hertz, purity = hertz_and_purity(taken)
    assert abs(hertz - 60) < 1 and purity > 0.97 and abs(seconds(taken) - 2) < 0.05
    assert 0.3 < np.abs(taken.waveform[2400:-2400].astype(int)).max() / 32768 < 0.6
    assert sorted(file.name for file in taken.jpeg.parent.iterdir()) == ["frames.log", "frames.mjpeg", "sound.pcm"]


def test_soft_stereo_is_mixed(tmp_path: Path) -> None:
    source = played(["0.002*sin(2*PI*440*t)", "-0.0015*sin(2*PI*440*t)"])  # the mix has -72 dB
    taken = kept(made(tmp_path / "soft.mkv", clock(2), source, "-c:a", "pcm_s16le"), tmp_path)
    assert taken.note == "" and np.abs(taken.waveform[:].astype(int)).max() < 12


# --------------------------------------------------------------------------------------- picture and sound on one clock


@pytest.fixture(scope="module")
def flash_and_click(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """4 s of black with a white frame and a click at 1, 2 and 3 s."""
    flash = "color=black:s=320x240:r=30:d=4,geq=lum='if(eq(mod(N,30),0)*gt(N,0),235,16)':cb=128:cr=128"
    click = "aevalsrc='if(lt(mod(t,1),0.005)*gt(t,0.5),0.9*sin(2*PI*3000*t),0)':s=48000:d=4"
    path = tmp_path_factory.mktemp("flash") / "flash.mp4"
    return made(path, flash, click, "-c:v", "libx264", "-qp", "10", "-c:a", "aac")


FRAME = 1 / 30 + 1e-6


def events(taken: Extracted) -> tuple[np.ndarray, np.ndarray]:
    """Times of white frames and of clicks, seconds."""
    bright = frames(taken).mean((1, 2, 3)) > 128
    loud = np.abs(taken.waveform[:].astype(float)) > 6000
    onsets = np.flatnonzero(loud & ~np.roll(np.convolve(loud, np.ones(2400), "full")[: len(loud)] > 0, 1))
    return np.flatnonzero(bright) / 30, onsets / 24_000


def assert_events(taken: Extracted, flashes: list[float], clicks: list[float]) -> None:
    flash, click = events(taken)
    assert len(flash) == len(flashes) and np.abs(flash - flashes).max() < FRAME
    assert len(click) == len(clicks) and np.abs(click - clicks).max() < FRAME
    if len(flash) == len(click):
        assert np.ptp(click - flash) < FRAME


def shifted(source: Path, path: Path, picture: float, sound: float, *options: object) -> Path:
    inputs = ["-itsoffset", picture, "-i", source, "-itsoffset", sound, "-i", source]
    return encode(path, *inputs, "-map", "0:v", "-map", "1:a", "-c", "copy", *options)


@pytest.mark.parametrize(("shift", "suffix"), [(0.5, "mkv"), (0.5, "mp4"), (-0.5, "mp4")])
def test_late_or_early_sound_is_moved_on_the_clock(
    flash_and_click: Path, tmp_path: Path, shift: float, suffix: str
) -> None:
    moved = shifted(flash_and_click, tmp_path / f"moved.{suffix}", 0, shift, "-avoid_negative_ts", "make_zero")
    flash, click = events(kept(moved, tmp_path))
    assert len(flash) == len(click) == 3
    assert np.abs(click - flash - shift).max() <= 1 / 30


def test_part_hidden_by_an_edit_list_is_cut(flash_and_click: Path, tmp_path: Path) -> None:
    hidden = encode(tmp_path / "hidden.mp4", "-ss", 1.5, "-i", flash_and_click, "-c", "copy")
    taken = kept(hidden, tmp_path)
    assert_events(taken, [0.5, 1.5], [0.5, 1.5])
    assert abs(len(taken.sizes) - 75) <= 1 and abs(seconds(taken) - 2.5) < 0.06


@pytest.mark.parametrize("suffix", ["mkv", "mp4"])
def test_late_video_is_preceded_by_its_first_frame(flash_and_click: Path, tmp_path: Path, suffix: str) -> None:
    taken = kept(shifted(flash_and_click, tmp_path / f"late.{suffix}", 0.5, 0), tmp_path)
    assert_events(taken, [1.5, 2.5, 3.5], [1, 2, 3])
    assert abs(len(taken.sizes) - 135) <= 1


def test_sound_that_ends_early_does_not_cut_the_video(flash_and_click: Path, tmp_path: Path) -> None:
    short = encode(
        tmp_path / "short.mp4", "-i", flash_and_click, "-t", 3.5, "-i", flash_and_click, "-map", "0:v", "-map", "1:a",
        "-c", "copy",
    )  # fmt: skip
    taken = kept(short, tmp_path)
    assert_events(taken, [1, 2, 3], [1, 2, 3])
    assert len(taken.sizes) == 120 and abs(seconds(taken) - 3.5) < 0.05


# ------------------------------------------------------------------------------------------------------ parts of videos


@pytest.fixture(scope="module")
def ticking(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """4 s of `clock` with a tone; the first frame is the only key frame."""
    return made(tmp_path_factory.mktemp("clock") / "clock.mp4", clock(4), tone(4), "-qp", "4", "-g", "999")


@pytest.mark.parametrize("segment", [(100.0, 103.0), (0.0, 4.0)])
def test_file_of_a_cut_segment_is_used_whole(ticking: Path, tmp_path: Path, segment: tuple[float, float]) -> None:
    taken = kept(Video("part", ticking, segment=segment), tmp_path)
    assert len(taken.sizes) == 120
    assert np.abs(shown_times(taken) - np.arange(120) / 30).max() <= 1 / 30 + 0.03


def test_a_file_that_ends_before_its_segment_and_is_longer_than_it_is_rejected(ticking: Path, tmp_path: Path) -> None:
    said = reason(Video("part", ticking, segment=(100.0, 101.0)), tmp_path)
    assert said.startswith("it lasts 4 s: too long for its segment of 1 s alone, too short for the video in which that")


@pytest.mark.parametrize(
    ("suffix", "options"),
    [
        ("mpg", "-g 15 -bf 2 -q:v 2"),
        ("vob", "-g 100 -q:v 2"),
        ("ts", "-c:v mpeg2video -g 100 -q:v 2"),
        ("flv", "-q:v 2"),
    ],
)
def test_segments_are_what_the_whole_file_has_there(tmp_path: Path, suffix: str, options: str) -> None:
    """In formats without an index, where ffmpeg seeks to a later key frame."""
    clicks = "aevalsrc='0.5*sin(2*PI*400*t)*lt(mod(t,1),0.03)':s=44100:d=13"
    path = made(tmp_path / f"long.{suffix}", numbered(13, 25), clicks, *options.split())
    whole = kept(path, tmp_path)
    for begin in (0.0, 2.0, 7.1, 9.9):
        part = kept(Video("part", path, segment=(begin, begin + 2)), tmp_path)
        expected = shown_numbers(whole)[round(30 * begin) :][:60]
        assert np.abs(shown_numbers(part) - expected).max() <= 1 and (shown_numbers(part) == expected).mean() > 0.6
        sounds = part.waveform[:], whole.waveform[:][round(24_000 * begin) :]
        first, at = (int((np.abs(sound.astype(int)) > 8000).argmax()) for sound in sounds)
        assert len(part.waveform) == 48_000 and abs(first - at) < 240


@pytest.mark.parametrize(
    ("part", "times", "count"),
    [
        ({}, [1, 2, 3], 120), ({"segment": (1.7, 3.4)}, [0.3, 1.3], 51),
        ({"stretches": ((0.7, 1.2), (1.5, 1.9), (2.8, 3.3))}, [0.3, 1.1], 42),
    ],
)  # fmt: skip
def test_flashes_and_clicks_stay_within_one_frame(
    flash_and_click: Path, tmp_path: Path, part: dict[str, Any], times: list[float], count: int
) -> None:
    taken = kept(Video("part", flash_and_click, **part), tmp_path)
    assert_events(taken, times, times)
    assert abs(len(taken.sizes) - count) <= bool(part.get("segment"))
    assert "stretches" not in part or len(taken.waveform) == 24_000 * count // 30


def test_stretches_of_a_late_video_are_on_the_clock(flash_and_click: Path, tmp_path: Path) -> None:
    late = shifted(flash_and_click, tmp_path / "late.mp4", 0.5, 0)
    taken = kept(Video("parts", late, stretches=((0.8, 1.7), (2.3, 2.7))), tmp_path)
    assert_events(taken, [0.7, 1.1], [0.2])


def test_stretches_beyond_the_end_add_nothing(ticking: Path, tmp_path: Path) -> None:
    taken = kept(Video("parts", ticking, stretches=((2.5, 3.0), (3.5, 9.0), (20.0, 30.0))), tmp_path)
    assert len(taken.sizes) == 30 and abs(seconds(taken) - 1) < 0.05


# ------------------------------------------------------------------------------------------------- silence, in a shard


def shard(folder: Path, videos: list[Video], settings: Extraction) -> h5py.File:
    path = folder / "shard-000000.h5"
    make_shard(ShardTask(LocalFolder(path.parent), path.name, LocalFolder(path.parent), videos, settings, {}))
    assert problems(path) == []
    return h5py.File(path, "r")


def quiet(path: Path, peak: str) -> Path:
    """2 s of video and of sound with this peak, on the 16-bit integer scale."""
    return made(path, clock(2), f"aevalsrc='({peak})/32768*sgn(sin(2*PI*500*t))':s=24000:d=2", "-c:a", "pcm_s16le")


@pytest.mark.parametrize(
    ("peak", "silent", "why"),
    [
        ("", 0.0, "it has no sound"), ("0", 2.0, "its sound track is silent"),
        ("5", 2.0, "its sound track is silent"),  # -75 dB of full scale is 5.8
        ("6", 0.0, ""), ("if(lt(t,1.5),0,6)", 1.5, ""),
    ],
)  # fmt: skip
def test_sound_below_the_threshold_is_silence(tmp_path: Path, peak: str, silent: float, why: str) -> None:
    path = quiet(tmp_path / "quiet.mkv", peak) if peak else made(tmp_path / "quiet.mkv", clock(2))
    with shard(tmp_path, [Video("quiet", path)], Extraction()) as file:
        assert len(file["video/id"]) == 1 and file["video/frame"][1] == 60
        assert abs(file["video/silence"][0] - silent) < 0.015
        assert file["video/mel"][1] == (0 if why else 199)
        assert file["video/note"][0].decode() == (why if peak else "")
    with shard(tmp_path, [Video("quiet", path)], Extraction(require_audio=True)) as file:
        assert len(file["video/id"]) == (not why)
    assert rejected_of(tmp_path / "shard-000000.h5") == ([{"id": "quiet", "reason": why}] if why else [])


# -------------------------------------------------------------------------------------------------- cut and lying files


@pytest.mark.parametrize(("suffix", "options"), [("mp4", ["-movflags", "+faststart"]), ("mkv", []), ("webm", [])])
def test_truncated_file_is_kept_up_to_its_end(tmp_path: Path, suffix: str, options: list[str]) -> None:
    whole = made(tmp_path / f"whole.{suffix}", "testsrc=s=160x120:r=30:d=4", tone(4), "-g", 15, *options)
    cut = tmp_path / f"cut.{suffix}"
    cut.write_bytes(whole.read_bytes()[: whole.stat().st_size * 6 // 10])
    taken = kept(cut, tmp_path)
    assert 45 <= len(taken.sizes) <= 105
    assert taken.note != ""
    cut.write_bytes(whole.read_bytes()[: whole.stat().st_size // 10])
    assert reason(cut, tmp_path).startswith(("only 0.", "ffmpeg cannot decode it"))


@pytest.mark.parametrize("lie", [36_000_000, 100])
def test_declared_length_is_not_trusted(tmp_path: Path, lie: int) -> None:
    path = made(tmp_path / "lie.mp4", clock(2), tone(2), "-qp", 4)
    data = bytearray(path.read_bytes())
    for box in (b"mvhd", b"mdhd"):  # of version 0: two dates, the time scale, the duration
        at = data.index(box) + 4
        while at > 3:
            scale = struct.unpack_from(">I", data, at + 12)[0]
            struct.pack_into(">I", data, at + 16, lie * scale // 1000)
            at = data.find(box, at) + 4
    path.write_bytes(data)
    taken = kept(path, tmp_path)
    assert abs(len(taken.sizes) - 60) <= 1 and abs(seconds(taken) - 2) < 0.06
    assert np.abs(shown_times(taken) - np.arange(len(taken.sizes)) / 30).max() < 0.1


@pytest.mark.parametrize("suffix", ["h264", "mkv"])
def test_file_without_declared_length_is_decoded(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"stream.{suffix}"
    container = {"mkv": "matroska", "h264": "h264"}[suffix]
    with path.open("wb") as file:  # through a pipe, which leaves the header without a length
        pipe = [ENCODER, "-v", "error", "-f", "lavfi", "-i", clock(2, 25), "-c:v", "libx264", "-f", container, "-"]
        subprocess.run(pipe, stdout=file, check=True)
    assert abs(len(kept(path, tmp_path).sizes) - 60) <= 1
    if suffix == "mkv":  # it may be an original
        taken = kept(Video("part", path, segment=(0.6, 1.6)), tmp_path)
        assert np.abs(shown_times(taken) - 0.6 - np.arange(30) / 30).max() < 0.07


def test_late_time_stamp_does_not_repeat_a_frame_for_an_hour(tmp_path: Path) -> None:
    late = clock(2, 10) + ",setpts='PTS+if(gte(N,19),3600/TB,0)'"
    path = made(tmp_path / "late.mkv", late, tone(2), "-fps_mode", "passthrough", "-bf", 0)
    limit = 60 + path.stat().st_size // 250
    assert limit < 200
    taken = kept(path, tmp_path)
    assert len(taken.sizes) == 30 * limit
    assert taken.note == f"cut at {limit} s (its file is too small for more)"
    assert abs(seconds(taken) - 2) < 0.06


# ------------------------------------------------------------------------------------------------------- memory, limits


def test_frames_too_large_for_the_memory_are_rejected(tmp_path: Path) -> None:
    path = made(tmp_path / "huge.avi", grey(128, "yuvj420p"), "", "-c:v", "mjpeg")
    memory = Extraction(limits=Limits(ffmpeg_memory=0.5))
    assert len(kept(path, tmp_path, memory).sizes) == 36
    baseline = b"\xff\xc0\x00\x11\x08"
    assert path.read_bytes().count(baseline + struct.pack(">HH", 64, 64)) == 36
    path.write_bytes(
        path.read_bytes().replace(baseline + struct.pack(">HH", 64, 64), baseline + struct.pack(">HH", 16000, 16000))
    )
    assert reason(path, tmp_path, memory).startswith("ffmpeg cannot decode it: ")


def test_too_little_memory_for_ffmpeg_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="ffmpeg cannot be started|test clip"):
        probe(Limits(ffmpeg_memory=0.02), tmp_path)


@pytest.mark.parametrize(
    ("name", "value"),
    [("fps", 101), ("quality", 1), ("max_hours", 0), ("timeout_factor", -1), ("ffmpeg_memory", float("nan"))],
)  # fmt: skip
def test_invalid_settings_are_refused_with_the_option(name: str, value: float) -> None:
    with pytest.raises(UserError, match=f"--{name.replace('_', '-')} is {value}"):
        (Limits if name in Limits.__dataclass_fields__ else Extraction)(**{name: value})


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    """Replaces ffmpeg by a script; `$real` is the real one."""
    real = shutil.which("ffmpeg")

    def install(script: str, name: str = "ffmpeg") -> Path:
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/bash\nreal={real}\n{script}\n")
        program.chmod(0o755)
        return program

    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    return install


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("kill -TERM $$", "ffmpeg was stopped from outside"), ("exit 255", "ffmpeg was stopped from outside"),
        ("echo 'ffmpeg: cannot execute' >&2; exit 126", "ffmpeg cannot be started"),
    ],
)  # fmt: skip
def test_stopped_or_missing_ffmpeg_does_not_reject_the_video(
    ticking: Path, tmp_path: Path, fake: Fake, script: str, message: str
) -> None:
    fake(script)
    with pytest.raises(UserError, match=message):
        extract(ticking, tmp_path)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_ffmpeg_neither_shortens_nor_rejects_the_video(
    real: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    start = subprocess.Popen
    target = Target.within(tmp_path / "out", Video("nasa", real / "clips" / "nasa_13013.mp4"))

    def started(arguments: list[str], **options: object) -> subprocess.Popen[bytes]:
        process = start(arguments, **options)

        def stop() -> None:
            while not (target.jpeg.is_file() and target.jpeg.stat().st_size > 100_000):
                time.sleep(0.001)
            process.send_signal(number)

        threading.Thread(target=stop, daemon=True).start()
        return process

    monkeypatch.setattr("gdt.preprocess.process.subprocess.Popen", started)
    with pytest.raises(UserError, match="ffmpeg was stopped from outside"):
        extract_group([target], Extraction())


SAYS_FULL = "echo '[out#0 @ 0x1] [error] Error writing trailer: No space left on device' >&2; exit 1"


@pytest.mark.parametrize(
    "fault",
    [
        "kill -TERM $$", "kill -KILL $$",
        "echo '[out#0 @ 0x1] [error] Error writing trailer: Stale file handle' >&2; exit 1",
    ],
)  # fmt: skip
def test_ffmpeg_runs_again_after_a_fault_that_may_pass(ticking: Path, tmp_path: Path, fake: Fake, fault: str) -> None:
    fake(f'[ -e {tmp_path}/once ] && exec $real "$@"; touch {tmp_path}/once; {fault}')
    assert len(kept(ticking, tmp_path).sizes) == 120


def test_full_disk_message_is_checked(ticking: Path, tmp_path: Path, fake: Fake) -> None:
    fake(f'[ -e {tmp_path}/once ] && exec $real "$@"; touch {tmp_path}/once; {SAYS_FULL}')
    with pytest.raises(UserError, match="no space left on the disk of"):  # at once: it would be full again
        extract(ticking, tmp_path)
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk], capture_output=True).returncode:
        pytest.skip("a small disk cannot be mounted here (root is needed)")
    try:
        for script in (
            SAYS_FULL,
            f"head -c 2M /dev/zero > {disk}/full; {SAYS_FULL}",
        ):  # the last one cannot write its log
            fake(script)
            with pytest.raises(UserError, match="no space left on the disk of"):
                extract(ticking, disk)
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


@pytest.mark.parametrize(
    "name",
    [
        "x: No space left on device", "a\n[fatal] b: No space left on device", "matches no streams",
        "\x01\x1f: Disk quota exceeded", "non monotonically increasing dts", "long " * 40 + ": Permission denied",
    ],
)  # fmt: skip
def test_file_name_is_not_mistaken_for_an_error(ticking: Path, tmp_path: Path, name: str) -> None:
    broken = tmp_path / f"{name}.mp4"
    broken.write_bytes(ticking.read_bytes()[:3000])
    message = reason(broken, tmp_path)
    assert message.startswith("ffmpeg cannot decode it: ") and "space" not in message and "quota" not in message
    whole = Path(shutil.copy(ticking, tmp_path / f"whole {name}.mp4"))
    taken = kept(whole, tmp_path)
    assert len(taken.sizes) == 120 and taken.note == ""
    (tmp_path / name).mkdir()  # also as the folder of the shards
    assert len(kept(whole, tmp_path / name).sizes) == 120


def test_a_reading_error_is_no_verdict_on_the_video(
    ticking: Path, tmp_path: Path, fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails = "echo '[error] file:a.mp4: Input/output error' >&2; exit 1"
    fake(f'[ -e {tmp_path}/once ] && exec $real "$@"; touch {tmp_path}/once; {fails}')
    assert kept(ticking, tmp_path).note == ""
    for script in (fails, "echo '[error] file:a.mp4: Operation not permitted' >&2; exit 255"):  # that of ffmpeg 7
        fake(script)  # as of a truncated file of Matroska, which can be read
        assert isinstance(extract(ticking, tmp_path), Failed)

    start = Path.open

    def fail(path: Path, *arguments: Any, **options: Any) -> Any:
        if path == ticking:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return start(path, *arguments, **options)

    monkeypatch.setattr(Path, "open", fail)
    taken = extract(ticking, tmp_path)
    assert isinstance(taken, Unread) and str(taken).startswith("it cannot be read (Operation not permitted); ")


def assert_gone(pid_file: Path) -> None:
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid_file.read_text()), 0)


SEGMENT = (1.0, 2.0)


@pytest.mark.parametrize(
    ("program", "segment", "script"),
    [
        ("ffmpeg", None, "exec sleep 60"), ("ffprobe", SEGMENT, "exec sleep 60"),
        ("ffmpeg", None, "while true; do echo out_time_us=10000; sleep 0.05; done"),
    ],
)  # fmt: skip
def test_stalled_ffmpeg_is_killed_and_the_video_rejected(
    ticking: Path, tmp_path: Path, fake: Fake, monkeypatch: pytest.MonkeyPatch, program: str,
    segment: tuple[float, float] | None, script: str,
) -> None:  # fmt: skip
    monkeypatch.setattr(process, "_GRACE", 0.4)
    fake(f"echo $$ > {tmp_path}/pid; {script}", program)
    began = time.monotonic()
    video = Video("part", ticking, segment=segment)
    assert (
        reason(video, tmp_path, Extraction(limits=Limits(timeout_factor=1)))
        == "ffmpeg took more than 0 s to decode 0 s of the video"
    )
    assert time.monotonic() - began < 50
    assert_gone(tmp_path / "pid")


def test_time_limit_grows_with_the_output(
    ticking: Path, tmp_path: Path, fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "_GRACE", 2.0)
    slow = "echo out_time_us=2000000; sleep 2.5"
    fake(f'{slow}; exec $real "$@"')
    assert len(kept(ticking, tmp_path, Extraction(limits=Limits(timeout_factor=50))).sizes) == 120
    monkeypatch.setattr(process, "_children_seconds", itertools.count(0, 99).__next__)  # so it is not run again
    fake(f"echo $$ > {tmp_path}/pid; {slow}; exec sleep 60")
    assert (
        reason(ticking, tmp_path, Extraction(limits=Limits(timeout_factor=1)))
        == "ffmpeg took more than 4 s to decode 2 s of the video"
    )
    assert_gone(tmp_path / "pid")


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


def test_group_gives_the_same_bytes_as_single_files(synthetic: Path, tmp_path: Path) -> None:
    videos = [Video(path.stem, path) for path in sorted((synthetic / "train").rglob("*.mp4"))[:5]]
    together = extract_group([Target.within(tmp_path / f"g{k}", v) for k, v in enumerate(videos)], Extraction())
    for video, one in zip(videos, together, strict=True):
        other = kept(video, tmp_path)
        assert isinstance(one, Extracted)
        assert one.jpeg.read_bytes() == other.jpeg.read_bytes()
        assert np.array_equal(one.waveform[:], other.waveform[:]) and len(one.waveform)


def test_broken_file_does_not_affect_its_group(synthetic: Path, tmp_path: Path, fake: Fake) -> None:
    fake('case "$*" in *crash*) kill -SEGV $$;; esac; exec $real "$@"')
    good = sorted((synthetic / "train").rglob("*.mp4"))[:2]
    broken, empty = tmp_path / "broken.mp4", tmp_path / "empty.mp4"
    broken.write_bytes(good[0].read_bytes()[:2000])
    empty.touch()
    crash = Path(shutil.copy(good[0], tmp_path / "crash.mp4"))
    for bad in ([crash], [broken, empty, tmp_path / "gone.mp4"]):
        paths = [good[0], *bad, good[1]]
        targets = [Target.within(tmp_path / f"{len(bad)}{k}", Video(str(k), path)) for k, path in enumerate(paths)]
        first, *results, last = extract_group(targets, Extraction())
        assert all(isinstance(taken, Extracted) and len(taken.sizes) == 90 for taken in (first, last))
        assert all(isinstance(taken, Rejected) for taken in results)
        reasons = [str(taken).partition(":")[0] for taken in results]
        assert reasons == (
            ["ffmpeg crashes on it (SIGSEGV)"] if bad == [crash]
            else ["ffmpeg cannot decode it", "the file is empty", "the file does not exist"]
        )  # fmt: skip


def pair(folder: Path, first: Path, second: Path) -> list[Extracted]:
    """The outputs of two files that are decoded as a group."""
    targets = [Target.within(folder / path.stem, Video(path.name, path)) for path in (first, second)]
    return [one for one in extract_group(targets, Extraction()) if isinstance(one, Extracted)]


@needs_tonemap
def test_hdr_is_tone_mapped_in_a_group(ticking: Path, tmp_path: Path) -> None:
    white = grey(PQ_WHITE, "yuv420p10le")
    bright = made(tmp_path / "pq.mkv", white, tone(1.2), "-c:v", "libx264", "-color_trc", "smpte2084", *BT2020)
    ordinary, mapped = pair(tmp_path, ticking, bright)
    assert frames(mapped).mean() > 180 and len(ordinary.sizes) == 120


def test_note_of_a_truncated_file_stays_with_it(ticking: Path, tmp_path: Path) -> None:
    whole = encode(tmp_path / "whole.mkv", "-i", ticking, "-c", "copy")
    cut = tmp_path / "cut.mkv"
    cut.write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])
    taken = pair(tmp_path, ticking, cut)
    assert [one.note for one in taken] == ["", "File ended prematurely"]
    assert len(taken[0].sizes) == 120 and 30 <= len(taken[1].sizes) < 120


MIXED = "printf '[info]     encoder : File ended prematurely\\n[info] Lavf59\\n' >&2"
"""Output of ffmpeg when one thread reports an error while another is in the middle of a line."""


def test_variables_that_change_ffmpegs_messages_have_no_effect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AV_LOG_FORCE_COLOR", "1")
    monkeypatch.setenv("FFREPORT", f"file={tmp_path}/report.log")
    (tmp_path / "broken.mp4").write_bytes(bytes(range(256)))
    assert reason(tmp_path / "broken.mp4", tmp_path).startswith("ffmpeg cannot decode it: moov atom not found")
    assert not (tmp_path / "report.log").exists()


def test_interrupted_error_line_is_recognised(ticking: Path, tmp_path: Path, fake: Fake) -> None:
    fake(f'[ -e {tmp_path}/once ] || {MIXED}; touch {tmp_path}/once; exec $real "$@"')
    assert kept(ticking, tmp_path).note == ""
    fake(f'{MIXED}; exec $real "$@"')
    (tmp_path / "always").mkdir()
    assert "File ended prematurely" in kept(ticking, tmp_path / "always").note


@pytest.mark.parametrize(
    "name",
    ['it\'s a "name".mp4', "-rf.mp4", "ünï cödé 映画.mp4", "http:x.mp4", "a%03d[0].mp4", "a\nb\\.mp4", "$(x);`y`.mp4"],
)
def test_strange_file_names_are_accepted(ticking: Path, tmp_path: Path, name: str) -> None:
    video = Video("strange", Path(shutil.copy(ticking, tmp_path / name)), segment=(0.5, 1.5))
    assert len(kept(video, tmp_path).sizes) == 30


@pytest.mark.parametrize(
    "text",
    [
        "#EXTM3U\n#EXT-X-TARGETDURATION:3\n#EXTINF:3,\nhttp://127.0.0.1:9/x.ts\n",
        "#EXTM3U\n#EXT-X-TARGETDURATION:3\n#EXTINF:3,\nother.mp4\n#EXT-X-ENDLIST\n",
        "ffconcat version 1.0\nfile other.mp4\n",
    ],
)
def test_playlist_opens_no_other_file(synthetic: Path, tmp_path: Path, text: str) -> None:
    shutil.copy(next((synthetic / "train").rglob("*.mp4")), tmp_path / "other.mp4")
    playlist = tmp_path / "list.mp4"
    playlist.write_text(text)
    assert "Connection" not in reason(playlist, tmp_path)


@pytest.mark.parametrize("block", [4, 7, 1 << 22])
def test_frame_sizes_drop_a_truncated_last_frame(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    monkeypatch.setattr(module, "_BLOCK", block)
    jpegs = [b"\xff\xd8" + b"x" * k + b"\xff\xd9" for k in range(40)]
    for end in (b"", b"\xff\xd8x"):
        (tmp_path / "frames").write_bytes(b"".join(jpegs) + end)
        assert frame_sizes(tmp_path / "frames").tolist() == [len(jpeg) for jpeg in jpegs]
    (tmp_path / "frames").write_bytes(jpegs[3][:4])
    assert frame_sizes(tmp_path / "frames").tolist() == []


def test_bytes_that_are_not_counted_are_not_stored(ticking: Path, tmp_path: Path, fake: Fake) -> None:
    cut = "for last; do case $last in *.mjpeg) printf '\\xff\\xd8cut' >> $last;; esac; done"
    fake(f'$real "$@"; status=$?; {cut}; exit $status')
    videos = [Video(str(k), Path(shutil.copy(ticking, tmp_path / f"{k}.mp4"))) for k in range(2)]
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


def test_groups_are_limited_in_number_and_bytes(tmp_path: Path) -> None:
    small, large = tmp_path / "small", tmp_path / "large"
    small.write_bytes(b"x" * 1000)
    large.write_bytes(b"x" * (5 << 20))
    videos = [Video(str(k), path) for k, path in enumerate([small] * 20 + [large, large, small])]
    divided = list(groups(videos))
    assert [len(group) for group in divided] == [16, 4, 1, 1, 1]
    assert [video for group in divided for video in group] == videos
