"""Timed words of captions that are in a word2vec file and not stop words."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from operator import itemgetter
from pathlib import Path

from gdt.pipeline.word2vec import digest, load
from gdt.preprocess.captions.readers import Caption
from gdt.preprocess.videos import TimedWords

_TOKEN = re.compile(r"[^\W_]+(?:'[^\W_]+)*")  # letters and digits of any script, with apostrophes inside


class Vocabulary:
    """The rows of words in a word2vec file, and the stop words to skip."""

    def __init__(self, rows: Mapping[str, int], stop_words: Iterable[str]) -> None:
        self._rows = rows
        self._stop_words = frozenset(word.lower() for word in stop_words)

    @staticmethod
    def load(word2vec: Path) -> Vocabulary:
        """Read a word2vec file, binary if it ends in .bin or .bin.gz, else text; stop words are scikit-learn's.

        The vectors are read as float16 and freed: Google News (3 million words) takes 1.8 GB while it is read, and
        0.4 GB after. Rows are numbered as in gensim, without repeated words. Raises UserError if the file is missing or
        cannot be parsed.
        """
        from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

        return Vocabulary(load(word2vec).key_to_index, ENGLISH_STOP_WORDS)

    @property
    def digest(self) -> str:
        """Hash of the words in order, 16 hex digits; it identifies the meaning of tokens."""
        return digest(self._rows)

    def words(self, captions: Iterable[Caption]) -> TimedWords:
        """Known words except stop words, sorted by start time.

        All words of a caption, also stop words and unknown ones, get equal shares of its time. A word is looked up
        as written, then in lower case. Times before the start of the video become 0.
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
        return TimedWords(
            token=[token for _, _, token in spoken],
            start=[start for start, _, _ in spoken],
            end=[end for _, end, _ in spoken],
        )
