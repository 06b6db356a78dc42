"""Word2vec files: a token is the row of a word, and the text encoder takes the vector of that row."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gdt.common.errors import UserError
from gdt.pipeline.shards.index import Index

if TYPE_CHECKING:
    from gensim.models import KeyedVectors

NEEDS_TEXT = "captions need gensim, ijson and webvtt-py; run pip install 'gdt-video[text]'"


def digest(words: Iterable[str]) -> str:
    """Hash of words in order: 16 hex digits; equal hashes mean equal tokens."""
    value = hashlib.sha256()
    for word in words:
        value.update(word.encode() + b"\n")
    return value.hexdigest()[:16]


def load(path: Path) -> KeyedVectors:
    """Load a word2vec file, binary if it ends in .bin or .bin.gz, else text; vectors as float16.

    Rows are numbered as by gensim, without repeated words. Raises UserError for a missing or invalid file, and without
    gensim.
    """
    try:
        from gensim.models import KeyedVectors
    except ImportError as error:
        raise UserError(NEEDS_TEXT) from error

    binary = path.name.lower().endswith((".bin", ".bin.gz"))
    try:
        loaded = KeyedVectors.load_word2vec_format(str(path), binary=binary, datatype=np.float16)
        words = len(loaded.key_to_index)  # fewer than the file's header says if some are repeated
        loaded.index_to_key = loaded.index_to_key[:words]
        loaded.vectors = loaded.vectors[:words]
        return loaded
    # gensim raises any of these for a damaged file
    except (OSError, ValueError, EOFError, AssertionError, MemoryError, OverflowError, zlib.error) as error:
        raise UserError(
            f"{path} cannot be read as a {'binary' if binary else 'text'} word2vec file "
            f"({error or type(error).__name__}); binary files, such as GoogleNews-vectors-negative300.bin.gz, must end "
            "in .bin or .bin.gz"
        ) from error


@dataclass(frozen=True)
class WordVectors:
    """The vectors of the tokens of a data set."""

    vectors: np.ndarray
    """float16 [words, dimensions]; 1.8 GB for the 3 million words of Google News."""
    words: Sequence[str]

    @staticmethod
    def of(index: Index, path: Path | None) -> WordVectors:
        """Load the vectors of the file with which the shards were made.

        Raises UserError if the shards have no words, or the file is missing or not the original one.
        """
        if not index.text_count.any():
            raise UserError(
                f"the shards in {index.folder} have no words; rebuild them from videos with captions, with "
                "'gdt preprocess --word2vec <file>'"
            )
        if path is None:
            raise UserError(
                "text needs word vectors: set --word2vec to the file with which the shards were made, such as "
                "GoogleNews-vectors-negative300.bin"
            )
        loaded = load(path)
        vocabulary = digest(loaded.index_to_key)
        if vocabulary != index.settings["vocabulary"]:
            raise UserError(
                f"{path} is not the word2vec file with which the shards in {index.folder} were made (digest "
                f"{vocabulary}, not {index.settings['vocabulary']}); set --word2vec to that file"
            )
        return WordVectors(loaded.vectors, loaded.index_to_key)

    @property
    def dimensions(self) -> int:
        return int(self.vectors.shape[1])

    @cached_property
    def checksum(self) -> str:
        """CRC-32 of the vectors, in hexadecimal."""
        return f"{zlib.crc32(np.ascontiguousarray(self.vectors).data):08x}"
