"""The parts of a video that captions cover, and the times of words after the uncovered parts are cut out."""

import math
from collections.abc import Iterable, Sequence

import numpy as np

from gdt.preprocess.captions.readers import Caption
from gdt.preprocess.videos import TimedWords

_SHORTEST = 40
"""Tenths of a second."""


def stretches(captions: Iterable[Caption], gap: float = 2.0) -> tuple[tuple[float, float], ...]:
    """The parts of a video that captions cover: (start, end) in seconds, in order and disjoint.

    Parts less than `gap` seconds apart are merged. Parts shorter than _SHORTEST, the longest text clip, are extended on
    both sides, never before the start of the video but possibly past its end. Starts are rounded down and ends up to
    multiples of 0.1 s, which are whole numbers of log-mel frames (10) and of video frames (3 at 30 fps; fps must be a
    multiple of 10), so that cuts keep video and audio aligned.
    """
    # integer tenths of a second; rounded first, since 10 * (1.1 - 0.2) is a little more than 9
    covered = [
        (max(0, math.floor(round(start * 10, 6))), max(0, math.ceil(round(end * 10, 6)))) for start, end, _ in captions
    ]
    near = math.ceil(round(gap * 10, 6))
    grown = []
    for start, end in _joined(covered, near):
        start = max(0, start - max(0, _SHORTEST - (end - start)) // 2)
        grown.append((start, max(end, start + _SHORTEST)))
    return tuple((start / 10, end / 10) for start, end in _joined(grown, near))


def _joined(parts: Iterable[tuple[int, int]], near: int) -> list[tuple[int, int]]:
    """The union of parts; those that touch or are less than `near` apart are merged."""
    joined: list[tuple[int, int]] = []
    for start, end in sorted(parts):
        if joined and (start - joined[-1][1] < near or start == joined[-1][1]):
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((start, end))
    return joined


def retime(words: TimedWords, stretches: Sequence[tuple[float, float]]) -> TimedWords:
    """The words with their times, in seconds, after the video is cut to `stretches`, joined end to end.

    Words are cut at the edges of stretches. Words outside all stretches, and words without duration at the end of one,
    are dropped. Empty stretches mean the whole video, as in `ListedVideo`.
    """
    if not stretches or not words.token:
        return words
    spoken = np.array([words.start, words.end])
    edges = np.array(stretches, np.float64)  # (stretches, 2)
    starts, ends = edges.T
    kept = np.cumsum(ends - starts)
    clock = np.interp(spoken, edges.ravel(), np.stack([kept - (ends - starts), kept], axis=1).ravel())
    clock[1] = clock.max(axis=0)  # rounding must not make a word end before it starts
    following = np.searchsorted(ends, spoken[0], side="right")  # the first stretch that ends after the word's start
    begins = np.append(starts, np.inf)[following]
    inside = (begins <= spoken[0]) | (begins < spoken[1])
    return TimedWords(
        token=np.array(words.token)[inside].tolist(), start=clock[0, inside].tolist(), end=clock[1, inside].tolist()
    )
