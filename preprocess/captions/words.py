"""Which words captions say at what time: those of a word2vec file, without stop words."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from functools import cached_property
from operator import itemgetter
from pathlib import Path

from gdt.common.errors import UserError
from gdt.pipeline.word2vec import digest, load
from gdt.preprocess.captions.readers import Caption, reading
from gdt.preprocess.datasets.listing import Words

_TOKEN = re.compile(r"[^\W_]+(?:'[^\W_]+)*")  # letters and digits of any script, with apostrophes inside


class Vocabulary:
    """Words of a word2vec file, each with its row there, and stop words, which are never looked up."""

    def __init__(self, rows: Mapping[str, int], stop_words: Iterable[str]) -> None:
        self._rows = rows
        self._stop_words = frozenset(word.lower() for word in stop_words)

    @staticmethod
    def load(word2vec: Path, stop_words: Path | None = None) -> Vocabulary:
        """Words of a file in word2vec format: binary if it ends in .bin or .bin.gz, else text.

        Where there is no file of stop words (one per line, '#' starts a comment), scikit-learn's English ones are
        taken. The vectors, read as float16, are let go again; for the 3 million words of Google News they take
        1.8 GB for that time, and the words then about 0.4 GB. Rows are counted as gensim does: a word that comes again
        does not count.

        Raises UserError for a file that is missing or of another kind.
        """
        stop = _stop_words(stop_words)  # first, since it fails at once
        return Vocabulary(load(word2vec).key_to_index, stop)

    def __len__(self) -> int:
        return len(self._rows)

    @cached_property
    def stop_digest(self) -> str:
        """The same 16 digits for the stop words."""
        return hashlib.sha256("\n".join(sorted(self._stop_words)).encode()).hexdigest()[:16]

    @cached_property
    def digest(self) -> str:
        """16 hex digits that stand for the words in their order, and so for what the tokens mean."""
        return digest(self._rows)

    def words(self, captions: Iterable[Caption]) -> Words:
        """The known words that are no stop words, by start time, each with its share of the time of its caption.

        A caption only tells when it starts and ends, so its words, stop words and unknown ones too, divide that time
        evenly. A word is looked up as it is written, then in lower case. Times before the video's start become 0.
        """
        spoken: list[tuple[float, float, int]] = []
        for start, end, text in captions:
            tokens = _TOKEN.findall(text.replace("’", "'"))
            edges = [max(0.0, start + (end - start) * k / len(tokens)) for k in range(len(tokens))] + [max(0.0, end)]
            for token, edge, next_edge in zip(tokens, edges, edges[1:], strict=False):
                lower = token.lower()
                row = self._rows.get(token, self._rows.get(lower))
                if row is not None and lower not in self._stop_words:
                    spoken.append((edge, next_edge, row))
        spoken.sort(key=itemgetter(0))
        return Words(
            token=[token for _, _, token in spoken],
            start=[start for start, _, _ in spoken],
            end=[end for _, end, _ in spoken],
        )


def _stop_words(path: Path | None) -> frozenset[str]:
    if path is None:
        from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

        return frozenset(ENGLISH_STOP_WORDS)
    words = set()
    with reading(path, "stop words") as file:
        for number, line in enumerate(file.text(), start=1):
            found = line.partition("#")[0].split()
            if len(found) > 1:
                raise UserError(f"{path}, line {number}: a file of stop words has one word per line")
            words.update(found)
    return frozenset(words)
