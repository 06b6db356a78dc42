"""One ffmpeg process, one pass over one video: 30-fps JPEG frames and the 24 kHz waveform.

Both are aligned to the presentation clock: a stream that starts late is padded in front (the picture with its first
frame, the sound with silence), what lies before time 0 is cut. Nothing that a file contains makes ffmpeg open another
file or an address, run for ever, or take the memory or the disk.
"""

from __future__ import annotations

import io
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import ffmpeg
import numpy as np
from PIL import Image

from gdt.common.errors import UserError
from gdt.common.files import kind
from gdt.preprocess.clock import put_on_clock, rearrange
from gdt.preprocess.datasets.listing import Video, size_of
from gdt.preprocess.logmel import SAMPLE_RATE, Waveform
from gdt.preprocess.process import Limits, Log, Rejected, dies_with_parent, run

_FORMATS = "asf,avi,flv,h264,hevc,ivf,m4v,matroska,mjpeg,mov,mpeg,mpegts,mpegvideo,mxf,nut,ogg,rm,webm_dash_manifest"
_GROUP = 16
_GROUP_BYTES = 4 << 20
_QUEUE = 1024
"""Packets that are read ahead of the decoder: with ffmpeg's 8, the videos of a group wait for each other's readers."""
_BLOCK = 1 << 22
_LONGEST = 16
"""Short sides that the long side of a frame may have: a pixel aspect of 400 would fill the disk."""
_LEAST_BYTES = 250
"""Bytes per second below which a file's length is not believed (beyond the first minute)."""
_MOST_STAMPS = 1 << 22
"""Time stamps of sound that are written at most, 62 bytes each: a file of tiny frames could fill the disk with them."""
_NEVER = 10**12
"""Samples that no stamp comes to: ffmpeg leaves out packets that are 30 hours off."""
_OUT_OF_ORDER = "non monotonically increasing dts"


@dataclass(frozen=True)
class Extraction:
    """How frames and sound are taken from a video. Changing a value remakes the shards."""

    fps: int = 30
    """Frames per second of the stored frames, whatever the video's own rate."""
    short_side: int = 160
    """Length of the shorter side of the stored frames, pixels; smaller videos are not enlarged."""
    quality: int = 3
    """JPEG quality on ffmpeg's scale from 2 (best) to 31; 3 takes about 7.6 kB for a frame of 160x213."""
    min_seconds: float = 1.0
    """Videos with fewer seconds of picture are left out; a clip takes 1 s."""
    max_hours: float = 4.0
    """Videos are cut at this length, with a note; it bounds the disk that a worker needs."""
    silence: float = -75.0
    """Decibels of full scale. Sound that never exceeds it is no sound: the video is kept as one without."""
    need_sound: bool = False
    """Leave out videos without sound, or with silence alone, instead of keeping them for learning from the picture."""
    patience: float = 20.0
    """Seconds that ffmpeg may take for each second of video, after a first minute; slower files are left out."""
    memory: float = 4.0
    """GiB of address space of one ffmpeg process; files that need more are left out."""

    def __post_init__(self) -> None:
        if not 1 <= self.fps <= 100:
            raise UserError(f"--fps is {self.fps}; it must lie between 1 and 100")
        if self.short_side < 16:
            raise UserError(f"--short-side is {self.short_side}; it must be 16 pixels or more")
        if not 2 <= self.quality <= 31:
            raise UserError(f"--quality is {self.quality}; ffmpeg's JPEG scale goes from 2 (best) to 31")
        for name in ("min_seconds", "max_hours", "patience", "memory"):
            if not 0 < getattr(self, name) <= 1e6:
                raise UserError(f"--{name.replace('_', '-')} is {getattr(self, name):g}; it must be above 0")
        if not -200 <= self.silence <= 0:
            raise UserError(f"--silence is {self.silence:g}; it must lie between -200 and 0 decibels of full scale")

    @property
    def identity(self) -> dict[str, Any]:
        """What shows in the shards; limits of time and memory do not, in those that are made."""
        return {name: value for name, value in asdict(self).items() if name not in ("patience", "memory")}

    @property
    def limits(self) -> Limits:
        """What ffmpeg may take for a video."""
        return Limits(self.patience, self.memory)

    @property
    def silence_peak(self) -> float:
        """The threshold of silence on the 16-bit integer scale."""
        return 32768 * 10 ** (self.silence / 20)


@dataclass(frozen=True)
class Extracted:
    """What one pass yields; frames and samples stay in their files."""

    jpeg: Path
    sizes: np.ndarray
    """Bytes of each frame, int64 [n_frames]."""
    height: int
    width: int
    waveform: Waveform
    """Mono, 24 kHz; empty where there is no sound."""
    note: str
    """The first complaint of the decoder, empty where there was none."""


def require_ffmpeg() -> None:
    """Raise UserError where there is no ffmpeg, or no ffprobe, which comes with it."""
    for name in ("ffmpeg", "ffprobe"):
        if shutil.which(name) is None:
            raise UserError(
                f"{name} is not installed; install it with 'apt-get install ffmpeg' or "
                "'conda install -c conda-forge ffmpeg'"
            )


@dataclass(frozen=True)
class Target:
    """A video and where its frames and sound go."""

    video: Video
    jpeg: Path
    pcm: Path

    @staticmethod
    def within(folder: Path, video: Video) -> Target:
        """Output files in a folder that is made for this video."""
        folder.mkdir()
        return Target(video, folder / "frames.mjpeg", folder / "sound.pcm")

    @property
    def stamps(self) -> Path:
        """Where the frames of sound belong on the clock."""
        return self.pcm.with_suffix(".stamps")

    @property
    def log(self) -> Path:
        """What ffmpeg says."""
        return self.jpeg.with_suffix(".log")


def command(targets: Sequence[Target], settings: Extraction, sound: bool, hdr: bool = False) -> list[str]:
    """The ffmpeg command line of one pass over each of the targets, with or without sound outputs."""
    shrink = f"min(1,{settings.short_side}/min(iw*sar,ih))"
    longest = _LONGEST * settings.short_side
    width, height = (f"max(2,min({longest},2*round({side}*{shrink}/2)))" for side in ("iw*sar", "ih"))
    size = f"w='{width}':h='{height}'"
    filters = [
        "yadif=deint=interlaced",  # only frames that are marked as interlaced
        f"fps=fps={settings.fps}:start_time=0",
    ]
    if hdr:  # on the small frame, which costs little; without it an HDR video looks washed out
        filters += [
            f"scale={size}", "zscale=t=linear:npl=100", "format=gbrpf32le", "zscale=p=bt709", "tonemap=hable:desat=0",
            "zscale=t=bt709:m=bt709:r=tv", "format=yuv420p",
        ]  # fmt: skip
    # what JPEG means by YCbCr, whatever the video was coded in
    filters += [f"scale={size}:out_color_matrix=bt601:out_range=pc", "setsar=1"]
    outputs = []
    for target, source in zip(targets, _inputs(targets), strict=True):
        video = target.video
        chain = [*filters[:2], *_select(_stretches(video, settings), settings.fps), *filters[2:]]
        limit = _end(video, settings)
        outputs.append(
            ffmpeg.output(
                source["V:0"], str(target.jpeg), vf=",".join(chain), filter_threads=1, threads=1, format="image2pipe",
                vcodec="mjpeg", pix_fmt="yuvj420p", flags="+bitexact", t=limit, **{"q:v": settings.quality},
            )
        )  # fmt: skip
        if sound:
            outputs += _sound(source["a:0"], target, round(limit * SAMPLE_RATE))
    return _compiled(ffmpeg.merge_outputs(*outputs))


def _sound(source: Any, target: Target, limit: int) -> list[Any]:
    """All samples of the sound, one after the other, and the time stamps of its frames: what `put_on_clock` needs.

    A single stamp may be wrong. So the sound ends where its stamps have been beyond the limit for a second, not at the
    first that is, as `t` would have it. And no muxer may see a stamp that goes back, which ffmpeg would rewrite: the
    samples are stamped by their count, and the others come as the presentation times of packets whose decoding times
    are their numbers, with so much taken off that they lie before any stamp.
    """
    within = f"st(0,if(lt(PTS,{limit}),N,ld(0)))"  # samples before the last frame that begins within the limit
    ended = f"asetpts='PTS+{_NEVER}*gt(N-{within},{SAMPLE_RATE})',atrim=end_pts={_NEVER // 2}"
    chain = f"aresample={SAMPLE_RATE},{ended},atrim=end_sample={2 * limit}"  # stamps may stand still
    forward = "setts=ts='if(N,max(PREV_OUTPTS+1,PTS),0)'"  # where the format changes, filters count anew
    apart = f"setts=pts=PTS:dts=N-{_NEVER}"
    mono = {"acodec": "pcm_s16le", "ac": 1}
    samples = {"format": "s16le", "af": f"{chain},asetpts=N", "bsf:a": forward}
    stamps = {"format": "framecrc", "af": chain, "bsf:a": apart, "frames:a": _MOST_STAMPS}
    return [
        ffmpeg.output(source, str(target.pcm), **mono, **samples),
        ffmpeg.output(source, str(target.stamps), **mono, **stamps),
    ]


def _inputs(targets: Sequence[Target]) -> list[Any]:
    """The videos as ffmpeg opens them.

    `file:` and the whitelists (no playlists, no network) keep names and contents from making it open anything else.
    """
    sources = []
    for target in targets:
        video = target.video
        cut: dict[str, Any] = {"thread_queue_size": _QUEUE} if len(targets) > 1 else {}
        if video.segment:
            cut["ss"] = video.segment[0]  # `t` would end the sound at its first stamp beyond
        options = {"threads": 1, "protocol_whitelist": "file", "format_whitelist": _FORMATS} | cut
        sources.append(ffmpeg.input(f"file:{video.path}", **options))
    return sources


def _compiled(outputs: Any) -> list[str]:
    """The command line of these outputs; what the streams are is said at level info, each line with its level."""
    told = ("-nostdin", "-hide_banner", "-nostats", "-loglevel", "level+info", "-progress", "pipe:1")
    return [*dies_with_parent(), *ffmpeg.compile(outputs.global_args(*told), overwrite_output=True)]


def _select(stretches: Sequence[tuple[float, float]], fps: int) -> list[str]:
    """Filters that keep the frames of the stretches, and close the gaps between them."""
    if not stretches:
        return []
    kept = "+".join(f"between(n,{round(a * fps)},{round(b * fps) - 1})" for a, b in stretches)
    return [f"select='{kept}'", f"setpts=N/({fps}*TB)"]


def _stretches(video: Video, settings: Extraction) -> list[tuple[float, float]]:
    """The stretches to keep, as far as the video is read; of picture and sound alike."""
    limit = _seconds_limit(video.path, settings)
    kept = [(begin, min(end, limit)) for begin, end in video.stretches if begin < limit]
    return kept if kept or not video.stretches else [(0.0, 0.1)]


def _seconds_limit(path: Path, settings: Extraction) -> float:
    """Seconds at which a video is cut: a small file with huge time stamps would be hours of one repeated frame."""
    size = max(0, size_of(path))
    return min(settings.max_hours * 3600, 60 + size // _LEAST_BYTES)


def _end(video: Video, settings: Extraction) -> float:
    """Seconds at which a video, or its segment, is cut."""
    limit = _seconds_limit(video.path, settings)
    return min(limit, video.segment[1] - video.segment[0]) if video.segment else limit


@cache
def _has_tonemap() -> bool:
    """Whether this ffmpeg can show HDR on an ordinary screen (built with libzimg)."""
    listed = subprocess.run(["ffmpeg", "-hide_banner", "-filters"], capture_output=True, text=True, check=False).stdout
    return " zscale " in listed and " tonemap " in listed


def groups(videos: Sequence[Video]) -> Iterator[list[Video]]:
    """Runs of small files that one ffmpeg process decodes together: its start costs more than a small file does."""
    group: list[Video] = []
    total = 0
    for video in videos:
        size = max(0, size_of(video.path))
        if group and (len(group) == _GROUP or total + size > _GROUP_BYTES):
            yield group
            group, total = [], 0
        group.append(video)
        total += size
    if group:
        yield group


def extract_group(targets: Sequence[Target], settings: Extraction) -> list[Extracted | Rejected]:
    """Decode several videos in one process; if anything is amiss, each alone, so that none suffers for another."""
    # a segment is looked at alone: whether it has to be cut out depends on the file's length
    if len(targets) > 1 and all(size_of(target.video.path) > 0 and not target.video.segment for target in targets):
        outputs = [path for target in targets for path in (target.jpeg, target.pcm)]
        try:
            log = run(command(targets, settings, sound=True), settings.limits, targets[0].log, *outputs)
            fine = not log.complaints and not log.hdr and all(map(_has_bytes, outputs))
        except Rejected:
            fine = False
        if fine:
            return [_attempt(_collect, target, settings, []) for target in targets]
    return [_attempt(_extract, target, settings) for target in targets]


def _attempt(step: Callable[..., Extracted], *arguments: Any) -> Extracted | Rejected:
    try:
        return step(*arguments)
    except Rejected as reason:
        return reason


def _extract(target: Target, settings: Extraction) -> Extracted:
    """Decode one video. Raises Rejected with a reason where nothing usable comes out."""
    path = target.video.path
    if (size := size_of(path)) < 0:
        raise Rejected(_why_not_opened(path))
    if size == 0:
        raise Rejected("the file is empty")
    target = _with_its_segment(target, settings)

    def decode(sound: bool, hdr: bool = False) -> Log:
        return run(command([target], settings, sound, hdr), settings.limits, target.log, target.jpeg, target.pcm)

    log, sound = decode(sound=True), True
    complaints = log.complaints
    if complaints and not _has_bytes(target.jpeg):
        # no sound, or none that can be decoded: trying again is cheaper than probing every video beforehand
        with_sound = complaints
        log, sound = decode(sound=False), False
        complaints = log.complaints
        if any("matches no streams" in line for line in complaints):
            raise Rejected("there is no video stream in it")
        if _has_bytes(target.jpeg) and not any("matches no streams" in line for line in with_sound):
            complaints = [f"its sound cannot be decoded: {_reason(with_sound)}", *complaints]
    # as where sound changes its rate or its channels on the way: ffmpeg starts its filters anew
    complaints = [line for line in complaints if _OUT_OF_ORDER not in line]
    if log.hdr and _has_bytes(target.jpeg):
        mapped = decode(sound, hdr=True) if _has_tonemap() else None
        if mapped is None:
            complaints = [*complaints, "HDR without tone mapping: this ffmpeg has no zscale filter"]
        elif not _has_bytes(target.jpeg):  # as where the file does not say which colours it is coded in
            decode(sound)
            complaints = [*complaints, f"HDR without tone mapping: {_reason(mapped.complaints)}"]
    if not _has_bytes(target.jpeg):
        raise Rejected(f"ffmpeg cannot decode it: {_reason(complaints)}")
    return _collect(target, settings, complaints)


def _why_not_opened(path: Path) -> str:
    try:
        what = kind(path)
    except UserError as error:
        return str(error)
    return "the file does not exist" if what == "missing" else f"it is {what}, not a file"


def _with_its_segment(target: Target, settings: Extraction) -> Target:
    """Forget the segment of a file that is no longer than the segment: somebody has cut it out already."""
    video = target.video
    if video.segment is None:
        return target
    begin, end = video.segment
    probe = ["ffprobe", "-hide_banner", "-loglevel", "level+info", "-protocol_whitelist", "file"]
    probe += ["-format_whitelist", _FORMATS, f"file:{video.path}"]
    seconds = run([*dies_with_parent(), *probe], settings.limits, target.log).seconds
    original = seconds > max(end - begin + 2, begin + 1)
    return target if original else replace(target, video=replace(video, segment=None))


def _collect(target: Target, settings: Extraction, complaints: list[str]) -> Extracted:
    """Metric what ffmpeg wrote."""
    sizes = frame_sizes(target.jpeg)
    seconds = len(sizes) / settings.fps
    if seconds < settings.min_seconds:
        reason = f"; {_reason(complaints)}" if complaints else ""
        raise Rejected(f"only {seconds:.2f} s of it can be decoded, {settings.min_seconds:g} s are needed" + reason)
    if not complaints and seconds >= (limit := _seconds_limit(target.video.path, settings)):
        rule = "--max-hours" if limit == settings.max_hours * 3600 else "its file is too small for more"
        complaints = [f"cut at {limit:g} s ({rule})"]
    with target.jpeg.open("rb") as file:
        width, height = Image.open(io.BytesIO(file.read(int(sizes[0])))).size
    if _has_bytes(target.pcm):
        put_on_clock(target.pcm, target.stamps, round(_end(target.video, settings) * SAMPLE_RATE))
        target.stamps.unlink()
        if stretches := _stretches(target.video, settings):  # what `_select` keeps of the picture
            rearrange(target.pcm, [(0, round(a * SAMPLE_RATE), round(b * SAMPLE_RATE)) for a, b in stretches])
    return Extracted(target.jpeg, sizes, height, width, Waveform(target.pcm), _reason(complaints) if complaints else "")


def frame_sizes(path: Path) -> np.ndarray:
    """Bytes of each of the JPEGs that lie one after another in a file: int64 [n]; a cut last one is left out.

    A frame ends where an end marker is followed by a start marker; inside a frame, 0xff is never followed by either.
    """
    ends = [0]
    position, tail = 0, b""
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            data = tail + block
            found = data.find(b"\xff\xd9\xff\xd8")
            while found >= 0:
                ends.append(position + found + 2)
                found = data.find(b"\xff\xd9\xff\xd8", found + 2)
            tail = data[-3:]  # a marker may lie across two blocks
            position += len(data) - len(tail)
    if tail[-2:] == b"\xff\xd9":
        ends.append(position + len(tail))
    return np.diff(np.asarray(ends, np.int64))


def pixel_sums(jpeg: Path, sizes: np.ndarray, every: int) -> np.ndarray:
    """Per channel (pixels, sum, sum of squares) over every `every`-th frame, 0-255 scale: int64 [3, 3], exact."""
    sums = np.zeros((3, 3), np.int64)
    starts = np.concatenate([[0], np.cumsum(sizes)])
    with jpeg.open("rb") as file:
        for frame in range(0, len(sizes), every):
            file.seek(starts[frame])
            image = Image.open(io.BytesIO(file.read(int(sizes[frame])))).convert("RGB")
            histogram = np.asarray(image.histogram(), np.int64).reshape(3, 256)
            value = np.arange(256)
            sums += np.stack([histogram.sum(1), histogram @ value, histogram @ value**2], 1)
    return sums


def _has_bytes(path: Path) -> bool:
    return path.is_file() and path.stat().st_size > 0


def _reason(complaints: list[str]) -> str:
    """The first complaint."""
    if not complaints:
        return "no frame comes out"
    return complaints[0][:200]
