"""The parts of a video that captions cover, and the times of words after the others are cut out."""

import itertools
import random

import pytest

from gdt.preprocess.captions.readers import Caption
from gdt.preprocess.captions.stretches import retime, stretches
from gdt.preprocess.videos import TimedWords

# --- covered parts ------------------------------------------------------------------------------------


def captions_at(*times: tuple[float, float]) -> list[Caption]:
    return [Caption(start, end, "x") for start, end in times]


def slow_stretches(captions: list[Caption], gap: int, least: int) -> list[tuple[int, int]]:
    """Oracle in tenths of a second: a timeline of cells, joined and grown cell by cell."""

    def runs(cells: list[bool]) -> list[tuple[int, int]]:
        changes = [k for k in range(len(cells) + 1) if (k > 0 and cells[k - 1]) != (k < len(cells) and cells[k])]
        return list(zip(changes[::2], changes[1::2], strict=True))

    def joined(cells: list[bool]) -> list[bool]:
        for (_, end), (start, _) in itertools.pairwise(runs(cells)):
            if start - end < gap:
                cells[end:start] = [True] * (start - end)
        return cells

    cells = [False] * 1000
    for start, end, _ in captions:  # at hundredths of a second
        for k in range(max(0, round(start * 100)) // 10, -(-round(end * 100) // 10)):
            cells[k] = True
    grown = [False] * 1000
    for start, end in runs(joined(cells)):
        before = False
        while end - start < least:
            start, end = (start - 1, end) if before and start > 0 else (start, end + 1)
            before = not before
        grown[start:end] = [True] * (end - start)
    return runs(joined(grown))


@pytest.mark.parametrize("seed", range(20))
def test_stretches_equal_a_slow_oracle(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(20):
        starts = [rng.randrange(8000) for _ in range(rng.randrange(9))]
        ends = [start + rng.randint(1, 600) for start in starts]
        # differences, as of times that were shifted, may be a little off
        times = ([time / 100 - 0.3 for time in (start + 30, end + 30)] for start, end in zip(starts, ends, strict=True))
        captions = captions_at(*times)
        gap, least = rng.choice([(20, 40), (1, 30), (35, 10)])
        monkeypatch.setattr("gdt.preprocess.captions.stretches._SHORTEST", least)
        found = stretches(captions, gap / 10)
        assert found == tuple((start / 10, end / 10) for start, end in slow_stretches(captions, gap, least))


def test_a_moment_and_a_caption_before_the_video_become_the_longest_clip() -> None:
    assert stretches(captions_at((10.0, 10.0), (-3.0, -1.0))) == ((0.0, 4.0), (8.0, 12.0))


# --- times after cutting -------------------------------------------------------------------------------------


def test_without_stretches_words_stay_and_outside_of_all_they_go() -> None:
    words = TimedWords(token=[1, 2], start=[0, 9.5], end=[1, 10.5])
    assert retime(words, []) == words
    assert retime(words, [(100.0, 104.0)]) == TimedWords([], [], [])
    assert retime(TimedWords([], [], []), [(100.0, 104.0)]) == TimedWords([], [], [])


def slow_retime(words: TimedWords, stretches: list[tuple[float, float]]) -> TimedWords:
    """Oracle: cuts the parts that are not kept out one at a time, from the last to the first."""
    result = TimedWords([], [], [])
    for token, start, end in zip(words.token, words.start, words.end, strict=True):
        if not any(a <= start < b or start <= a < end for a, b in stretches):
            continue
        gaps = list(zip([0.0, *(b for _, b in stretches)], [*(a for a, _ in stretches), 1e9], strict=True))
        for a, b in reversed(gaps):
            start, end = (min(t, a) if t < b else t - (b - a) for t in (start, end))
        result.token.append(token), result.start.append(start), result.end.append(end)
    return result


@pytest.mark.parametrize("seed", range(20))
def test_retimed_words_equal_a_slow_oracle(seed: int) -> None:
    rng = random.Random(seed)
    starts = sorted(rng.choice([rng.uniform(0, 100), float(rng.randrange(100))]) for _ in range(100))
    ends = [start + rng.choice([0.0, 1.0, rng.expovariate(0.3)]) for start in starts]
    words = TimedWords(list(range(100)), starts, ends)
    edges = sorted(rng.sample(range(100), 2 * rng.randrange(1, 8)))
    kept = [(float(start), float(end)) for start, end in zip(edges[::2], edges[1::2], strict=True)]
    found, expected = retime(words, kept), slow_retime(words, kept)
    assert found.token == expected.token
    assert found.start == pytest.approx(expected.start, abs=1e-9)
    assert found.end == pytest.approx(expected.end, abs=1e-9)
    assert found.start == sorted(found.start)
    assert all(start <= end for start, end in zip(found.start, found.end, strict=True))
    assert {type(value) for value in (*found.token, *found.start)} <= {int, float}
