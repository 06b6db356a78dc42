"""One ffmpeg process, one pass over one video: 30-fps JPEG frames and the 24 kHz waveform.

Both are aligned to the presentation clock: a stream that starts late is padded in front (the picture with its first
frame, the sound with silence), what lies before time 0 is cut.
"""

from __future__ import annotations

import io
import mmap
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ffmpeg
import numpy as np
from PIL import Image

from pipeline.errors import UserError
from preprocess.logmel import SAMPLE_RATE

_INTERRUPTED = 255  # ffmpeg's exit status after SIGINT or SIGTERM
_FORMATS = "asf,avi,flv,h264,hevc,ivf,m4v,matroska,mjpeg,mov,mpeg,mpegts,mpegvideo,mxf,nut,ogg,rm,webm_dash_manifest"
_GROUP = 16
_GROUP_BYTES = 4 << 20


class Rejected(Exception):
    """This video cannot be used; the message is the reason a person reads in rejected.jsonl."""


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
    timeout: float = 1800.0
    """Seconds after which ffmpeg is stopped on a video, which is then left out."""

    def __post_init__(self) -> None:
        if not 1 <= self.fps <= 100:
            raise UserError(f"--fps is {self.fps}; it must lie between 1 and 100")
        if self.short_side < 16:
            raise UserError(f"--short-side is {self.short_side}; it must be 16 pixels or more")
        if not 2 <= self.quality <= 31:
            raise UserError(f"--quality is {self.quality}; ffmpeg's JPEG scale goes from 2 (best) to 31")


@dataclass(frozen=True)
class Extracted:
    """What one pass yields; the frames stay in their file."""

    jpeg: Path
    sizes: np.ndarray
    """Bytes of each frame, int64 [n_frames]."""
    height: int
    width: int
    waveform: np.ndarray
    """int16 [samples], mono, 24 kHz; empty where there is no sound."""
    note: str
    """The first complaint of the decoder, empty where there was none."""


def require_ffmpeg() -> None:
    """Raise UserError where there is no ffmpeg."""
    if shutil.which("ffmpeg") is None:
        raise UserError(
            "ffmpeg is not installed; install it with 'apt-get install ffmpeg' or 'conda install -c conda-forge ffmpeg'"
        )


@dataclass(frozen=True)
class Target:
    """A video and where its frames and sound go."""

    video: Path
    jpeg: Path
    pcm: Path

    @staticmethod
    def within(folder: Path, video: Path) -> Target:
        """Output files in a folder that is made for this video."""
        folder.mkdir()
        return Target(video, folder / "frames.mjpeg", folder / "sound.pcm")


def command(targets: Sequence[Target], settings: Extraction, sound: bool) -> list[str]:
    """The ffmpeg command line of one pass over each of the targets, with or without sound outputs."""
    shrink = f"min(1,{settings.short_side}/min(iw*sar,ih))"
    picture = (
        f"fps=fps={settings.fps}:start_time=0,"
        f"scale=w='max(2,2*round(iw*sar*{shrink}/2))':h='max(2,2*round(ih*{shrink}/2))'"
        ":out_color_matrix=bt601:out_range=pc,"  # what JPEG means by YCbCr, whatever the video was coded in
        "setsar=1"
    )
    outputs = []
    for target in targets:
        # `file:` and the whitelists (no playlists, no network) keep names and contents from making ffmpeg open
        # anything but this file
        source = ffmpeg.input(f"file:{target.video}", threads=1, protocol_whitelist="file", format_whitelist=_FORMATS)
        outputs.append(
            ffmpeg.output(
                source["V:0"], str(target.jpeg), vf=picture, filter_threads=1, threads=1, format="image2pipe",
                vcodec="mjpeg", pix_fmt="yuvj420p", flags="+bitexact", **{"q:v": settings.quality},
            )
        )  # fmt: skip
        if sound:
            # async: gaps in the time stamps become silence, so that sound and picture stay together to the end
            resample = f"aresample={SAMPLE_RATE}:async=1:first_pts=0"
            outputs.append(
                ffmpeg.output(source["a:0"], str(target.pcm), af=resample, format="s16le", acodec="pcm_s16le", ac=1)
            )
    graph = ffmpeg.merge_outputs(*outputs).global_args("-nostdin", "-hide_banner", "-loglevel", "error")
    return ffmpeg.compile(graph, overwrite_output=True)


def groups(videos: Sequence[Path]) -> Iterator[list[Path]]:
    """Runs of small files that one ffmpeg process decodes together: its start costs more than a small file does."""
    group: list[Path] = []
    total = 0
    for video in videos:
        size = video.stat().st_size if video.is_file() else 0
        if group and (len(group) == _GROUP or total + size > _GROUP_BYTES):
            yield group
            group, total = [], 0
        group.append(video)
        total += size
    if group:
        yield group


def extract_group(targets: Sequence[Target], settings: Extraction) -> list[Extracted | Rejected]:
    """Decode several videos in one process; if anything is amiss, each alone, so that none suffers for another."""
    if len(targets) > 1 and all(target.video.is_file() for target in targets):
        outputs = [path for target in targets for path in (target.jpeg, target.pcm)]
        try:
            complaints = _run(command(targets, settings, sound=True), settings.timeout * len(targets), *outputs)
        except Rejected as reason:
            complaints = [str(reason)]
        if not complaints and all(map(_has_bytes, outputs)):
            return [_attempt(_collect, target, settings, []) for target in targets]
    return [_attempt(_extract, target, settings) for target in targets]


def _attempt(step: Callable[..., Extracted], *arguments: Any) -> Extracted | Rejected:
    try:
        return step(*arguments)
    except Rejected as reason:
        return reason


def _extract(target: Target, settings: Extraction) -> Extracted:
    """Decode one video. Raises Rejected with a reason where nothing usable comes out."""
    if not target.video.is_file():
        raise Rejected("the file does not exist")
    if target.video.stat().st_size == 0:
        raise Rejected("the file is empty")
    outputs = (target.jpeg, target.pcm)
    complaints = _run(command([target], settings, sound=True), settings.timeout, *outputs)
    if complaints and not _has_bytes(target.jpeg):
        # no sound, or none that can be decoded: trying again is cheaper than probing every video beforehand
        with_sound = complaints
        complaints = _run(command([target], settings, sound=False), settings.timeout, *outputs)
        if any("matches no streams" in line for line in complaints):
            raise Rejected("there is no video stream in it")
        if _has_bytes(target.jpeg) and not any("matches no streams" in line for line in with_sound):
            complaints.insert(0, f"its sound cannot be decoded: {_reason(with_sound)}")
    if not _has_bytes(target.jpeg):
        raise Rejected(f"ffmpeg cannot decode it: {_reason(complaints)}")
    return _collect(target, settings, complaints)


def _collect(target: Target, settings: Extraction, complaints: list[str]) -> Extracted:
    """Measure what ffmpeg wrote."""
    jpeg, pcm = target.jpeg, target.pcm
    with jpeg.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        sizes = frame_sizes(data)
        width, height = Image.open(io.BytesIO(data[: sizes[0]])).size if len(sizes) else (0, 0)
    if len(sizes) < settings.min_seconds * settings.fps:
        reason = f"; {_reason(complaints)}" if complaints else ""
        raise Rejected(
            f"only {len(sizes) / settings.fps:.2f} s of it can be decoded, {settings.min_seconds:g} s are needed"
            + reason
        )
    waveform = np.memmap(pcm, np.int16, "r") if _has_bytes(pcm) else np.zeros(0, np.int16)
    return Extracted(jpeg, sizes, height, width, waveform, _reason(complaints) if complaints else "")


def frame_sizes(data: mmap.mmap | bytes) -> np.ndarray:
    """Bytes of each of the JPEGs that lie one after another in `data`: int64 [n]; a cut last one is left out.

    A frame ends where an end marker is followed by a start marker; inside a frame, 0xff is never followed by either.
    """
    ends = []
    position = data.find(b"\xff\xd9\xff\xd8")
    while position >= 0:
        ends.append(position + 2)
        position = data.find(b"\xff\xd9\xff\xd8", position + 2)
    if data[-2:] == b"\xff\xd9":
        ends.append(len(data))
    return np.diff(np.asarray([0, *ends], np.int64))


def pixel_sums(jpeg: Path, sizes: np.ndarray, every: int) -> np.ndarray:
    """Per channel (pixels, sum, sum of squares) over every `every`-th frame, 0-255 scale: float64 [3, 3], exact."""
    sums = np.zeros((3, 3), np.int64)
    starts = np.concatenate([[0], np.cumsum(sizes)])
    with jpeg.open("rb") as file:
        for frame in range(0, len(sizes), every):
            file.seek(starts[frame])
            image = Image.open(io.BytesIO(file.read(int(sizes[frame])))).convert("RGB")
            histogram = np.asarray(image.histogram(), np.int64).reshape(3, 256)
            value = np.arange(256)
            sums += np.stack([histogram.sum(1), histogram @ value, histogram @ value**2], 1)
    return sums.astype(np.float64)


def _has_bytes(path: Path) -> bool:
    return path.is_file() and path.stat().st_size > 0


def _run(arguments: list[str], timeout: float, *outputs: Path) -> list[str]:
    for output in outputs:
        output.unlink(missing_ok=True)
    try:
        done = subprocess.run(arguments, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=timeout, check=False)
    except subprocess.TimeoutExpired as error:
        raise Rejected(f"ffmpeg did not finish within {timeout:g} s") from error
    if done.returncode < 0 or done.returncode == _INTERRUPTED:
        # what it wrote may be cut, and the video is not to blame: no shard is made of it
        raise UserError(
            "ffmpeg was stopped from outside (by a signal, or for lack of memory); run the same command again, "
            "with fewer --workers if memory ran out"
        )
    lines = done.stderr.decode(errors="replace").splitlines()
    if any("No space left on device" in line for line in lines):
        raise UserError(f"no space left on the disk of {outputs[0].parent}; free some and run the same command again")
    complaints = [line.strip() for line in lines if line.strip()]
    return complaints or ([f"ffmpeg ended with status {done.returncode}"] if done.returncode else [])


def _reason(complaints: list[str]) -> str:
    """The first complaint, without ffmpeg's addresses in memory and our own file names."""
    if not complaints:
        return "no frame comes out"
    line = complaints[0]
    line = line.split("] ", 1)[1] if line.startswith("[") and "] " in line else line
    if line.startswith("file:"):
        line = line.rsplit(": ", 1)[-1]
    return line[:200]
