"""What of a file is decoded: the streams that ffmpeg itself takes, but picture and sound of one program."""

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from gdt.preprocess import ffmpeg
from gdt.preprocess.ffmpeg import Extraction, Target
from gdt.preprocess.process import Rejected, run

_DEFAULT = 5_000_000
"""What ffmpeg adds to the pixels or channels of a default stream."""
_ROUNDED = 1.05
"""Factor by which a measured rate may be too high, since time stamps are rounded."""
_HDR = re.compile(r"\b(smpte2084|arib-std-b67)\b")
_RATE = re.compile(r" ([\d.]+k?) (?:fps|tbr)\b")
"""The average rate of frames, if it is known, and ffmpeg's guess."""


def is_odd(streams: Sequence[str], fps: int) -> bool:
    """Whether some of these streams, as ffmpeg describes them, are HDR or have a doubtful rate."""
    for description in streams:
        fast = [float(rate.replace("k", "e3")) > 2 * fps for rate in _RATE.findall(description)]
        if fast == [True] or len(set(fast)) > 1 or _HDR.search(description):
            return True
    return False


def choose(target: Target, settings: Extraction) -> Target:
    """The target with its streams, after a look at the file. Raises Rejected if there are none.

    Without its segment if the file declares to be hardly longer, because it was already cut out; not if it is `uncut`.
    """
    contents = _contents(target, settings)
    if not contents:  # ffmpeg will say why
        return replace(target, frames=1)
    streams = [stream for stream in contents["streams"] if not stream["disposition"]["attached_pic"]]
    pictures = [stream for stream in streams if stream.get("codec_type") == "video"]
    sounds = [stream for stream in streams if stream.get("codec_type") == "audio"]
    if target.file.suffix.lower() == ".ogg" and not pictures:  # it may be either
        target = replace(target, pictures=False)
    if not (pictures if target.pictures else sounds):
        instead = "; if it is a sound, rename it to .mka" if sounds else ""
        raise Rejected(f"there is no video stream in it{instead}" if target.pictures else "there is no sound in it")
    picture = _best(pictures)
    with_picture: set[int] = set()  # the streams of the programs that the picture is in
    for program in contents["programs"]:
        indices = {stream["index"] for stream in program["streams"]}
        if picture.get("index") in indices:
            with_picture |= indices
    of_picture = [stream for stream in sounds if not with_picture or stream["index"] in with_picture]
    known = [stream for stream in of_picture if stream.get("codec_name", "unknown") not in ("none", "unknown")]
    sound = _best(known or of_picture)
    notes = [
        f"it has {len(several)} {name} streams (#{best.get('index', 'none')} is used)"
        for name, several, best in (("video", pictures, picture), ("audio", sounds, sound))
        if len(several) > 1
    ]
    frames = [packet for packet in contents["packets"] if packet["stream_index"] == (picture or sound).get("index")]
    hdr = bool(_HDR.search(picture.get("color_transfer", "")))
    lacks_filter = hdr and not ffmpeg.has_tonemap()
    if lacks_filter:
        notes.insert(0, "HDR without tone mapping: this ffmpeg has no zscale filter")
    video = target.video
    if video.segment and not video.uncut:
        begin, end = video.segment
        duration = float(contents["format"].get("duration", "inf"))
        if duration <= end - begin + 2:
            if video.shared:
                raise Rejected("it was cut out of its video, and may be any of several segments; name it <id>_<start>")
            video = replace(video, segment=None)  # it was cut out
        elif duration <= begin + 1:
            raise Rejected(
                f"it lasts {duration:.0f} s: too long for its segment of {end - begin:g} s alone, too short for the "
                f"video in which that begins at {begin:g} s"
            )
    return replace(
        target,
        video=video,
        without_index=not ffmpeg.WITHOUT_INDEX.isdisjoint(contents["format"].get("format_name", "").split(",")),
        picture=f"V:{pictures.index(picture)}" if picture else target.picture,
        sound=f"a:{sounds.index(sound)}" if sound else "",
        hdr=hdr and not lacks_filter,
        fast=_is_fast(frames, settings.fps) if picture else None,
        frames=max(1, len(frames)),
        note="; ".join(notes),
    )


def _contents(target: Target, settings: Extraction) -> dict[str, Any]:
    """What ffprobe says of a file: duration, streams, programs, first packets; empty if it cannot read the file."""
    report = target.pcm.with_suffix(".json")
    run(ffmpeg.probe(target, report, settings), settings.limits, target.log, report)
    try:
        return dict(json.loads(report.read_bytes()))
    except (OSError, ValueError):
        return {}
    finally:
        report.unlink(missing_ok=True)


def _best(streams: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The stream that ffmpeg takes: that of most pixels or channels, or the default one; of equal ones the first."""

    def score(stream: dict[str, Any]) -> int:
        size = stream.get("width", 0) * stream.get("height", 0) + stream.get("channels", 0)
        return int(size + _DEFAULT * stream["disposition"]["default"])

    return max(streams, key=score, default={})


def _is_fast(frames: Sequence[dict[str, Any]], fps: int) -> bool | None:
    """Whether the frames, as packets, are more than `fps` * 2 per second; None without time stamps."""
    times = [float(packet["dts_time"]) for packet in frames if "dts_time" in packet]
    if len(times) < 2 or times[0] >= times[-1]:
        return None
    return (len(times) - 1) / (times[-1] - times[0]) > 2 * _ROUNDED * fps
