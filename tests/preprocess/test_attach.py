"""Captions are attached to the right videos."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gdt.preprocess.captions.attach import Spoken
from gdt.preprocess.captions.words import Vocabulary
from gdt.preprocess.datasets import DATASETS
from gdt.preprocess.datasets.listing import Missing, Source
from tests.preprocess.test_caption_readers import find

LISTEN = Vocabulary({"bark": 0, "meow": 1, "moo": 2}, [])


def write_captions(source: Path, texts: dict[str, str]) -> None:
    """Captions of one word, by what they are called."""
    videos = {id: {"start": [0], "end": [5], "text": [text]} for id, text in texts.items()}
    (source / "caption.json").write_text(json.dumps(videos))


def tokens(source: Path, dataset: str = "folder", only_captioned: bool = False) -> dict[str, list[int] | str]:
    """The words of each video, or why it is left out."""
    spoken = Spoken(find(source), LISTEN, source, only_captioned)
    items = spoken.select(DATASETS[dataset].listing(Source(source)))
    return {item.id: item.reason if isinstance(item, Missing) else spoken.attach(item).words.token for item in items}


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    """Videos of one name in several folders."""
    for name in ("a.mp4", "cats/a.mp4", "dogs/a.webm", "dogs/indoor/a.mp4"):
        (tmp_path / "pets" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "pets" / name).touch()
    return tmp_path / "pets"


def test_videos_of_the_same_name_have_their_own_captions(pets: Path) -> None:
    write_captions(pets, {"cats/a": "meow", "dogs/a": "bark", "dogs/indoor/a.mp4": "bark bark"})
    expected = {"a.mp4": [], "cats/a.mp4": [1], "dogs/a.webm": [0], "dogs/indoor/a.mp4": [0, 0]}
    assert tokens(pets) == expected
    write_captions(pets, {"cats/a": "meow", "dogs/a": "bark", "dogs/indoor/a.mp4": "bark bark", "a": "moo"})
    assert tokens(pets) == expected | {"a.mp4": [2]}
    write_captions(pets, {"cats/a.mp4": "meow meow", "cats/a": "moo"})
    assert tokens(pets)["cats/a.mp4"] == [1, 1]  # by its id before any other name


def test_captions_of_a_whole_name_are_not_those_of_another(tmp_path: Path) -> None:
    for name in ("a.avi", "a.avi.mp4", "e\u0301.mp4"):
        (tmp_path / name).touch()
    write_captions(tmp_path, {"a.avi": "moo", "\u00e9": "bark"})
    assert tokens(tmp_path) == {"a.avi": [2], "a.avi.mp4": [], "\u00e9.mp4": [0]}


def test_captions_match_a_video_of_a_split_by_id_or_path(tmp_path: Path) -> None:
    for name in ("train/a.mp4", "train/cats/a.mp4", "test/cats/a.mp4", "test/cats/b.c.mp4", "test/cats/d.mp4"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    said = {"a": "moo", "train/cats/a": "meow", "test/cats/a.mp4": "bark", "cats/a": "moo moo", "cats/b.c": "meow moo"}
    write_captions(tmp_path, said | {"test/cats/d.mp4": "moo", "d": "bark"})
    assert tokens(tmp_path) == {
        "a.mp4": [2], "train/cats/a.mp4": [1], "test/cats/a.mp4": [0], "cats/b.c.mp4": [1, 2], "cats/d.mp4": [2],
    }  # fmt: skip


def test_captions_by_id_match_in_any_folder(tmp_path: Path) -> None:
    for name in ("0wR5jVB-WPk.mp4", "part1/-caPS4FHFF8.webm", "part2/silent.mkv"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    write_captions(tmp_path, {"0wR5jVB-WPk": "moo", "-caPS4FHFF8": "bark"})
    for dataset in ("howto100m", "synthetic"):
        assert tokens(tmp_path, dataset) == {"0wR5jVB-WPk": [2], "-caPS4FHFF8": [0], "silent": []}
