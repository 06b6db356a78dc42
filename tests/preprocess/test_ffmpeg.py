"""One pass of ffmpeg over real and generated files: picture, sound, clock, parts and silence."""

import re
import shutil
import struct
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gdt.preprocess import ffmpeg
from gdt.preprocess.decode import Extracted
from gdt.preprocess.ffmpeg import Extraction
from gdt.preprocess.videos import ListedVideo
from tests.conftest import few
from tests.preprocess.intact import rejected_of
from tests.preprocess.media import (
    assert_events,
    clock,
    encode,
    frames,
    grey,
    kept,
    made,
    pair,
    reason,
    seconds,
    several,
    shard,
    shown_times,
    tone,
)

# ---------------------------------------------------------------------------------------------------------- real files


@pytest.mark.parametrize(
    ("name", "why"),
    few([("corrupted.mp4", "Invalid NAL unit size"), ("sample_missing_stsd.mp4", "its sound cannot be decoded"),
         ("weird_aspect.small.mpg", "ac-tex damaged")]),
)  # fmt: skip
def test_faults_of_real_clips_are_noted(real: Path, tmp_path: Path, name: str, why: str) -> None:
    """Their numbers are in tests/golden."""
    assert kept(real / "clips" / name, tmp_path).note.startswith(why)


# ------------------------------------------------------------------------------------------------------------- picture


def numbered(seconds: float, rate: int) -> str:
    """A video of up to 2744 frames whose grey levels encode their numbers: see `shown_numbers`."""
    digits = "24+16*if(lt(X,32),mod(N,14),if(lt(X,64),mod(floor(N/14),14),floor(N/196)))"
    return f"color=black:s=96x32:r={rate}:d={seconds},format=yuv420p,geq=lum='{digits}':cb=128:cr=128"


def shown_numbers(taken: Extracted) -> np.ndarray:
    """The number in each frame of a `numbered` video."""
    levels = frames(taken).mean((1, 3)).reshape(-1, 3, 32)[:, :, 8:24].mean(2)
    numbers: np.ndarray = np.rint((16 + levels * 219 / 255 - 24) / 16).astype(int) @ [1, 14, 196]
    return numbers


def assert_on_time(path: Path, taken: Extracted, late: float) -> str:
    """Each frame shown is the last up to `late` seconds after its time; returns the rate that ffmpeg guesses."""
    asked = ["-v", "error", "-select_streams", "v", "-show_entries", "frame=pts_time:stream=r_frame_rate"]
    command = ["ffprobe", *asked, "-of", "csv=p=0", path]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    stamps = np.array([float(line.strip(",")) for line in told if "/" not in line])  # a program has the rate, too
    times = stamps[0] + np.arange(len(taken.sizes)) / 30 + late + 1e-6 - (late == 1 / 60) * 2e-6
    assert shown_numbers(taken).tolist() == (np.searchsorted(stamps, times, side="right") - 1).tolist()
    return told[-1]


@pytest.mark.parametrize(
    ("rate", "suffix", "late"),
    few([(24, "mp4", 1 / 60), (25, "mkv", 1 / 60), (50, "ts", 1 / 60), (60, "mp4", 1 / 60), (100, "avi", 0),
     (120, "mp4", 0), (144, "flv", 0.0005), (240, "mov", 0), (240, "mkv", 0.0005)], 2),
)  # fmt: skip
def test_frames_are_those_of_their_times(tmp_path: Path, rate: int, suffix: str, late: float) -> None:
    """The last at or before the time; of videos up to 60 per second, the last within half an interval after it.

    `late` includes the rounding of stamps to milliseconds.
    """
    path = made(tmp_path / f"fast.{suffix}", numbered(1.5, rate), "", "-qp", 4, "-q:v", 2)
    assert_on_time(path, kept(path, tmp_path), late)


@pytest.mark.parametrize(("rate", "late"), few([(30, 1 / 60), (60, 1 / 60), (120, 0.0005)]))
def test_rate_is_that_of_the_frames(tmp_path: Path, rate: int, late: float) -> None:
    """Not of the container: where stamps of 1 ms jitter and no duration is declared, ffmpeg guesses 1000 per second."""
    jitter = f"settb=1/1000,setpts='max(PREV_OUTPTS+1,round(N*1000/{rate}+gt(N,0)*{240 / rate}*(2*random(0)-1)))'"
    options = ["-fps_mode", "passthrough", "-enc_time_base", "1/1000", "-bf", 0, "-qp", 4, "-c:a", "flac"]
    path = made(tmp_path / "jitter.mkv", f"{numbered(2, rate)},{jitter}", tone(), *options)
    taken = kept(path, tmp_path)
    assert assert_on_time(path, taken, late) == "1000/1"
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


@pytest.mark.parametrize("degrees", few(CORNERS, 2))
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
    few([
        ("640x360", "1", 160, 284), ("360x640", "1", 284, 160), ("320x240", "1/2", 240, 160), ("64x64", "2", 64, 128),
        ("120x96", "16/15", 96, 128), ("16x16", "1", 16, 16), ("32x1280", "1", 1280, 32), ("161x91", "1", 92, 162),
        ("333x777", "1", 374, 160), ("160x160", "400", 160, 16 * 160),
    ], 3),
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
    few([
        ("yuv420p", "libx264", 126), ("yuv422p10le", "libx264", 504), ("yuvj420p", "mjpeg", 128), ("gray", "ffv1", 128),
    ], 2),
)  # fmt: skip
def test_brightness_does_not_depend_on_bit_depth_and_range(tmp_path: Path, pixels: str, codec: str, luma: int) -> None:
    source = grey(luma, pixels) if pixels != "gray" else f"color=black:s=64x64:r=30:d=1.2,format=gray,geq=lum={luma}"
    path = made(tmp_path / "grey.mkv", source, "", "-c:v", codec)
    assert np.abs(frames(kept(path, tmp_path)).astype(int) - 128).max() <= 2


@pytest.mark.parametrize("matrix", few(["bt709", "smpte170m", "bt2020nc"]))
def test_colours_do_not_depend_on_the_matrix(tmp_path: Path, matrix: str) -> None:
    name = {"bt2020nc": "bt2020"}.get(matrix, matrix)
    source = f"color=0xd02040:s=64x64:r=30:d=1.2,format=gbrp,scale=out_color_matrix={name},format=yuv420p"
    path = made(tmp_path / "colour.mp4", source, "", "-colorspace", matrix)
    assert np.abs(frames(kept(path, tmp_path)).mean((0, 1, 2)) - [0xD0, 0x20, 0x40]).max() <= 6


needs_tonemap = pytest.mark.skipif(not (shutil.which("ffmpeg") and ffmpeg.has_tonemap()), reason="it has no zscale")
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
    _, together = pair(tmp_path, made(tmp_path / "plain.mkv", grey(60), tone(1.2)), tmp_path / "pq.mkv")
    assert together.jpeg.read_bytes() == taken.jpeg.read_bytes()
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


@pytest.mark.parametrize(("first", "codec"), few([("bottom", "libx264"), ("top", "mpeg2video")]))
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


def hertz_and_purity(taken: Extracted) -> tuple[float, float]:
    """Strongest frequency of the sound, and its fraction of the power."""
    wave = taken.waveform[:].astype(float)
    power = np.abs(np.fft.rfft(wave * np.hanning(len(wave)), 1 << 18)) ** 2
    peak, width = int(power.argmax()), int(8 * (1 << 18) / len(wave))
    return peak * 24_000 / (1 << 18), power[max(0, peak - width) : peak + width].sum() / power.sum()


def streams_of(note: str) -> list[int]:
    return [int(number) for number in re.findall(r"#(\d+) is used", note)]


@pytest.mark.parametrize(
    ("size", "default"),
    few([
        ("320x240", []), ("320x240", ["v:0", "a:0"]), ("320x240", ["v:1", "a:1"]), ("320x240", ["v:0", "v:1", "a:1"]),
        ("2400x2400", ["v:1", "a:0", "a:1"]),
    ], 2),
)  # fmt: skip
def test_streams_are_those_that_ffmpeg_takes(tmp_path: Path, size: str, default: list[str]) -> None:
    """More than 5 million pixels outweigh a default picture; the sound of most channels does not outweigh a default."""
    sources = [f"color=black:s={size}:r=5:d=1.2", "color=white:s=640x480:r=5:d=1.2", tone(1.2), tone(1.2, 1000)]
    marked = [f"-disposition:{kind}:{k}" for kind in "va" for k in (0, 1)]
    flags = [part for name in marked for part in (name, "default" if name.split(":", 1)[1] in default else 0)]
    path = several(tmp_path / "four.mkv", sources, *flags, "-preset", "ultrafast", "-c:a", "flac", "-ac:a:1", 2)
    alone = ["ffmpeg", "-nostdin", "-i", path, "-t", "0.1", "-f", "null", "-"]
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
    programs = ["-program", f"st=0:st=3{':st=2' * silent}", "-program", f"st=1{':st=2' * (not silent)}"]
    codecs = ["-c:v", "mpeg2video", "-c:a", "mp2", "-ac:a:1", 2]  # the other program's has more channels
    taken = kept(several(tmp_path / "two.ts", sources, *codecs, *programs), tmp_path)
    assert (taken.height, taken.width) == (160, 214)
    assert (len(taken.waveform) == 0) == silent == ("2 audio streams (#none is used)" in taken.note)
    assert silent or abs(hertz_and_purity(taken)[0] - 440) < 2


def test_sound_of_an_unknown_codec_is_not_taken_beside_another(tmp_path: Path) -> None:
    sources = [grey(60), tone(1.2, 440), "aevalsrc='0.1|0.1|0.1|0.1':d=1.2"]
    path = several(tmp_path / "two.mp4", sources, "-c:a", "aac", "-disposition:a", "default")
    content = path.read_bytes()
    last = content.rindex(b"mp4a")
    path.write_bytes(content[:last] + content[last:].replace(b"mp4a", b"apac").replace(b"esds", b"skip"))
    assert abs(hertz_and_purity(kept(path, tmp_path))[0] - 440) < 2


def test_sound_without_video_or_with_a_cover_is_rejected(tmp_path: Path) -> None:
    cover = ("testsrc=s=64x64:r=25:d=0.04", tone(), "-c:v", "mjpeg", "-disposition:v", "attached_pic")
    for path in (made(tmp_path / "sound.mp4", "", tone()), made(tmp_path / "covered.mp4", *cover)):
        assert reason(path, tmp_path) == "there is no video stream in it; if it is a sound, rename it to .mka"


def test_video_shorter_than_min_seconds_is_rejected(tmp_path: Path) -> None:
    short = made(tmp_path / "short.mp4", clock(0.9))
    assert reason(short, tmp_path) == "it is too short; only 0.90 s can be decoded, 1 s are needed"
    assert len(kept(short, tmp_path, Extraction(min_seconds=0.9)).sizes) == 27


# --------------------------------------------------------------------------------------------------------------- sound

LAYOUTS = {1: "mono", 2: "stereo", 6: "5.1", 8: "7.1"}


def played(channels: list[str], rate: int = 48_000, length: float = 2) -> str:
    return f"aevalsrc='{'|'.join(channels)}':c={LAYOUTS[len(channels)]}:s={rate}:d={length}"


@pytest.mark.parametrize(
    ("codec", "suffix", "rate", "channels"),
    few([
        ("pcm_s24le", "mov", 11_025, 2), ("pcm_s16le", "mkv", 96_000, 8), ("aac", "mp4", 44_100, 6),
        ("aac", "mp4", 8_000, 1), ("libopus", "webm", 48_000, 1), ("libmp3lame", "avi", 44_100, 2),
        ("libvorbis", "mkv", 11_025, 1),
    ], 2),
)  # fmt: skip
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


@pytest.mark.parametrize(("channels", "one"), few([(2, 0), (6, 2), (6, 5), (8, 7)], 2))
def test_every_channel_is_mixed_in(tmp_path: Path, channels: int, one: int) -> None:
    source = played(["0.5*sin(2*PI*440*t)" if k == one else "0" for k in range(channels)])
    taken = kept(made(tmp_path / "one.mkv", clock(2), source, "-c:a", "pcm_s16le"), tmp_path)
    assert abs(hertz_and_purity(taken)[0] - 440) < 1
    assert np.abs(taken.waveform[:].astype(int)).max() > 1000


@pytest.mark.parametrize(("channel", "codec"), few([(1, "libvorbis"), (4, "pcm_s16le")]))
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


@pytest.mark.parametrize(
    ("picture", "sound", "suffix", "part", "flashes", "clicks", "count"),
    few([
        ("", "", "mp4", {}, [1, 2, 3], [1, 2, 3], 120),
        ("", "-itsoffset 0.5", "mkv", {}, [1, 2, 3], [1.5, 2.5, 3.5], 120),
        ("-itsoffset 0.5", "", "mp4", {}, [1.5, 2.5, 3.5], [1, 2, 3], 135),  # its first frame precedes it
        ("-ss 1.5", "-ss 1.5", "mp4", {}, [0.5, 1.5], [0.5, 1.5], 75),  # an edit list hides the part before
        ("", "", "mp4", {"segment": (1.7, 3.4)}, [0.3, 1.3], [0.3, 1.3], 51),
        ("", "", "mp4", {"stretches": ((0.7, 1.2), (1.5, 1.9), (2.8, 3.3))}, [0.3, 1.1], [0.3, 1.1], 42),
        ("", "", "mp4", {"stretches": ((2.5, 3.2), (3.5, 9.0), (20.0, 30.0))}, [0.5], [0.5], 36),  # beyond the end
        ("-itsoffset 0.5", "", "mp4", {"stretches": ((0.8, 1.7), (2.3, 2.7))}, [0.7, 1.1], [0.2], 39),
        ("-itsoffset 0.5", "", "mkv", {}, [1.5, 2.5, 3.5], [1, 2, 3], 135),
        ("", "-itsoffset 0.5", "mp4", {}, [1, 2, 3], [1.5, 2.5, 3.5], 120),
    ], 8),
)  # fmt: skip
def test_flashes_and_clicks_stay_within_one_frame(
    flash_and_click: Path, tmp_path: Path, picture: str, sound: str, suffix: str, part: dict[str, Any],
    flashes: list[float], clicks: list[float], count: int,
) -> None:  # fmt: skip
    inputs = [*picture.split(), "-i", flash_and_click, *sound.split(), "-i", flash_and_click]
    path = encode(tmp_path / f"moved.{suffix}", *inputs, "-map", "0:v", "-map", "1:a", "-c", "copy")
    taken = kept(ListedVideo("part", path, **part), tmp_path)
    assert_events(taken, flashes, clicks)
    assert abs(len(taken.sizes) - count) <= ("stretches" not in part)
    assert "stretches" not in part or abs(len(taken.waveform) - 24_000 * count // 30) < 480


# ------------------------------------------------------------------------------------------------------ parts of videos


@pytest.mark.parametrize("segment", [(100.0, 103.0), (0.0, 4.0)])
def test_file_of_a_cut_segment_is_used_whole(ticking: Path, tmp_path: Path, segment: tuple[float, float]) -> None:
    taken = kept(ListedVideo("part", ticking, segment=segment), tmp_path)
    assert len(taken.sizes) == 120
    assert np.abs(shown_times(taken) - np.arange(120) / 30).max() <= 1 / 30 + 0.03
    cut = kept(ListedVideo("part", ticking, segment=(1.0, 3.0), uncut=True), tmp_path)
    assert abs(len(cut.sizes) - 60) <= 1


def test_a_file_that_may_be_another_part_is_rejected(ticking: Path, tmp_path: Path) -> None:
    for length, shared, why in (
        (3.0, True, "it was cut out of its video, and may be any of several segments; name it <id>_<start>"),
        (1.0, False, "it lasts 4 s: too long for its segment of 1 s alone, too short for the video in which that"),
    ):
        video = ListedVideo("part", ticking, segment=(100.0, 100.0 + length), shared=shared)
        assert reason(video, tmp_path).startswith(why)


@pytest.mark.parametrize("form", few([
    "mpg -g 15 -bf 2 -q:v 2", "vob -g 100 -q:v 2", "ts -c:v mpeg2video -g 100 -q:v 2", "flv -q:v 2",
    "ts -c:v libx264 -g 250 -sc_threshold 0 -crf 8", "mp4 -c:v libx264 -g 100 -crf 8 -f mpegts",
]))  # fmt: skip
def test_segments_are_what_the_whole_file_has_there(tmp_path: Path, form: str) -> None:
    """In formats without an index, where ffmpeg seeks to a later key frame."""
    clicks = "aevalsrc='0.5*sin(2*PI*400*t)*lt(mod(t,1),0.03)':s=44100:d=13"
    suffix, *options = form.split()
    path = made(tmp_path / f"long.{suffix}", numbered(13, 25), clicks, *options)
    whole = kept(path, tmp_path)
    for begin in (0.0, 2.0, 7.1, 9.9):
        part = kept(ListedVideo("part", path, segment=(begin, begin + 2)), tmp_path)
        expected = shown_numbers(whole)[round(30 * begin) :][:60]
        assert np.abs(shown_numbers(part) - expected).max() <= 1 and (shown_numbers(part) == expected).mean() > 0.6
        sounds = part.waveform[:], whole.waveform[:][round(24_000 * begin) :]
        first, at = (int((np.abs(sound.astype(int)) > 8000).argmax()) for sound in sounds)
        assert len(part.waveform) == 48_000 and abs(first - at) < 240


# ------------------------------------------------------------------------------------------------- silence, in a shard


@pytest.mark.parametrize(
    ("peak", "silent", "why"),
    [
        ("", 0.0, "it has no sound"), ("0", 2.0, "its sound track is silent"),
        ("5", 2.0, "its sound track is silent"),  # -75 dB of full scale is 5.8
        ("6", 0.0, ""), ("if(lt(t,1.5),0,6)", 1.5, ""),
    ],
)  # fmt: skip
def test_sound_below_the_threshold_is_silence(tmp_path: Path, peak: str, silent: float, why: str) -> None:
    """`peak` is on the 16-bit integer scale; empty without sound."""
    sound = f"aevalsrc='({peak})/32768*sgn(sin(2*PI*500*t))':s=24000:d=2" if peak else ""
    path = made(tmp_path / "quiet.mkv", clock(2), sound, "-c:a", "pcm_s16le")
    with shard(tmp_path, [ListedVideo("quiet", path)], Extraction()) as file:
        assert len(file["video/id"]) == 1 and file["video/frame"][1] == 60
        assert abs(file["video/silence"][0] - silent) < 0.015
        assert file["video/mel"][1] == (0 if why else 199)
        assert file["video/note"][0].decode() == (why if peak else "")
    with shard(tmp_path, [ListedVideo("quiet", path)], Extraction(require_audio=True)) as file:
        assert len(file["video/id"]) == (not why)
    assert rejected_of(tmp_path / "shard-000000.h5") == ([{"id": "quiet", "reason": why}] if why else [])
