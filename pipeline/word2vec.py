"""Files of word vectors: the words are what tokens count, the vectors what the text encoder takes."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pipeline.errors import UserError
from pipeline.files import kind, open_regular

if TYPE_CHECKING:
    from gensim.models import KeyedVectors


def digest(words: Iterable[str]) -> str:
    """16 hex digits that stand for words in their order, and so for what the tokens mean."""
    value = hashlib.sha256()
    for word in words:
        value.update(word.encode() + b"\n")
    return value.hexdigest()[:16]


def load(path: Path) -> KeyedVectors:
    """A file in word2vec's format: binary if it ends in .bin or .bin.gz, else text; vectors as float16.

    Rows are counted as gensim does: a word that comes again does not count. Raises UserError for a file that is missing
    or of another kind.
    """
    from gensim.models import KeyedVectors

    if what := kind(path):
        state = "does not exist" if what == "missing" else f"is {what}"
        raise UserError(
            f"the word2vec file {path} {state}; download one, such as GoogleNews-vectors-negative300.bin.gz, "
            "and give its path"
        )
    binary = path.name.lower().endswith((".bin", ".bin.gz"))
    try:
        with open_regular(path) as file:
            pickled = file.read(1) == b"\x80"
        if pickled or path.suffix.lower() in {".kv", ".model", ".pkl", ".pickle"}:
            raise UserError(
                f"{path} is a pickle, which runs what it holds when it is read, and is not accepted; save the vectors "
                "with gensim's save_word2vec_format"
            )
        vectors = KeyedVectors.load_word2vec_format(str(path), binary=binary, datatype=np.float16)
    # a damaged file can stop gensim at any step
    except (OSError, ValueError, EOFError, AssertionError, MemoryError, OverflowError, zlib.error) as error:
        raise UserError(
            f"{path} cannot be read as a {'binary' if binary else 'text'} word2vec file "
            f"({error or type(error).__name__}); binary files must end in .bin or .bin.gz, and the first line must "
            "hold the numbers of words and of dimensions"
        ) from error
    if not len(vectors):
        raise UserError(f"the word2vec file {path} holds no words")
    return vectors
