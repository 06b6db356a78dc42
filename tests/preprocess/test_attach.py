"""Captions are attached to the right videos."""

import json
from pathlib import Path

import pytest

from gdt.common.folders import Folder
from gdt.preprocess.captions.attach import Spoken
from gdt.preprocess.captions.words import Vocabulary
from gdt.preprocess.datasets import DATASETS, listing
from gdt.preprocess.datasets.listing import SourceFiles
from gdt.preprocess.plan import collect
from gdt.preprocess.videos import ListedVideo, TimedWords
from tests.preprocess.test_caption_readers import find
from tests.preprocess.test_datasets import touch

LISTEN = Vocabulary({"bark": 0, "meow": 1, "moo": 2}, [])


def write_captions(source: Path, texts: dict[str, str]) -> None:
    """Captions of one word, by what they are called."""
    videos = {id: {"start": [0], "end": [5], "text": [text]} for id, text in texts.items()}
    (source / "caption.json").write_text(json.dumps(videos))


def write_subtitles(source: Path, captions: dict[str, list[tuple[float, float, str]]]) -> None:
    """A file of subtitles for each name."""
    for name, rows in captions.items():
        (source / f"captions/{name}.vtt").parent.mkdir(parents=True, exist_ok=True)
        cues = (f"00:{a:06.3f} --> 00:{b:06.3f}\n{said}\n" for a, b, said in rows)
        (source / f"captions/{name}.vtt").write_text("\n".join(["WEBVTT\n", *cues]))


def spoken(source: Path, dataset: str) -> dict[ListedVideo, TimedWords]:
    """The words of each video."""
    captions = Spoken(find(source), LISTEN, Folder(source), only_captioned=False)
    files = SourceFiles(Folder(source))
    found = collect(captions.select(listing(DATASETS[dataset], files), files), files)
    return {video: captions.attach(video).words for video in found.videos.values()}


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        # videos of the same name have their own captions, by the id before any other name
        ({"cats/a": "meow", "dogs/a": "bark", "dogs/indoor/a.mp4": "bark bark"},
         {"a.mp4": [], "cats/a.mp4": [1], "dogs/a.webm": [0], "dogs/indoor/a.mp4": [0, 0]}),
        ({"a": "moo", "cats/a.mp4": "meow meow", "cats/a": "moo"}, {"a.mp4": [2], "cats/a.mp4": [1, 1]}),
        # those of a whole name are not those of another
        ({"a.avi": "moo", "\u00e9": "bark"}, {"a.avi": [2], "a.avi.mp4": [], "e\u0301.mp4": [0]}),
        # those of a video of a split match by id or path
        ({"a": "moo", "train/cats/a": "meow", "test/cats/a.mp4": "bark", "cats/a": "moo moo", "cats/b.c": "meow moo",
          "test/cats/d.mp4": "moo", "d": "bark"},
         {"train/a.mp4": [2], "train/cats/a.mp4": [1], "test/cats/a.mp4": [0], "test/cats/b.c.mp4": [1, 2],
          "test/cats/d.mp4": [2]}),
        # by the id in the names of yt-dlp
        ({"Dog [abcdefghijk].en": "bark", "ccccccccccc": "meow", "A cow [lmnopqrstuv].de": "moo", "[]": "bark"},
         {"part/Dog [abcdefghijk].mp4": [0], "Cat [ccccccccccc].mkv": [1], "lmnopqrstuv.mp4": [2],
          "Cow [short].mp4": []}),
        # titles that end in the same word are of two videos, and a sound has none beside a video of its name
        ({"Show 01 [English-Sub].en": "moo", "Dogs [dQw4w9WgXcQ]": "bark"},
         {"v/Show 01 [English-Sub].mkv": [2], "v/Show 02 [English-Sub].mkv": [], "v/Dogs [dQw4w9WgXcQ].mpg": [0],
          "v/Dogs [dQw4w9WgXcQ].wav": None}),
        # those in a language are not those of another video
        ({"a.en": "moo", "b.en": "bark"},
         {"a.mp4": [], "a.en.mp4": [2], "b.webm": [0], "c.avi.mp4": [], "c.mkv": [], "c.avi": []}),
        ({"b.en": "bark", "c.avi": "moo"}, {"b.webm": [], "b.en.mkv": [0], "c.avi.mp4": [], "c.mkv": [], "c.avi": [2]}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("subtitles", [False, True])
def test_every_video_has_its_own_captions(
    tmp_path: Path, said: dict[str, str], expected: dict[str, list[int] | None], subtitles: bool
) -> None:
    touch(tmp_path, *expected)
    if subtitles:
        write_subtitles(tmp_path, {name: [(0, 5, words)] for name, words in said.items()})
    else:
        write_captions(tmp_path, said)
    found = {str(video.path): words.token for video, words in spoken(tmp_path, "folder").items()}
    assert found == {name: tokens for name, tokens in expected.items() if tokens is not None}


SAID = [(4, 5, "moo"), (7, 8, "bark"), (9.5, 10.5, "meow meow"), (12, 13, "moo")]
"""What is said in a long video, and below in its part from 6 to 10 s."""
PART = [(0, 1.0, 2.0), (1, 3.5, 4.0)]


def said_in_parts(source: Path, dataset: str) -> dict[str, list[tuple[int, float, float]]]:
    words = spoken(source, dataset)
    return {video.id: list(zip(said.token, said.start, said.end, strict=True)) for video, said in words.items()}


LISTS = {
    "kinetics": ("train.csv", "label,youtube_id,time_start,time_end,split\nride,{id},6,10,train\n"),
    "vggsound": ("vggsound.csv", "{id},6,ride,train\n"),
    "audioset": ("eval_segments.csv", "# YTID, start, end, labels\n{id}, 6.000, 10.000, /m/1\n"),
}
NAMES = [
    ("kinetics", ""), ("kinetics", "_000006_000010"), ("vggsound", ""), ("vggsound", "_000006"),
    ("audioset", ""), ("audioset", "_6_10"), ("audioset", "_6000_10000"),
]  # fmt: skip


@pytest.mark.parametrize("id", ["aaaaaaaaaaa", "-a_1_2_3_4_"])
@pytest.mark.parametrize(("dataset", "times"), NAMES)
@pytest.mark.parametrize("language", ["", ".en"])
def test_captions_of_a_whole_video_are_shifted_to_its_part(
    tmp_path: Path, dataset: str, times: str, id: str, language: str
) -> None:
    name, rows = LISTS[dataset]
    (tmp_path / name).write_text(rows.format(id=id))
    (tmp_path / f"{id}{times}.mp4").touch()
    write_subtitles(tmp_path, {f"{id}{language}": SAID})
    longer = [(0, 1.0, 2.0), (1, 3.5, 4.0), (1, 4.0, 4.5), (2, 6.0, 7.0)]  # of VGGSound's 10 s
    assert said_in_parts(tmp_path, dataset) == {f"{id}{times}": longer if dataset == "vggsound" else PART}
    if times:
        write_subtitles(tmp_path, {f"{id}{times}{language}": [(1, 2, "moo")]})  # of its own file, on its own clock
        assert said_in_parts(tmp_path, dataset) == {f"{id}{times}": [(2, 1.0, 2.0)]}


def test_each_part_of_a_video_has_its_own_words(tmp_path: Path) -> None:
    rows = "label,youtube_id,time_start,time_end,split\nride,{id},6,10,train\nwalk,{id},10,14,test\n"
    (tmp_path / "all.csv").write_text(rows.format(id="aaaaaaaaaaa"))
    (tmp_path / "aaaaaaaaaaa.mp4").touch()
    write_subtitles(tmp_path, {"aaaaaaaaaaa": SAID})
    expected = {"aaaaaaaaaaa_000006_000010": PART, "aaaaaaaaaaa_000010_000014": [(1, 0.0, 0.5), (2, 2.0, 3.0)]}
    assert said_in_parts(tmp_path, "kinetics") == expected


def test_parts_without_a_list_are_cut_by_their_names(tmp_path: Path) -> None:
    touch(tmp_path, "ride/aaaaaaaaaaa_000006_000010.mp4", "ride/bbbbbbbbbbb.mp4")
    write_subtitles(tmp_path, {"aaaaaaaaaaa": SAID, "bbbbbbbbbbb": SAID[:1]})
    expected = {"aaaaaaaaaaa_000006_000010": PART, "bbbbbbbbbbb": [(2, 4.0, 5.0)]}
    assert said_in_parts(tmp_path, "kinetics") == expected
