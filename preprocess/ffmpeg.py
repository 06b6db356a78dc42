"""The ffmpeg command line: one process, one pass over a video, to JPEG frames and the 24 kHz waveform.

Both are aligned to the presentation clock: a stream that starts late is padded in front (video with its first frame,
sound with silence), and anything before time 0 is cut. Limits prevent files from making ffmpeg open other files or
URLs, run forever, or fill the memory or the disk.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import ffmpeg as graphs
import tyro

from gdt.common.errors import ABOVE_ZERO, require_range
from gdt.common.folders import state_of
from gdt.common.machine import killed_with_parent
from gdt.preprocess.logmel import SAMPLE_RATE
from gdt.preprocess.process import Limits
from gdt.preprocess.videos import SOUNDS, ListedVideo

_FORMATS = (
    "aac,ac3,aiff,asf,avi,eac3,flac,flv,h264,hevc,ivf,loas,m4v,matroska,mjpeg,mov,mp3,mpeg,mpegts,mpegvideo,mxf,nut,ogg,rm,"
    "wav,webm_dash_manifest"
)
_QUEUE = 1024
"""Packets read ahead of the decoder: with ffmpeg's 8, the videos of a group wait for each other's readers."""
_MAX_ASPECT = 16
"""Maximum aspect ratio of a frame: a pixel aspect of 400 would fill the disk."""
_FREE = 60
"""Seconds of any file; beyond these, its bytes and frames bound its length."""
_MIN_BYTES = 250
"""Fewest plausible bytes per second. Of files with fewer, frames are counted."""
MAX_SHOWN = 10
"""Most plausible seconds per frame of those; a few files show slides for longer."""
_MAX_STAMPS = 1 << 22
"""Maximum number of sound time stamps, 62 bytes each: a file of tiny frames could fill the disk with them."""
WITHOUT_INDEX = {"mpeg", "mpegts", "mpegvideo"}
"""ffmpeg's names of formats in which it may find no earlier key frame than the next."""
_EARLY = 30.0
"""Seconds before a segment at which decoding such files starts: x264's key frames are up to 250 frames apart."""
_NEVER = 10**12
"""A time in samples beyond all stamps: ffmpeg drops packets that are more than 30 hours off."""


@dataclass(frozen=True)
class Extraction:
    """How frames and sound are extracted. To change them, preprocess again into a new --destination."""

    fps: int = 30
    """Frames per second of the stored frames."""
    short_side: int = 160
    """Shorter side of the stored frames, pixels; never enlarged."""
    quality: int = 3
    """JPEG quality, 2 (best) to 31; 3 is 7.6 kB per 160x213 frame."""
    min_seconds: float = 1.0
    """Reject shorter videos, except in data sets with official folds."""
    max_hours: float = 4.0
    """Longer videos are cut to this length; limits the worker's disk use."""
    silence_db: float = -75.0
    """A track whose peak stays below this level (dBFS) counts as silent."""
    require_audio: bool = False
    """Reject videos without sound or with silence only."""
    limits: Annotated[Limits, tyro.conf.arg(name="")] = field(default_factory=Limits)

    def __post_init__(self) -> None:
        require_range(self, "fps", most=100)
        require_range(self, "short_side", least=16, most=10_000)
        require_range(self, "quality", least=2, most=31)
        require_range(self, "silence_db", least=-200, most=0)
        require_range(self, "min_seconds", "max_hours", least=ABOVE_ZERO, most=1_000_000)

    @property
    def identity(self) -> dict[str, Any]:
        """The settings that change shards: all but the limits."""
        return {setting.name: getattr(self, setting.name) for setting in fields(self) if setting.name != "limits"}

    @property
    def silence_peak(self) -> float:
        """`silence_db` on the 16-bit integer scale."""
        return float(10 ** (self.silence_db / 20) * 32768)


@dataclass(frozen=True)
class Target:
    """A video, its file on this machine and the files for its frames and sound."""

    video: ListedVideo
    file: Path
    jpeg: Path
    pcm: Path
    pictures: bool = True
    """Whether the file has frames to decode; a sound's are none."""
    picture: str = "V:0"
    sound: str = "a:0"
    """ffmpeg's names of the streams; by default the first of each kind but cover art. The sound's may be empty."""
    fast: bool | None = None
    """Whether it has more than twice as many frames per second as are stored; None: as ffmpeg guesses."""
    hdr: bool = False
    without_index: bool = False
    """Whether its format is one of WITHOUT_INDEX."""
    frames: int = 0
    """Frames in a file with few bytes for its length, packets if it is a sound; 0 if they are not counted."""
    note: str = ""
    """What to say of its streams."""

    @staticmethod
    def within(folder: Path, video: ListedVideo, file: Path) -> Target:
        """Output files in a new folder."""
        folder.mkdir()
        return Target(video, file, folder / "frames.mjpeg", folder / "sound.pcm", file.suffix.lower() not in SOUNDS)

    @property
    def files(self) -> list[Path]:
        """The files that ffmpeg writes if there is sound."""
        return [self.jpeg, self.pcm] if self.pictures else [self.pcm]

    @property
    def stamps(self) -> Path:
        """Time stamps of the sound frames."""
        return self.pcm.with_suffix(".stamps")

    @property
    def log(self) -> Path:
        return self.jpeg.with_suffix(".log")


def decode_command(targets: Sequence[Target], settings: Extraction) -> list[str]:
    """The ffmpeg command line of one pass over each of the targets."""
    outputs = []
    for target, source in zip(targets, _inputs(targets), strict=True):
        if target.pictures:
            outputs.append(_frames_output(source[target.picture], target, settings))
        if target.sound:
            outputs += _sound_outputs(source[target.sound], target, settings)
    return _compiled(outputs)


def _frames_output(source: Any, target: Target, settings: Extraction) -> Any:
    """The output of JPEG frames.

    ffmpeg rebuilds the filters where the size or format of frames changes. So they use time stamps, not counts, and the
    encoder pads the start: `fps` with a start time would pad again in the middle of the video.
    """
    shrink = f"min(1,{settings.short_side}/min(iw*sar,ih))"
    longest = _MAX_ASPECT * settings.short_side
    width, height = (f"max(2,min({longest},2*round({side}*{shrink}/2)))" for side in ("iw*sar", "ih"))
    size = f"w='{width}':h='{height}'"
    chain = ["yadif=deint=interlaced", _latest(target, settings.fps), f"fps={settings.fps}", "trim=start_pts=0"]
    chain += _select(kept_stretches(target, settings), settings.fps)
    if target.hdr:  # on the small frame; without it an HDR video looks washed out
        chain += [f"scale={size}", "zscale=t=linear:npl=100", "format=gbrpf32le", "zscale=p=bt709"]
        chain += ["tonemap=hable:desat=0", "zscale=t=bt709:m=bt709:r=tv", "format=yuv420p"]
    # JPEG's YCbCr, independent of the colour coding of the video
    chain += [f"scale={size}:out_color_matrix=bt601:out_range=pc", "format=yuv420p", "setsar=1"]
    return graphs.output(
        source,
        str(target.jpeg),
        vf=",".join(chain),
        filter_threads=1,
        threads=1,
        format="image2pipe",
        vcodec="mjpeg",
        pix_fmt="yuvj420p",
        flags="+bitexact",
        r=settings.fps,
        fps_mode="cfr",  # without it, ffmpeg does not pad a late video that is the only stream of its file
        t=end_seconds(target, settings),
        **{"q:v": settings.quality},
    )


def channel_levels(target: Target, settings: Extraction) -> list[str]:
    """The ffmpeg command line that prints the peak of each channel of the sound."""
    filters = f"{_sound_filters(target, settings)},astats=measure_perchannel=Peak_level:measure_overall=none"
    return _compiled([graphs.output(_inputs([target])[0][target.sound], "-", format="null", af=filters)])


def one_channel(target: Target, settings: Extraction, channel: int) -> list[str]:
    """The ffmpeg command line that writes one channel of the sound instead of the mix of all."""
    return _compiled(_sound_outputs(_inputs([target])[0][target.sound], target, settings, f"pan=mono|c0=c{channel},"))


def _compiled(outputs: Sequence[Any]) -> list[str]:
    logging = ("-nostdin", "-hide_banner", "-nostats", "-loglevel", "level+info", "-progress", "pipe:1")
    merged: Any = graphs.merge_outputs(*outputs).global_args(*logging)
    return [*killed_with_parent(), *graphs.compile(merged, overwrite_output=True)]


def probe(target: Target, out: Path, settings: Extraction) -> list[str]:
    """The ffprobe command line that writes as JSON what a file holds, with its first packets, or all if it is small."""
    options = ["-hide_banner", "-loglevel", "level+info", "-protocol_whitelist", "file", "-format_whitelist", _FORMATS]
    of_stream = "index,codec_type,codec_name,width,height,channels,color_transfer"
    streams = f"stream={of_stream}:stream_disposition=default,attached_pic"
    entries = f"format=duration,format_name:program_stream=index:{streams}:packet=stream_index,dts_time"
    options += ["-show_entries", entries, "-of", "json", "-o", str(out)]
    if max_seconds(target, settings) == settings.max_hours * 3600:
        options += ["-read_intervals", "%+#2000"]
    return [*killed_with_parent(), "ffprobe", *options, f"file:{target.file}"]


def _sound_filters(target: Target, settings: Extraction) -> str:
    """Filters that resample the sound and end it.

    A single stamp may be wrong, so the sound ends once its stamps have been beyond the limit for a second; `t` would
    end it at the first.
    """
    limit = round(end_seconds(target, settings) * SAMPLE_RATE)
    within = f"st(0,if(lt(PTS,{limit}),N,ld(0)))"  # samples before the last frame that begins within the limit
    ended = f"asetpts='PTS+{_NEVER}*gt(N-{within},{SAMPLE_RATE})',atrim=end_pts={_NEVER // 2}"
    most = 2 * limit + (round(_EARLY * SAMPLE_RATE) if target.video.segment else 0)
    return f"aresample={SAMPLE_RATE},{ended},atrim=end_sample={most}"  # stamps may stand still


def _sound_outputs(source: Any, target: Target, settings: Extraction, mix: str = "") -> list[Any]:
    """Two outputs: the samples without gaps, and the time stamps of their frames, for `put_on_clock`.

    Muxers rewrite decreasing stamps. So the first output stamps samples by their count; the second keeps the true
    stamps as presentation times, with packet numbers, shifted below all stamps, as decoding times.
    """
    chain = f"{mix}{_sound_filters(target, settings)}"
    forward = "setts=ts='if(N,max(PREV_OUTPTS+1,PTS),0)'"  # filters restart their count where the format changes
    apart = f"setts=pts=PTS:dts=N-{_NEVER}"
    mono = {"acodec": "pcm_s16le", "ac": 1}
    samples = {"format": "s16le", "af": f"{chain},asetpts=N", "bsf:a": forward}
    stamps = {"format": "framecrc", "af": chain, "bsf:a": apart, "frames:a": _MAX_STAMPS}
    return [
        graphs.output(source, str(target.pcm), **mono, **samples),
        graphs.output(source, str(target.stamps), **mono, **stamps),
    ]


def _inputs(targets: Sequence[Target]) -> list[Any]:
    """The videos as inputs. `file:` and the whitelists keep names and contents from opening playlists or URLs."""
    sources = []
    for target in targets:
        video = target.video
        options: dict[str, Any] = {"threads": 1, "protocol_whitelist": "file", "format_whitelist": _FORMATS}
        if len(targets) > 1:
            options["thread_queue_size"] = _QUEUE
        begin = video.segment[0] if video.segment else 0
        if begin:
            options["ss"] = begin  # no `t`, which would end the sound at the first stamp beyond it
            if target.without_index:  # what comes before the segment gets times before 0
                options |= {"ss": max(0, begin - _EARLY), "itsoffset": -begin}
                options |= {"copyts": None, "start_at_zero": None, "noaccurate_seek": None}
        sources.append(graphs.input(f"file:{target.file}", **options))
    return sources


def _latest(target: Target, fps: int) -> str:
    """A filter that makes `fps` take the last frame at or before its time from videos of more than twice its rate.

    Alone, it takes the last frame within half an interval after its time. Stamps may be rounded to milliseconds.
    """
    fast = f"gt(FR,{2 * fps})" if target.fast is None else int(target.fast)
    return f"setpts='PTS+{fast}*(1/{2 * fps}-min(TB,0.0005))/TB'"


def _select(stretches: Sequence[tuple[float, float]], fps: int) -> list[str]:
    """Filters that keep the frames of the stretches and close the gaps."""
    if not stretches:
        return []
    parts = [(round(a * fps), round(b * fps)) for a, b in stretches]
    kept = "+".join(f"between(pts,{a},{b - 1})" for a, b in parts)
    gaps = "".join(f"-{a - before}*gte(PTS,{a})" for (_, before), (a, _) in pairwise([(0, 0), *parts]))
    return [f"select='{kept}'", f"setpts='PTS{gaps}'"]


def kept_stretches(target: Target, settings: Extraction) -> list[tuple[float, float]]:
    """The stretches to keep, of frames and sound alike, within the length limit."""
    limit = max_seconds(target, settings)
    kept = [(begin, min(end, limit)) for begin, end in target.video.stretches if begin < limit]
    return kept if kept or not target.video.stretches else [(0.0, 0.1)]


def max_seconds(target: Target, settings: Extraction) -> float:
    """Length limit of a file: huge time stamps in a small one would become hours of one repeated frame."""
    plausible = _FREE + max(state_of(target.file).size // _MIN_BYTES, MAX_SHOWN * target.frames)
    return min(settings.max_hours * 3600, plausible)


def end_seconds(target: Target, settings: Extraction) -> float:
    """Length limit of a video or its segment."""
    limit = max_seconds(target, settings)
    if target.video.segment is None:
        return limit
    begin, end = target.video.segment
    return min(limit, end - begin)


@cache
def has_tonemap() -> bool:
    """Whether this ffmpeg can tone-map HDR (built with libzimg)."""
    process = subprocess.run(["ffmpeg", "-hide_banner", "-filters"], capture_output=True, text=True, check=False)
    return " zscale " in process.stdout and " tonemap " in process.stdout
