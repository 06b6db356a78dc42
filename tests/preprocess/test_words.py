"""The words of captions: their rows in the vocabulary and their times."""

import gzip
import pickle
from pathlib import Path

import gensim
import numpy as np
import pytest

from gdt.common.errors import UserError
from gdt.pipeline.word2vec import digest, load
from gdt.preprocess.captions.readers import Caption
from gdt.preprocess.captions.words import Vocabulary
from gdt.preprocess.videos import TimedWords

WORDS = ["stir", "Stir", "don't", "café", "well", "Paris", "2", "the", "until"]


@pytest.fixture
def word2vec(tmp_path: Path) -> Path:
    """Vectors of WORDS, saved by gensim as text."""
    vectors = gensim.models.KeyedVectors(3)
    vectors.add_vectors(WORDS, np.random.default_rng(0).normal(size=(len(WORDS), 3)).astype(np.float32))
    vectors.save_word2vec_format(str(tmp_path / "vectors.txt"))
    vectors.save_word2vec_format(str(tmp_path / "vectors.bin"), binary=True)
    (tmp_path / "vectors.bin.gz").write_bytes(gzip.compress((tmp_path / "vectors.bin").read_bytes()))
    vectors.save(str(tmp_path / "vectors.kv"))
    return tmp_path / "vectors.txt"


def rows(vocabulary: Vocabulary, text: str) -> list[int]:
    return vocabulary.words([Caption(0, 1, text)]).token


def test_a_repeated_word_counts_once(tmp_path: Path) -> None:
    (tmp_path / "twice.txt").write_text("5 2\ncat 1 2\ndog 3 4\ncat 1 1\nsun 5 6\nsun 7 8\n")
    loaded = load(tmp_path / "twice.txt")
    assert loaded.index_to_key == ["cat", "dog", "sun"] and loaded.vectors.tolist() == [[1, 2], [3, 4], [5, 6]]
    assert Vocabulary.load(tmp_path / "twice.txt").digest == digest(loaded.index_to_key)


def test_text_and_binary_files_give_the_same_rows(word2vec: Path) -> None:
    loaded = [Vocabulary.load(word2vec.with_name(f"vectors.{suffix}")) for suffix in ("txt", "bin", "bin.gz")]
    for vocabulary in loaded:
        assert rows(vocabulary, " ".join(WORDS)) == [0, 1, 2, 3, 5, 6]  # well, the and until are stop words
    assert len({vocabulary.digest for vocabulary in loaded}) == 1


def test_words_are_letters_digits_and_inner_apostrophes(word2vec: Path) -> None:
    vocabulary = Vocabulary.load(word2vec)
    assert rows(vocabulary, "Don't 'stir' CAFÉ,2;paris [Paris] don’t_stir 22 STIR") == [2, 0, 3, 6, 5, 2, 0, 0]
    assert rows(vocabulary, "Stir stir THE the Until") == [1, 0]
    assert rows(vocabulary, "... - '' _ \u266a") == []


def test_a_caption_gives_its_words_equal_shares_of_its_time(word2vec: Path) -> None:
    vocabulary = Vocabulary.load(word2vec)
    captions = [Caption(10, 14, "stir the xyzzy well"), Caption(11.5, 12.5, "Paris 2"), Caption(3, 3, "café")]
    assert vocabulary.words(captions) == TimedWords(
        token=[3, 0, 5, 6], start=[3.0, 10.0, 11.5, 12.0], end=[3.0, 11.0, 12.0, 12.5]
    )
    four = TimedWords([0] * 4, [0.0] * 4, [0.0, 0.0, 0.0, 1.0])
    assert vocabulary.words([Caption(-3, 1, "stir stir stir stir")]) == four
    assert vocabulary.words([]) == TimedWords([], [], [])


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("none.txt", None, "none.txt cannot be read as a text word2vec file .*No such file"),
        ("a.kv", pickle.dumps([1]), "a.kv cannot be read as a text word2vec file"),  # it is not unpickled
        ("a.bin", pickle.dumps([1]), "a.bin cannot be read as a binary word2vec file"),
        ("a.txt", b"", "a.txt cannot be read as a text word2vec file .*; binary files, .*, must end in .bin"),
        ("a.bin", b"2 3\nabc", "a.bin cannot be read as a binary word2vec file .*unexpected end of input"),
        ("a.bin.gz", gzip.compress(bytes(range(256)) * 99)[:-50], "cannot be read as a binary"),
    ],
)  # fmt: skip
def test_an_unexpected_word2vec_file_is_refused(tmp_path: Path, name: str, content: bytes | None, message: str) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message):
        Vocabulary.load(tmp_path / name)
