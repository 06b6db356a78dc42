"""Align sound to the presentation clock: insert silence where time stamps leave a gap, and cut samples where they
overlap.

ffmpeg's `aresample=async=1` sees one time stamp at a time, so it cannot tell a gap from jitter: it ignores gaps below
0.1 s, and with a lower threshold it inserts and drops samples several times a second where stamps jitter, as in screen
and webcam recordings. Here all stamps are known: a lasting offset is a gap, a temporary one is jitter.
"""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from scipy.ndimage import median_filter

from gdt.preprocess.logmel import SAMPLE_RATE

_TOLERANCE = SAMPLE_RATE * 15 // 1000
"""Tolerated offset between sound and stamps, samples: half a video frame, as codecs and containers may add another."""
_LASTING = SAMPLE_RATE // 2
"""Duration from which an offset counts as a gap, samples."""
_MIN_STAMPS = 4
_MAX_STAMPS = 50
"""Bounds of _LASTING in stamps: sounds have from eight to hundreds per second."""
_BYTES = 1 << 22

Piece = tuple[int, int, int]
"""Silence to insert, then start and stop of the sound that follows it; all in samples."""


def put_on_clock(pcm: Path, stamps: Path, limit: int) -> None:
    """Move the int16 samples of a file to the time stamps of their frames, from ffmpeg's `framecrc`.

    Samples beyond `limit` are cut.
    """
    with stamps.open() as lines:  # none, of which NumPy would warn, if ffmpeg failed between the two outputs
        empty = all(line.startswith("#") for line in lines)
    rows = () if empty else np.loadtxt(stamps, np.int64, delimiter=",", usecols=(2, 3), ndmin=2)
    pts, count = np.array(rows, np.int64).reshape(-1, 2).T
    samples = pcm.stat().st_size // 2
    end = np.minimum(np.cumsum(count), samples)  # fewer samples, if ffmpeg failed between the two outputs
    count = np.diff(end, prepend=0)
    pts = pts[count > 0]
    count = count[count > 0]
    unchanged = [(0, 0, samples)]
    on_clock = unchanged
    if len(pts):
        count[-1] += samples - end[-1]  # more samples, if ffmpeg reached its limit of stamps
        on_clock = pieces(pts, count)
    kept = cut(limit, on_clock)
    if kept != unchanged:
        rearrange(pcm, kept)


def cut(limit: int, on_clock: Iterable[Piece]) -> list[Piece]:
    """The pieces within the first `limit` samples on the clock."""
    kept: list[Piece] = []
    written = 0
    for silence, start, stop in on_clock:
        stop = min(stop, start + limit - written - silence)
        if start < stop:
            kept.append((silence, start, stop))
        written += silence + max(0, stop - start)
    return kept


def pieces(pts: np.ndarray, count: np.ndarray) -> list[Piece]:
    """The pieces of the sound on the clock, from the time stamps and lengths of its frames, int64 [n], in samples.

    A running median of the offset between stamps and samples removes jitter and keeps steps in place. Odd reflection at
    both ends preserves gaps near them.
    """
    end = np.cumsum(count)
    begin = end - count
    half = int(np.clip(_LASTING * len(count) // max(end[-1], 1), _MIN_STAMPS, _MAX_STAMPS))
    mirrored = np.pad(pts - begin, half, mode="reflect", reflect_type="odd")
    offset = median_filter(mirrored, 2 * half + 1)[half:-half]
    first = [0]  # frames at which the offset steps, so that a piece begins
    held = offset[0]
    for k, now in enumerate(offset):
        if abs(now - held) > _TOLERANCE:
            first.append(k)
            held = now
    on_clock: list[Piece] = []
    written = 0
    for k, after in zip(first, [*first[1:], len(count)], strict=True):
        silence = max(0, begin[k] + offset[k] - written)
        start = max(begin[k], written - offset[k])
        stop = end[after - 1]
        if start < stop:
            on_clock.append((int(silence), int(start), int(stop)))
            written += silence + stop - start
    return on_clock


def rearrange(pcm: Path, kept: Iterable[Piece]) -> None:
    """Rewrite a file of int16 samples from pieces of it."""
    original = pcm.with_suffix(".whole")
    pcm.rename(original)
    with original.open("rb") as source, pcm.open("wb") as target:
        for silence, start, stop in kept:
            for block in range(0, 2 * silence, _BYTES):
                target.write(bytes(min(_BYTES, 2 * silence - block)))
            source.seek(2 * start)
            remaining = 2 * (stop - start)
            while remaining and (samples := source.read(min(_BYTES, remaining))):
                target.write(samples)
                remaining -= len(samples)
    original.unlink()
