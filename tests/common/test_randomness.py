"""Random numbers for different purposes never come from the same stream."""

import itertools
import re

import numpy as np

from gdt.common.randomness import Stream, generator, seed_sequence
from tests.conftest import ROOT

ELSEWHERE = {
    "common/randomness.py": "here",
    "eval/comparison.py": "the bootstrap of a difference, whose draws are part of the test",
    "pipeline/clips.py": "evaluation, which draws nothing",
    "preprocess/synthetic/moments.py": "the content of generated videos, whose seeds are part of the data set",
}
"""Files that make generators of numpy, and for what."""


def test_streams_differ_in_purpose_and_in_every_number() -> None:
    assert np.array_equal(
        np.random.SeedSequence([3, 5]).generate_state(4), np.random.SeedSequence([3, 5, 0]).generate_state(4)
    )  # what a stream must not do
    some = (0, 1, 2, 31, 1 << 32, (1 << 32) + 1)
    numbers = [part for length in range(4) for part in itertools.product(some, repeat=length)]
    states = {
        (stream, part): tuple(seed_sequence(stream, *part).generate_state(4)) for stream in Stream for part in numbers
    }
    assert len(set(states.values())) == len(states) == len(Stream) * (1 + 6 + 36 + 216)
    again = generator(Stream.BATCH, np.int64(1), np.int32(2), 3)  # also from numpy's integers
    assert again.random() == generator(Stream.BATCH, 1, 2, 3).random()


def test_all_random_numbers_come_from_streams() -> None:
    drawing = re.compile(r"SeedSequence\(|default_rng\(|Philox\(|RandomState\(|np\.random\.(seed|rand|choice|perm)")
    folders = ("common", "pipeline", "preprocess", "train", "eval")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    assert {str(path.relative_to(ROOT)) for path in files if drawing.search(path.read_text())} == set(ELSEWHERE)
