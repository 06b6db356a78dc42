"""Extract frames and sound with ffmpeg, several small files per process."""

import errno
import io
import math
import os
import re
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path

import numpy as np
from PIL import Image

from gdt.common.files import hash_of, kind
from gdt.common.folders import state_of
from gdt.preprocess import ffmpeg
from gdt.preprocess.clock import put_on_clock, rearrange
from gdt.preprocess.ffmpeg import Extraction, Target
from gdt.preprocess.logmel import SAMPLE_RATE, Waveform, peak_levels
from gdt.preprocess.process import Failed, FfmpegLog, Rejected, Unread, run
from gdt.preprocess.streams import choose, is_odd
from gdt.preprocess.videos import ListedVideo

_GROUP = 16
_GROUP_BYTES = 8 << 20
_GROUP_SECONDS = 3.0
_BLOCK = 1 << 24
"""Bytes of frames that are read at once."""
_END = b"\xff\xd9"
"""The end marker of a JPEG."""
_QUIET = -50.0
"""Peak of a mix, dBFS, below which the peaks of its channels are measured."""
_CANCELLED = 30.0
"""A channel replaces the mix if it is louder by this many dB; no ordinary mix attenuates a channel as much."""
_APART = 1.0
"""Seconds between the ends of picture and sound from which a note says so."""
_OUT_OF_ORDER = "non monotonically increasing dts"
_NEXT_RUN = "the next run tries it again"
_TRANSPORT = {".m2t", ".m2ts", ".mts", ".tp", ".trp", ".ts"}
"""Suffixes of MPEG's transport streams, which may have several programs."""
_READING = [
    os.strerror(number)
    for number in (errno.EIO, errno.EACCES, errno.EPERM, errno.ESTALE, errno.ETIMEDOUT, errno.EREMOTEIO)
]
"""What ffmpeg says where a file cannot be read; also where some files end too early."""


@dataclass(frozen=True)
class Extracted:
    """Output of one pass; frames and samples stay in their files."""

    jpeg: Path
    sizes: np.ndarray
    """Bytes of each frame, int64 [n_frames]."""
    height: int
    width: int
    waveform: Waveform
    """Mono, 24 kHz; empty without sound."""
    note: str
    """First error of the decoder, and what is missing or odd; empty if nothing is."""
    segment: tuple[float, float] | None = None
    """Seconds of the file that were cut out; None for the whole file."""
    suspicious: bool = False
    """Whether the machine may be at fault."""


def groups(videos: Sequence[ListedVideo], files: Sequence[Path]) -> Iterator[list[tuple[ListedVideo, Path]]]:
    """Group consecutive small files for one ffmpeg process, whose start takes longer than decoding a small file.

    Where that takes long, groups become smaller, since progress is reported after each; shards do not depend on them.
    """
    most = _GROUP
    left = deque(zip(videos, files, strict=True))
    while left:
        group: list[tuple[ListedVideo, Path]] = []
        total = 0
        while left and len(group) < most:
            total += max(0, state_of(left[0][1]).size)
            if group and total > _GROUP_BYTES:
                break
            group.append(left.popleft())
        began = time.monotonic()
        yield group
        seconds = time.monotonic() - began  # until the next group is asked for
        if seconds > _GROUP_SECONDS:
            most = max(1, most // 2)
        elif seconds < _GROUP_SECONDS / 2:
            most = min(_GROUP, 2 * most)


def extract_group(targets: Sequence[Target], settings: Extraction) -> list[Extracted | Rejected]:
    """Decode several videos in one process; after an error, each separately, so that a bad one affects no other."""
    together = len(targets) > 1 and all(map(_is_plain, targets))
    if together and _decode_together(targets, settings):
        return [_attempt(_collect, target, settings, []) for target in targets]
    return [_attempt(_extract, target, settings) for target in targets]


def _is_plain(target: Target) -> bool:
    """Whether a video can be decoded without a look at its streams."""
    if state_of(target.file).size <= 0 or target.file.suffix.lower() in _TRANSPORT:
        return False
    return not target.video.segment  # the length of the file decides whether to cut it out


def _decode_together(targets: Sequence[Target], settings: Extraction) -> bool:
    """Decode several videos in one process; whether every one is plain and free of errors."""
    files = [path for target in targets for path in target.files]
    try:
        log = run(ffmpeg.decode_command(targets, settings), settings.limits, targets[0].log, *files)
    except Rejected:
        return False
    plain = len(log.streams) == len(files) and not is_odd(log.streams, settings.fps)
    return plain and not log.errors and all(map(_has_bytes, files))


def _attempt(step: Callable[..., Extracted], *arguments: object) -> Extracted | Rejected:
    try:
        return step(*arguments)
    except Rejected as reason:
        return reason


def _extract(target: Target, settings: Extraction) -> Extracted:
    """Decode one video. Raises Rejected with a reason if there is no usable output."""
    _require_bytes(target)
    target = choose(target, settings)
    log = _decode(target, settings)
    printed = "\n".join(log.errors)
    failure = next((message for message in _READING if message in printed), "")
    if failure:
        if not hash_of(target.file):
            raise Unread(f"it cannot be read ({failure}); {_NEXT_RUN}")
        log = _decode(target, settings)
    trials: list[Target] = []
    if target.pictures and target.sound:
        trials.append(replace(target, sound=""))  # the sound may be undecodable
    if target.hdr:  # the file may not declare its colour space
        trials += [replace(target, hdr=False), replace(target, hdr=False, sound="")]
    attempts = [(target, log.errors)]
    for trial in trials:
        if _has_bytes(target.jpeg):
            break
        attempts.append((trial, _decode(trial, settings).errors))
    used, errors = attempts[-1]
    # ffmpeg restarts its filters where sound changes its rate or channels
    errors = [line for line in errors if _OUT_OF_ORDER not in line]
    if not _has_bytes(target.files[0]):
        raise Failed(f"ffmpeg cannot decode it: {_first(errors)}")
    lost_sound = bool(target.sound and not used.sound)
    if lost_sound:
        errors = [f"its sound cannot be decoded: {_first(log.errors)}", *errors]
    if target.hdr and not used.hdr:
        of_hdr = [said for tried, said in attempts if tried.hdr]
        errors = [*errors, f"HDR without tone mapping: {_first(of_hdr[-1])}"]
    return replace(
        _collect(used, settings, errors),
        suspicious=lost_sound or any(os.strerror(errno.ENOMEM) in error for error in errors[:1]),
    )


def _require_bytes(target: Target) -> None:
    """Raise Rejected unless the file of a video has bytes."""
    size = state_of(target.file).size
    if size < 0:
        if target.video.size >= 0:
            raise Unread(f"the file has disappeared during the run; {_NEXT_RUN}")
        what = kind(target.file)
        raise Rejected("the file does not exist" if what == "missing" else f"it is {what}, not a file")
    if size == 0:
        raise Rejected("the file is empty")


def _decode(target: Target, settings: Extraction) -> FfmpegLog:
    return run(ffmpeg.decode_command([target], settings), settings.limits, target.log, *target.files)


def _collect(target: Target, settings: Extraction, errors: list[str]) -> Extracted:
    """Check and align the output of ffmpeg; decodes anew what was cut for its few bytes, with its frames counted."""
    if not target.pictures:
        target.jpeg.touch()
    sizes = frame_sizes(target.jpeg)
    whole = int(sizes.sum())
    if target.jpeg.stat().st_size > whole:
        os.truncate(target.jpeg, whole)
    peak = _align(target, settings) if _has_bytes(target.pcm) else None
    seconds = len(sizes) / settings.fps if target.pictures else len(Waveform(target.pcm)) / SAMPLE_RATE
    short = seconds < settings.min_seconds
    if short and not (target.video.official and seconds):
        reason = f"it is too short; only {seconds:.2f} s can be decoded, {settings.min_seconds:g} s are needed"
        raise Failed(f"{reason}; {_first(errors)}") if errors else Rejected(reason)
    if short and not errors:
        errors = ["shorter than --min-seconds, kept because its official folds count every video"]
    limit = ffmpeg.max_seconds(target, settings)
    cut = _is_cut(target, settings, seconds)
    rule = "--max-hours"
    if cut and limit < settings.max_hours * 3600:
        if not target.frames:
            return _extract(target, settings)
        rule = f"{ffmpeg.MAX_SHOWN} s for each of its {target.frames} {'frames' if target.pictures else 'packets'}"
    width = 0
    height = 0
    if target.pictures:
        with target.jpeg.open("rb") as file:
            width, height = Image.open(io.BytesIO(file.read(int(sizes[0])))).size
    notes = [*errors[:1], *([f"cut at {limit:g} s ({rule})"] if cut else ()), *filter(None, [target.note])]
    if peak is not None and peak < _QUIET:
        replaced = _use_loudest_channel(target, settings, peak)
        if replaced:
            notes.insert(0, replaced)
    waveform = Waveform(target.pcm)
    if target.pictures and peak is not None and peak > settings.silence_db and not cut:
        longer = len(waveform) / SAMPLE_RATE - seconds
        if longer >= _APART:
            notes.append(f"its picture ends {longer:.1f} s before its sound, whose rest is cut")
        elif longer <= -_APART:
            notes.append(f"its sound ends {-longer:.1f} s before its picture")
    return Extracted(target.jpeg, sizes, height, width, waveform, "; ".join(notes), target.video.segment)


def _is_cut(target: Target, settings: Extraction, seconds: float) -> bool:
    """Whether as many seconds were decoded as the length limit allows, and more may follow."""
    limit = ffmpeg.max_seconds(target, settings)
    kept = ffmpeg.kept_stretches(target, settings)
    if not kept:
        return seconds >= limit
    allowed = sum(end - begin for begin, end in kept)
    return target.video.stretches[-1][1] > limit and seconds >= allowed - 1 / settings.fps


def _align(target: Target, settings: Extraction) -> float:
    """Put the sound on the clock. Returns its peak in dBFS."""
    put_on_clock(target.pcm, target.stamps, round(ffmpeg.end_seconds(target, settings) * SAMPLE_RATE))
    target.stamps.unlink()
    stretches = ffmpeg.kept_stretches(target, settings)
    if stretches:
        rearrange(target.pcm, [(0, round(a * SAMPLE_RATE), round(b * SAMPLE_RATE)) for a, b in stretches])
    return 20 * math.log10(max(1, peak_levels(Waveform(target.pcm)).max(initial=0)) / 32768)


def _use_loudest_channel(target: Target, settings: Extraction, peak: float) -> str:
    """Replace a quiet mix by the loudest channel: channels may cancel out, and ffmpeg leaves out the subwoofer.

    Returns a note, or "" if the channels are as quiet as the mix.
    """
    least = max(peak + _CANCELLED, settings.silence_db)
    only = replace(target, pcm=target.pcm.with_name("channel.pcm"))
    try:
        log = run(ffmpeg.channel_levels(target, settings), settings.limits, target.log)
        loudest, channel = max(log.peaks, key=itemgetter(0), default=(-math.inf, 0))
        if loudest > least:
            run(ffmpeg.one_channel(only, settings, channel), settings.limits, target.log)
            if _has_bytes(only.pcm) and _align(only, settings) > least:  # else it is loud in other parts of the file
                only.pcm.replace(target.pcm)
                return f"its sound is channel {channel + 1} alone, since the mix of all is silent"
    except Rejected:
        pass  # the mix is there
    finally:
        only.pcm.unlink(missing_ok=True)
        only.stamps.unlink(missing_ok=True)
    return ""


def frame_sizes(path: Path) -> np.ndarray:
    """Bytes of each JPEG in a file of concatenated JPEGs, except a truncated last one: int64 [n].

    A frame ends where an end marker is followed by a start marker; within a frame, 0xff is followed by neither.
    """
    ends = [0]
    at = 0
    last = b""  # the end of the block before, where a marker may begin
    with path.open("rb") as file:
        while block := last + file.read(_BLOCK):
            ends += [at + match.end() for match in re.finditer(_END + b"(?=\xff\xd8)", block)]
            if len(block) == len(last):
                break
            last = block[-3:]
            at += len(block) - len(last)
    if last.endswith(_END):
        ends.append(at + len(last))
    return np.diff(np.asarray(ends, np.int64))


def pixel_sums(jpeg: Path, sizes: np.ndarray, every: int) -> np.ndarray:
    """Per channel (pixels, sum, sum of squares) over every `every`-th frame, 0-255 scale: int64 [3, 3], exact."""
    sums = np.zeros((3, 3), np.int64)
    starts = np.concatenate([[0], np.cumsum(sizes)])
    value = np.arange(256)
    with jpeg.open("rb") as file:
        for frame in range(0, len(sizes), every):
            file.seek(starts[frame])
            image = Image.open(io.BytesIO(file.read(int(sizes[frame])))).convert("RGB")
            histogram = np.asarray(image.histogram(), np.int64).reshape(3, 256)
            sums += np.stack([histogram.sum(1), histogram @ value, histogram @ value**2], 1)
    return sums


def _has_bytes(path: Path) -> bool:
    return path.is_file() and path.stat().st_size > 0


def _first(errors: list[str]) -> str:
    return errors[0][:100] if errors else "ffmpeg produced no frames"
