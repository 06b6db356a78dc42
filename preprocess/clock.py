"""Sound on the presentation clock: silence where its time stamps leave a gap, samples left out where they overlap.

ffmpeg's own way (`aresample=async=1`) takes one time stamp after the other and cannot tell a gap from a stamp that is
merely late. It swallows gaps below its threshold of 0.1 s; with a lower one it fills and drops several times a second
where packets are stamped as they come, as by screen recorders and web cameras. Here the stamps that follow are known:
what lasts is a gap, what returns is jitter.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from gdt.preprocess.logmel import SAMPLE_RATE

_TOLERANCE = SAMPLE_RATE * 15 // 1000
"""Samples that the sound may be off its stamps: half a frame, since codecs and containers are off by up to the rest."""
_LASTING = SAMPLE_RATE // 2
"""Samples for which the stamps must be off to be believed."""
_LEAST, _MOST = 4, 50
"""Stamps that this is at least and at most: some sounds have eight in a second, others hundreds."""
_ROWS = 1 << 14
_BYTES = 1 << 22

Piece = tuple[int, int, int]
"""Samples of silence, and where the sound after it begins and ends, in samples."""


def put_on_clock(pcm: Path, stamps: Path, most: int) -> None:
    """Move the int16 samples of a file to where the time stamps of their frames, from ffmpeg's `framecrc`, put them.

    What comes to lie after that many samples is cut.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # there are none where ffmpeg failed between the two
        pts, count = np.loadtxt(stamps, np.int64, delimiter=",", usecols=(2, 3), ndmin=2).reshape(-1, 2).T
    samples = pcm.stat().st_size // 2
    end = np.minimum(np.cumsum(count), samples)  # there are fewer where ffmpeg failed between the two
    count = np.diff(end, prepend=0)
    pts, count = pts[count > 0], count[count > 0]
    if len(pts):
        count[-1] += samples - end[-1]  # there are more where ffmpeg was told to write no more stamps
        found = until(most, pieces(pts, count))
    else:
        found = until(most, [(0, 0, samples)])
    if found != [(0, 0, samples)]:
        rearrange(pcm, found)


def until(most: int, found: Iterable[Piece]) -> list[Piece]:
    """The pieces of the first so many samples on the clock."""
    kept: list[Piece] = []
    written = 0
    for silence, start, stop in found:
        stop = min(stop, start + most - written - silence)
        if start < stop:
            kept.append((silence, start, stop))
        written += silence + max(0, stop - start)
    return kept


def pieces(pts: np.ndarray, count: np.ndarray) -> list[Piece]:
    """What the sound on the clock is made of, by the time stamps int64 [n] of its frames and their lengths, in samples.

    A running median of how far the stamps are from the samples before them passes over what does not last, and keeps
    steps where they are. At both ends the stamps are mirrored at a point, so that a gap close to an end is kept too.
    """
    end = np.cumsum(count)
    begin = end - count
    half = int(np.clip(_LASTING * len(count) // max(end[-1], 1), _LEAST, _MOST))
    mirrored = np.pad(pts - begin, half, mode="reflect", reflect_type="odd")
    windows = np.lib.stride_tricks.sliding_window_view(mirrored, 2 * half + 1)
    blocks = (windows[k : k + _ROWS] for k in range(0, len(windows), _ROWS))  # the median copies what it is given
    offset = np.concatenate([np.median(block, axis=1).astype(np.int64) for block in blocks])
    first, held = [0], offset[0]
    for k, now in enumerate(offset):
        if abs(now - held) > _TOLERANCE:
            first.append(k)
            held = now
    found: list[Piece] = []
    written = 0
    for k, after in zip(first, [*first[1:], len(count)], strict=True):
        silence = max(0, begin[k] + offset[k] - written)
        start, stop = max(begin[k], written - offset[k]), end[after - 1]
        if start < stop:
            found.append((int(silence), int(start), int(stop)))
            written += silence + stop - start
    return found


def rearrange(pcm: Path, found: Iterable[Piece]) -> None:
    """Make a file of int16 samples anew from pieces of it."""
    whole = pcm.with_suffix(".whole")
    pcm.rename(whole)
    with whole.open("rb") as source, pcm.open("wb") as kept:
        for silence, start, stop in found:
            kept.seek(2 * silence, os.SEEK_CUR)  # what is passed over is zero
            source.seek(2 * start)
            remaining = 2 * (stop - start)
            while remaining and (block := source.read(min(_BYTES, remaining))):
                kept.write(block)
                remaining -= len(block)
    whole.unlink()
