"""Captions: every layout they come in, the words they say and when, and the parts of a video they cover."""

from __future__ import annotations

import gzip
import itertools
import json
import math
import os
import pickle
import random
import re
import subprocess
import sys
from collections.abc import Iterable
from decimal import Decimal
from pathlib import Path
from typing import Any

import gensim
import numpy as np
import pytest

import preprocess.captions
from pipeline.errors import UserError
from preprocess.captions import Caption, Captions, Vocabulary, attach, on_kept_clock, stretches
from preprocess.datasets import DATASETS, howto100m
from preprocess.datasets.listing import Missing, Video, Words
from tests.preprocess.test_fuzz import COUNT, INTACT, SEED, damaged

ROOT = Path(__file__).resolve().parents[2]
HELLO = {"start": [1], "end": [2], "text": ["hello"]}


def find(source: Path) -> Captions:
    captions = Captions.find(source, source / "scratch")
    assert captions is not None
    return captions


def read(tmp_path: Path, content: Any) -> list[Caption]:
    """What is read of a video 'a' whose captions are `content`."""
    (tmp_path / "caption.json").write_text(json.dumps({"a": content, "b": HELLO}))
    with find(tmp_path) as captions:
        return captions.get("a")


# --- where captions are --------------------------------------------------------------------------------------------


def test_the_json_of_howto100m(tmp_path: Path, real: Path) -> None:
    text = (real / "captions" / "grid_captions.json").read_text()
    (tmp_path / "caption.json").write_text(text)
    with find(tmp_path) as captions:
        assert len(captions) == 120
        for id, video in json.loads(text).items():
            assert captions.get(id) == list(zip(video["start"], video["end"], video["text"], strict=True))
        assert captions.get("bbas3a")[0] == Caption(0.98, 1.47, "bin blue at")
        assert captions.get("unknown") == []


def test_a_csv_of_many_videos(tmp_path: Path, real: Path) -> None:
    (tmp_path / "youcook2_validation.csv").write_bytes((real / "captions" / "youcook2_validation.csv").read_bytes())
    (tmp_path / "HowTo100M_v1.csv").write_text("video_id,category_1\na,Pets\n")  # holds no captions
    with find(tmp_path) as captions:
        assert captions.get("xHr8X2Wpmno")[0] == Caption(47.0, 60.0, "pick the ends off the verdalago")
        rows = (tmp_path / "youcook2_validation.csv").read_text().splitlines()[1:]
        ids = {row.rpartition(",")[2] for row in rows}
        assert len(captions) == len(ids)
        assert sum(len(captions.get(id)) for id in ids) == len(rows)


def test_rows_of_a_video_may_be_apart_and_in_several_files(tmp_path: Path) -> None:
    (tmp_path / "1.csv").write_text("video_id,start,end,text\na,5,6,e\nb,0,1,x\na,1,2,b\na,1,9,c\n")
    (tmp_path / "2.csv").write_text("text,video_id,end,start\nd,a,3,1\n'a',a,1,0\n")
    with find(tmp_path) as captions:
        assert [caption.text for caption in captions.get("a")] == ["'a'", "b", "c", "d", "e"]
        assert captions.get("b") == [(0, 1, "x")]


@pytest.mark.parametrize("folder", ["captions", "csv"])
def test_a_file_per_video(tmp_path: Path, folder: str) -> None:
    (tmp_path / folder).mkdir()
    (tmp_path / folder / "-_xY..123 4.csv").write_text(',start,end,text\n0,"3.5",4,"one, two"\n1,1,2,first\n')
    (tmp_path / folder / "b.json").write_text('{"text": ["x", NaN], "start": [0, NaN], "end": [1, 2]}')
    (tmp_path / folder / "._b.json").write_text("left by macOS")
    (tmp_path / "outside.csv").write_text("start,end,text\n0,1,x\n")
    with find(tmp_path) as captions:
        assert len(captions) == 2
        assert captions.get("-_xY..123 4") == [(1, 2, "first"), (3.5, 4, "one, two")]
        assert captions.get("b") == [(0, 1, "x")]
        for id in ("", "..", "../outside", str(tmp_path / "outside"), "a\0b", "x" * 255):
            assert captions.get(id) == []
    assert not (tmp_path / "scratch").exists()


def test_a_file_per_video_in_folders(tmp_path: Path) -> None:
    for name in ("cats/a.csv", "cats/indoor/b.json", "dogs/a.csv"):
        (tmp_path / "captions" / name).parent.mkdir(parents=True, exist_ok=True)
        row = {"start": [0], "end": [1], "text": [name]}
        text = json.dumps(row) if name.endswith(".json") else f"start,end,text\n0,1,{name}\n"
        (tmp_path / "captions" / name).write_text(text)
    (tmp_path / "captions" / "dogs" / "again").symlink_to(tmp_path / "captions")  # seen already
    (tmp_path / "outside.csv").write_text("start,end,text\n0,1,x\n")
    with find(tmp_path) as captions:
        assert len(captions) == 3
        assert captions.get("cats/a") == [(0, 1, "cats/a.csv")]
        assert captions.get("dogs/a") == [(0, 1, "dogs/a.csv")]
        assert captions.get("cats/indoor/b") == [(0, 1, "cats/indoor/b.json")]
        assert "cats/a" in captions and "a" not in captions
        outside = ("cats/../../outside", "cats/./a", "cats//a", "/cats/a", "cats/", "cats/a/b", f"cats/{'x' * 255}")
        for id in ("a", "cats", "cats/a\0", *outside):
            assert captions.get(id) == []


def test_which_captions_are_preferred(tmp_path: Path) -> None:
    names = ["x.csv", "csv/a.csv", "captions/a.csv"]
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"video_id,start,end,text\na,0,1,{name}\n")
        with find(tmp_path) as captions:
            assert captions.get("a") == [(0, 1, name)]
    for name in ["raw_caption_superclean.json", "captions.json", "raw_caption.json", "caption.json"]:
        (tmp_path / name).write_text(json.dumps({"a": {"start": [0], "end": [1], "text": [name]}}))
        with find(tmp_path) as captions:
            assert captions.get("a") == [(0, 1, name)]


def test_no_captions(tmp_path: Path) -> None:
    (tmp_path / "captions").mkdir()
    (tmp_path / "HowTo100M_v1.csv").write_text("video_id,category_1\na,Pets\n")
    (tmp_path / "empty.csv").touch()
    (tmp_path / "latin.csv").write_bytes(b"name\ncaf\xe9\n")
    assert Captions.find(tmp_path, tmp_path / "scratch") is None


def test_unusual_ids_and_text(tmp_path: Path) -> None:
    ids = ["", "../a", "a/b.mp4", "-x", "日本", 'quo"te', "a\nb", "\U0001f600"]
    videos = {id: {"start": [0], "end": [1], "text": [f"says {id} \u2028 ’\t."]} for id in ids}
    (tmp_path / "caption.json").write_text(json.dumps(videos))
    with find(tmp_path) as captions:
        assert {id: captions.get(id)[0].text for id in ids} == {id: videos[id]["text"][0] for id in ids}


def test_an_id_that_comes_twice_has_the_captions_of_both(tmp_path: Path) -> None:
    first, second = '{"start": [3], "end": [4], "text": ["y"]}', '{"start": [1], "end": [2], "text": ["x"]}'
    (tmp_path / "caption.json").write_text(f'{{"a": {first}, "a": {second}}}')
    with find(tmp_path) as captions:
        assert captions.get("a") == [(1, 2, "x"), (3, 4, "y")]


# --- what is in them -----------------------------------------------------------------------------------------------


def test_unusable_captions_are_dropped_and_the_others_sorted(tmp_path: Path) -> None:
    rows = [
        (5, 6, "last"), (1, 2, "first"), (1, 1, "a moment"), (3, 2, "reversed"), (3, 4, " \n"), (3, 4, ""),
        (3, 4, None), (None, 4, "x"), ("", 4, "x"), ("nan", 4, "x"), (3, "inf", "x"), ("-inf", 4, "x"), (-1, 2, 7),
    ]  # fmt: skip
    start, end, text = map(list, zip(*rows, strict=True))
    assert read(tmp_path, {"start": start, "end": end, "text": text}) == [
        (-1, 2, "7"), (1, 2, "first"), (1, 1, "a moment"), (5, 6, "last"),
    ]  # fmt: skip


def test_a_video_without_usable_captions_has_none(tmp_path: Path) -> None:
    assert read(tmp_path, {"start": [], "end": [], "text": []}) == []
    assert len(find(tmp_path)) == 1


def test_times_may_be_numbers_of_any_kind() -> None:
    columns = {"start": ["1.25", Decimal("2.5"), 3], "end": [2, " 3 ", 4.5], "text": ["a", "b", "c"]}
    found = preprocess.captions._captions(columns, "here")
    assert found == [(1.25, 2.0, "a"), (2.5, 3.0, "b"), (3.0, 4.5, "c")]
    assert {type(time) for caption in found for time in caption[:2]} == {float}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([1], r"caption.json, video 'a': expected \{start: \[...\], end: \[...\], text: \[...\]\}"),
        ({"start": [1], "end": [2]}, "video 'a': expected {start"),
        ({"start": 1, "end": 2, "text": "x"}, "video 'a': expected {start"),
        (
            {"start": [1, 2], "end": [2], "text": ["x"]},
            "video 'a': the lists differ in length, 2 of start, 1 of end, 1 of",
        ),
        ({"start": ["early"], "end": [2], "text": ["x"]}, "video 'a': the time 'early' is no number of seconds"),
        ({"start": [[]], "end": [2], "text": ["x"]}, r"video 'a': the time \[\] is no number of seconds"),
        ({"start": [1], "end": [2], "text": [["x"]]}, r"video 'a': \['x'\] is no text"),
        ({"start": ["early" * 999], "end": [2], "text": ["x"]}, r"the time 'early.{,200}\.\.\..{,200}' is no number"),
    ],
)
def test_another_layout_is_refused(tmp_path: Path, content: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        read(tmp_path, content)
    assert list((tmp_path / "scratch").iterdir()) == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            b'{"a": {"start": [1, 2',
            "caption.json is damaged or no JSON, up to byte 21: parse error: premature EOF; copy",
        ),
        (b"", "premature EOF"),
        (b'{"a": NaN}', "lexical error: invalid char in json text"),
        (
            b'{"a": {"start": [1], "end": [2], "text": ["\xe9"]}}',
            "JSON, .*: lexical error: invalid bytes in UTF8 string.; c",
        ),
        (b"[]", r"caption.json holds no captions; expected \{id: \{start"),
        (b"{}", "holds no captions"),
    ],
)
def test_a_damaged_json_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "caption.json").write_bytes(content)
    with pytest.raises(UserError, match=message):
        find(tmp_path)
    assert list((tmp_path / "scratch").iterdir()) == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"start,text\n1,x\n", "a.csv has no column end; expected start,end,text"),
        (b"", "a.csv has no column start and no column end and no column text"),
        (b"start,end,text\n1,2\n", "a.csv, line 2: not as many fields as the header has"),
        (b"start,end,text\n1,2,x,y\n", "a.csv, line 2: not as many fields as the header has"),
        (b'start,end,text\n1,2,"x\n', "a.csv is damaged or no csv: unexpected end of data; copy or download"),
        (b"start,end,text\n1,2,\xe9\n", "a.csv is not UTF-8 text: .*; convert it"),
        (b"start,end,text\n1,2 s,x\n", "a.csv: the time '2 s' is no number of seconds"),
    ],
)
def test_a_damaged_csv_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "csv").mkdir()
    (tmp_path / "csv" / "a.csv").write_bytes(content)
    with find(tmp_path) as captions, pytest.raises(UserError, match=message):
        captions.get("a")


def test_a_damaged_json_of_one_video_is_refused(tmp_path: Path) -> None:
    (tmp_path / "captions").mkdir()
    (tmp_path / "captions" / "a.json").write_text('{"start": [')
    (tmp_path / "captions" / "b.json").write_text("[]")
    with find(tmp_path) as captions:
        with pytest.raises(
            UserError, match="a.json is damaged or no JSON: Expecting value.*; copy or download it again"
        ):
            captions.get("a")
        with pytest.raises(UserError, match=r"b.json: expected \{start"):
            captions.get("b")


def test_a_damaged_csv_of_many_videos_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("video_id,start,end,text\na,0,1,x\nb,zero,1,x\n")
    with pytest.raises(UserError, match=r"x.csv, video 'b': the time 'zero' is no number of seconds"):
        find(tmp_path)
    (tmp_path / "x.csv").write_text("video_id,start,end,text\n")
    with pytest.raises(UserError, match=r"x.csv holds no captions"):
        find(tmp_path)


def test_what_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "caption.json").write_text(json.dumps({"a": HELLO}))
    (tmp_path / "scratch").write_text("a file")
    with pytest.raises(UserError, match=r"cannot set captions aside in .*/scratch: File exists; they take about"):
        find(tmp_path)


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="needs a file that cannot be read")
@pytest.mark.parametrize("name", ["caption.json", "x.csv", "captions/a.csv", "captions/a.json"])
def test_what_cannot_be_read_is_named(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.files._made_up", frozenset)  # or it would be refused for being one of the system's
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).symlink_to("/proc/self/mem")  # a regular file, and its first bytes are nowhere
    with pytest.raises(UserError, match=f"cannot read .*{name}: Input/output error"), find(tmp_path) as captions:
        captions.get("a")


@pytest.mark.timeout(20)
@pytest.mark.parametrize("name", ["caption.json", "captions.json", "x.csv", "captions/a.csv", "csv/a.json"])
@pytest.mark.parametrize(("what", "target"), [("FIFO", "fifo"), ("device", "/dev/null"), ("broken link", "absent")])
def test_captions_that_are_no_file_are_named(tmp_path: Path, name: str, what: str, target: str) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).symlink_to(tmp_path / target)
    with pytest.raises(UserError, match=f"/{name} is a {what}, not a file"), find(tmp_path) as captions:
        captions.get("a")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "caption.json").write_text(json.dumps({"a": HELLO}))
    always_full = Path("/dev/full").open("wb")  # noqa: SIM115 - closed by what is tested
    monkeypatch.setattr(preprocess.captions.tempfile, "TemporaryFile", lambda dir: always_full)
    with pytest.raises(UserError, match="cannot set captions aside in .*: No space left on device; they take about"):
        find(tmp_path)


def test_the_scratch_file_has_no_name_and_is_closed(tmp_path: Path) -> None:
    (tmp_path / "caption.json").write_text(json.dumps({"a": HELLO}))
    with find(tmp_path) as captions:
        assert list((tmp_path / "scratch").iterdir()) == []
        assert captions.get("a") == [(1, 2, "hello")]
    with pytest.raises(ValueError, match="closed file"):
        captions.get("a")


MEMORY = """
import sys
from pathlib import Path
import ijson
from preprocess.captions import Captions

def megabytes(name):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(name)) / 1024

before = megabytes("VmRSS")
with Captions.find(Path(sys.argv[1]), Path(sys.argv[2])) as captions:
    print(len(captions), len(captions.get("video 1999")), megabytes("VmHWM") - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux to tell the memory")
def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    times = list(range(500))
    video = json.dumps(
        {
            "start": times,
            "end": [t + 2.5 for t in times],
            "text": ["and then you stir it well the sauce is thick and brown"] * 500,
        }
    )
    with (tmp_path / "caption.json").open("w") as file:
        file.write("{" + ", ".join(f'"video {number}": {video}' for number in range(2000)) + "}")
    size = (tmp_path / "caption.json").stat().st_size / 2**20
    result = subprocess.run(
        [sys.executable, "-c", MEMORY, str(tmp_path), str(tmp_path / "scratch")],
        cwd=ROOT, capture_output=True, text=True, check=True, env=os.environ | {"MALLOC_ARENA_MAX": "1"},
    )  # fmt: skip
    videos, captions, megabytes = map(float, result.stdout.split())
    assert (videos, captions) == (2000, 500)
    assert size > 60
    assert megabytes < size / 5


# --- what takes more than a file should ----------------------------------------------------------------------------

OPEN_ALL = """
import json, resource, sys
from pathlib import Path
from pipeline.errors import UserError
from preprocess.captions import Captions

memory = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (memory + 300 * 2**20,) * 2)
for folder in map(Path, sys.stdin.read().splitlines()):
    outcome = []
    try:
        if captions := Captions.find(folder, folder / "scratch"):
            with captions:
                outcome = captions.get("a")
    except (UserError, MemoryError) as error:
        outcome = f"{type(error).__name__}: {error}"
    print(json.dumps(outcome))
"""


def opened(folders: Iterable[Path]) -> list[Any]:
    """The captions of the video 'a' in each folder, or what is told instead; with 300 MB of memory for all that."""
    result = subprocess.run(
        [sys.executable, "-c", OPEN_ALL], input="\n".join(map(str, folders)),
        cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True, timeout=200,
    )  # fmt: skip
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux to tell the memory")
@pytest.mark.parametrize("name", ["caption.json", "captions/a.json"])
def test_lists_within_lists_are_refused_at_any_depth(tmp_path: Path, name: str) -> None:
    lists, maps = "[" * 200_000 + "]" * 200_000, '{"a":' * 100_000 + "1" + "}" * 100_000
    contents = [
        *(lists, maps, "[" * 400_000, '{"a":' * 100_000),
        *(f'{{"a": {{"start": [{deep}]}}}}' for deep in (lists, maps)),
        *(f'{{"start": [{deep}], "end": [1], "text": ["x"]}}' for deep in (lists, maps)),
        *(f'{{"a": {{"start": [1], "end": [1], "text": ["x"], "x": {deep}}}}}' for deep in (lists, maps)),
    ]
    folders = []
    for number, content in enumerate(contents):
        folders.append(tmp_path / str(number))
        (folders[-1] / name).parent.mkdir(parents=True)
        (folders[-1] / name).write_text(content)
    outcomes = opened(folders)
    assert len(outcomes) == len(contents)
    for folder, outcome in zip(folders, outcomes, strict=True):
        assert re.match(
            rf"UserError: {folder / name} (has lists within lists|holds no captions).*; expected .*\{{start: \[...\]",
            outcome,
        )


def test_what_stands_beside_the_captions_may_be_nested_a_little(tmp_path: Path) -> None:
    words = [{"word": "hello", "tokens": [[1, 2], []]}]
    assert read(tmp_path, {"words": words, **HELLO, "text of all": "hello"}) == [(1, 2, "hello")]


@pytest.mark.timeout(20)
@pytest.mark.parametrize("value", ["0." + "1" * 3_000_000, "1" * 3_000_000, f'"{"x" * 3_000_000}"', " " * 3_000_000])
def test_a_value_without_an_end_is_not_read_on(tmp_path: Path, value: str) -> None:
    (tmp_path / "caption.json").write_text(f'{{"a": {{"start": [{value}')
    with pytest.raises(
        UserError, match=r"caption.json cannot be understood: a value is longer than 1 MB, up to byte 1"
    ):
        find(tmp_path)


@pytest.mark.parametrize("name", ["caption.json", "x.csv", "captions/a.csv", "captions/a.json"])
def test_what_one_video_may_take_is_bounded(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preprocess.captions, "_MOST", 1 << 20)
    (tmp_path / name).parent.mkdir(exist_ok=True)

    def write(**counts: int) -> None:
        """As many captions of each video; of 'a' alone, where each has its own file."""
        if name.endswith(".json"):
            videos = {id: {"start": [1] * n, "end": [2] * n, "text": ["x" * 20] * n} for id, n in counts.items()}
            (tmp_path / name).write_text(json.dumps(videos["a"] if name.startswith("captions/") else videos))
        else:
            rows = [f"{id},1,2,{'x' * 20}\n" for id, n in counts.items() for _ in range(n)]
            rows = rows[: counts["a"]] if name.startswith("captions/") else rows
            (tmp_path / name).write_text("video_id,start,end,text\n" + "".join(rows))

    write(a=25_000, b=25_000, c=25_000)  # each less than 1 MB, together more
    with find(tmp_path) as captions:
        assert len(captions.get("a")) == 25_000
    write(a=60_000, b=1)
    message = f"{name} holds more than 1 MB of captions of one video, up to byte .*; is it the right file?"
    with pytest.raises(UserError, match=message), find(tmp_path) as captions:
        captions.get("a")


def test_a_line_without_an_end_is_not_read_on(word2vec: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preprocess.captions, "_MOST", 1 << 20)
    source = tmp_path / "source"
    source.mkdir()
    (source / "x.csv").write_text("a," * 1_000_000)
    with pytest.raises(UserError, match="x.csv holds more than 1 MB of header, up to byte 1"):
        find(source)
    (source / "x.csv").write_text("video_id,start,end,text\n" + "a," * 1_000_000)
    with pytest.raises(UserError, match="x.csv holds more than 1 MB of captions of one video, up to byte 1"):
        find(source)
    (source / "x.csv").write_text('video_id,start,end,text\n"' + "a" * 1_000_000)
    with pytest.raises(UserError, match="x.csv is damaged or no csv: field larger than field limit"):
        find(source)
    (tmp_path / "stop.txt").write_text("a" * 2_000_000)
    with pytest.raises(UserError, match="stop.txt holds more than 1 MB of stop words, up to byte 1"):
        Vocabulary.load(word2vec, tmp_path / "stop.txt")


FUZZED = ("caption.json", "x.csv", "captions/a.csv", "captions/a.json")
SAID = [[k * 2.5, k * 2.5 + 2, f"then, {'stir ' * (k % 7)}it – “well”"] for k in range(30)]
PIECES = [
    b"[", b"{", b"]", b"}", b'{"a":', b'"', b",", b":", b"\\", b"\\ud800", b"null", b"NaN", b"Infinity", b"1e999", b"-",
    b"9" * 400, b"\r", b"\n", b'"\n', b"\0", b"\xef\xbb\xbf", b"\xe9", b'"a": {},', b"a,", b"start,",
]  # fmt: skip


def intact(name: str) -> bytes:
    """Captions of two videos, or of one that has its own file."""
    if name.endswith(".json"):
        columns = dict(zip(("start", "end", "text"), zip(*SAID, strict=True), strict=True))
        return json.dumps(columns if name.startswith("captions/") else {"a": columns, "b": columns}).encode()
    rows = [f'{id},{start},{end},"{text}"' for id in ("a", "b") for start, end, text in SAID]
    return "\n".join(["video_id,start,end,text", *(rows[:30] if name.startswith("captions/") else rows), ""]).encode()


def spliced(data: bytes, random: np.random.Generator) -> bytes:
    """What means something to a parser, put in anywhere, up to 5000 times over, in the place of a few bytes or none."""
    for _ in range(random.integers(1, 4)):
        at = int(random.integers(0, len(data) + 1))
        piece = PIECES[random.integers(len(PIECES))] * int(random.choice([1, 1, 2, 9, 10, 5000]))
        data = data[:at] + piece + data[at + int(random.integers(0, 3)) :]
    return data


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux to tell the memory")
def test_damaged_captions_are_captions_or_one_sentence(tmp_path: Path) -> None:
    random = np.random.default_rng(SEED)
    paths = [tmp_path / str(number) / FUZZED[number % len(FUZZED)] for number in range(4 * COUNT)]
    for number, path in enumerate(paths):
        path.parent.mkdir(parents=True)
        data = intact(FUZZED[number % len(FUZZED)])
        if number // len(FUZZED) % INTACT:
            data = (damaged, spliced)[random.integers(2)](data, random)
        path.write_bytes(data)
    outcomes = opened(tmp_path / str(number) for number in range(len(paths)))
    assert len(outcomes) == len(paths)
    for number, (path, outcome) in enumerate(zip(paths, outcomes, strict=True)):
        if not number // len(FUZZED) % INTACT:
            assert outcome == [[start, end, text.strip()] for start, end, text in SAID]
        elif isinstance(outcome, str):
            assert outcome.startswith("UserError: ") and str(path) in outcome and len(outcome) < len(str(path)) + 1000
        else:
            assert outcome == sorted(outcome, key=lambda caption: caption[0])
            assert all(-math.inf < start <= end < math.inf and text.strip() for start, end, text in outcome)
    for layout in range(len(FUZZED)):  # the damage is neither harmless nor fatal throughout
        told = [isinstance(outcome, str) for outcome in outcomes[layout :: len(FUZZED)]]
        assert COUNT / 10 < sum(told) < COUNT * 9 / 10


# --- vocabulary ----------------------------------------------------------------------------------------------------

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


def test_text_and_binary_files_give_the_same_rows(word2vec: Path) -> None:
    loaded = [Vocabulary.load(word2vec.with_name(f"vectors.{suffix}")) for suffix in ("txt", "bin", "bin.gz")]
    for vocabulary in loaded:
        assert len(vocabulary) == len(WORDS)
        assert rows(vocabulary, " ".join(WORDS)) == [0, 1, 2, 3, 5, 6]  # well, the and until are stop words
    assert len({vocabulary.digest for vocabulary in loaded}) == 1


def test_the_digest_tells_words_and_their_order() -> None:
    def digest(*words: str) -> str:
        return Vocabulary({word: row for row, word in enumerate(words)}, []).digest

    assert digest("a", "b") == digest("a", "b")
    assert len({digest("a", "b"), digest("b", "a"), digest("ab"), digest("a"), digest("a", "b", "c")}) == 5
    assert digest("a", "bé") == "b071d343548f014d"  # sha256 of "a\nbé\n": it must stay what it is, shards hold it


def test_words_are_letters_digits_and_inner_apostrophes(word2vec: Path) -> None:
    vocabulary = Vocabulary.load(word2vec)
    assert rows(vocabulary, "Don't 'stir' CAFÉ,2;paris [Paris] don’t_stir 22 STIR") == [2, 0, 3, 6, 5, 2, 0, 0]
    assert rows(vocabulary, "Stir stir THE the Until") == [1, 0]
    assert rows(vocabulary, "... - '' _ \u266a") == []


def test_stop_words_of_a_file(word2vec: Path, tmp_path: Path) -> None:
    (tmp_path / "stop.txt").write_text("# ours\n\nSTIR  # both spellings\r\ndon't\n")
    vocabulary = Vocabulary.load(word2vec, tmp_path / "stop.txt")
    assert rows(vocabulary, "Stir stir don't the well until") == [7, 4, 8]
    (tmp_path / "stop.txt").write_text("a\nthe until\n")
    with pytest.raises(UserError, match="stop.txt, line 2: a file of stop words has one word per line"):
        Vocabulary.load(word2vec, tmp_path / "stop.txt")
    (tmp_path / "stop.txt").write_bytes(b"\xe9\n")
    with pytest.raises(UserError, match="stop.txt is not UTF-8 text"):
        Vocabulary.load(word2vec, tmp_path / "stop.txt")
    with pytest.raises(UserError, match="cannot read .*none.txt: No such file or directory"):
        Vocabulary.load(word2vec, tmp_path / "none.txt")


@pytest.mark.timeout(20)
def test_words_come_from_files_only(word2vec: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "fifo.bin").symlink_to("fifo")
    with pytest.raises(UserError, match="fifo is a FIFO, not a file"):
        Vocabulary.load(word2vec, tmp_path / "fifo")
    with pytest.raises(UserError, match="the word2vec file .*fifo.bin is a FIFO; download one"):
        Vocabulary.load(tmp_path / "fifo.bin")


def test_a_caption_gives_its_words_equal_shares_of_its_time(word2vec: Path) -> None:
    vocabulary = Vocabulary.load(word2vec)
    words = vocabulary.words(
        [Caption(10, 14, "stir the xyzzy well"), Caption(11.5, 12.5, "Paris 2"), Caption(3, 3, "café")]
    )
    assert words == Words(token=[3, 0, 5, 6], start=[3.0, 10.0, 11.5, 12.0], end=[3.0, 11.0, 12.0, 12.5])
    assert vocabulary.words([Caption(-3, 1, "stir stir stir stir")]) == Words([0] * 4, [0.0] * 4, [0.0, 0.0, 0.0, 1.0])
    assert vocabulary.words([]) == Words([], [], [])


def test_words_of_real_captions(word2vec: Path, real: Path, tmp_path: Path) -> None:
    source = tmp_path / "real"
    source.mkdir()
    (source / "youcook2.csv").write_bytes((real / "captions" / "youcook2_validation.csv").read_bytes())
    vocabulary = Vocabulary({"lemon": 0, "juice": 1, "salt": 2}, ["and"])
    with find(source) as captions:
        words = vocabulary.words(captions.get("xHr8X2Wpmno"))
    first = words.start.index(67 + 22 / 11)  # "combine lemon juice sumac garlic salt and oil in a bowl", 67 to 89 s
    assert words.token[first : first + 3] == [0, 1, 2]
    assert words.start[first : first + 3] == pytest.approx([69, 71, 77])
    assert words.end[first : first + 3] == pytest.approx([71, 73, 79])


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("none.txt", None, "the word2vec file .*none.txt does not exist; download one"),
        ("folder", None, "the word2vec file .*folder is a folder"),
        ("a.kv", b"", "a.kv is a pickle, .*, and is not accepted; save the vectors with gensim's save_word2vec_format"),
        ("a.model", b"", "a.model is a pickle"),
        ("a.bin", pickle.dumps([1]), "a.bin is a pickle"),
        ("a.txt", b"", "a.txt cannot be read as a text word2vec file .*; binary files must end in .bin"),
        ("a.txt", b"word 0.1 0.2 0.3\n", "a.txt cannot be read as a text word2vec file .*the first line must hold"),
        ("a.txt", b"2 3\na 1 2 3\n", "unexpected end of input"),
        ("a.txt", b"1 3\na 1 2\n", "cannot be read as a text"),
        ("a.txt", b"1 3\na 1 2 x\n", "cannot be read as a text"),
        ("a.txt", b"1 3\n\xe9 1 2 3\n", "cannot be read as a text .*utf-8"),
        ("a.txt", b"999999999999 999999\na 1\n", "cannot be read as a text"),
        ("a.txt", b"-1 3\n", "cannot be read as a text|holds no words"),
        ("a.txt", b"0 3\n", "the word2vec file .*a.txt holds no words"),
        ("a.bin", b"2 3\nabc", "a.bin cannot be read as a binary word2vec file .*unexpected end of input"),
        ("a.bin", b"1 3\na 1 2 3\n", "cannot be read as a binary"),
        ("a.bin.gz", b"2 3\nabc", "cannot be read as a binary .*gzip"),
        ("a.bin.gz", gzip.compress(bytes(range(256)) * 99)[:-50], "cannot be read as a binary"),
    ],
)  # fmt: skip
def test_another_file_is_no_vocabulary(tmp_path: Path, name: str, content: bytes | None, message: str) -> None:
    (tmp_path / "folder").mkdir()
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message):
        Vocabulary.load(tmp_path / name)


def test_gensims_own_files_are_refused(word2vec: Path) -> None:
    renamed = word2vec.with_name("vectors.kv").rename(word2vec.with_name("renamed.bin"))
    with pytest.raises(UserError, match="renamed.bin is a pickle"):
        Vocabulary.load(renamed)


# --- the parts that are covered ------------------------------------------------------------------------------------


def captions_at(*times: tuple[float, float]) -> list[Caption]:
    return [Caption(start, end, "x") for start, end in times]


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ([], ()),
        ([(10.0, 15.0)], ((10.0, 15.0),)),
        ([(10.01, 14.99)], ((10.0, 15.0),)),
        ([(0.7, 5.7)], ((0.7, 5.7),)),  # 0.7 * 10 is a little more than 7
        ([(10.0, 15.0), (17.0, 22.0)], ((10.0, 15.0), (17.0, 22.0))),
        ([(17.0, 22.0), (10.0, 15.1)], ((10.0, 22.0),)),
        ([(10.0, 20.0), (12.0, 13.0), (19.0, 21.0)], ((10.0, 21.0),)),
        ([(10.0, 11.0)], ((8.5, 12.5),)),
        ([(10.0, 10.0)], ((8.0, 12.0),)),
        ([(1.0, 2.0)], ((0.0, 4.0),)),
        ([(-3.0, -1.0)], ((0.0, 4.0),)),
        ([(-3.0, 7.0)], ((0.0, 7.0),)),
        ([(10.0, 11.0), (15.0, 16.0)], ((8.5, 17.5),)),  # each grows to 4 s, and then they are 1 s apart
        ([(10.0, 11.0), (16.0, 17.0)], ((8.5, 12.5), (14.5, 18.5))),
    ],
)
def test_stretches(times: list[tuple[float, float]], expected: tuple[tuple[float, float], ...]) -> None:
    assert stretches(captions_at(*times)) == expected


def test_stretches_without_gaps_or_growth() -> None:
    found = stretches(captions_at((1, 2), (2, 3), (3.1, 3.2), (5, 5)), gap=0, least=0.5)
    assert found == ((1.0, 3.4), (4.8, 5.3))
    assert stretches(captions_at((1, 2), (2, 3), (3.1, 3.2)), gap=0, least=0) == ((1.0, 3.0), (3.1, 3.2))


def slow_stretches(captions: list[Caption], gap: int, least: int) -> list[tuple[int, int]]:
    """Oracle in tenths of a second, for captions at such times: a timeline of cells, joined and grown cell by cell."""

    def runs(cells: list[bool]) -> list[tuple[int, int]]:
        changes = [k for k in range(len(cells) + 1) if (k > 0 and cells[k - 1]) != (k < len(cells) and cells[k])]
        return list(zip(changes[::2], changes[1::2], strict=True))

    def joined(cells: list[bool]) -> list[bool]:
        for (_, end), (start, _) in itertools.pairwise(runs(cells)):
            if start - end < gap:
                cells[end:start] = [True] * (start - end)
        return cells

    cells = [False] * 1000
    for start, end, _ in captions:
        for k in range(round(start * 10), round(end * 10)):
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
def test_stretches_equal_a_slow_oracle(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(20):
        times = [(start, start + rng.randint(1, 60)) for start in (rng.randrange(800) for _ in range(rng.randrange(9)))]
        captions = captions_at(*((start / 10, end / 10) for start, end in times))
        gap, least = rng.choice([(20, 40), (1, 30), (35, 10)])
        found = stretches(captions, gap / 10, least / 10)
        assert found == tuple((start / 10, end / 10) for start, end in slow_stretches(captions, gap, least))


@pytest.mark.parametrize("seed", range(20))
def test_stretches_keep_what_they_promise(seed: int) -> None:
    rng = random.Random(seed)
    times = [
        (start, start + rng.expovariate(0.5)) for start in (rng.uniform(-5, 200) for _ in range(rng.randrange(1, 40)))
    ]
    captions = captions_at(*times)
    found = stretches(captions)
    assert all(round(time * 10) / 10 == time for stretch in found for time in stretch)
    assert all(start >= 0 and end - start > 4 - 1e-9 for start, end in found)
    assert all(after - end > 2 - 1e-9 for (_, end), (after, _) in itertools.pairwise(found))
    for start, end in times:
        covering = [a <= max(0, start) + 1e-6 and end - 1e-6 <= b for a, b in found]
        assert sum(covering) == 1
    assert stretches([Caption(start, end, "") for start, end in found]) == found
    rng.shuffle(captions)
    assert stretches(captions) == found


# --- the clock of what is kept -------------------------------------------------------------------------------------


def test_words_move_with_the_stretch_they_are_in() -> None:
    words = Words(
        token=[1, 2, 3, 4, 5, 6, 7, 8], start=[0, 9.5, 10, 13, 14, 14, 29, 31], end=[1, 10.5, 11, 15, 15, 14, 30, 32]
    )
    assert on_kept_clock(words, [(10.0, 14.0), (30.0, 34.0)]) == Words(
        token=[2, 3, 4, 8], start=[0.0, 0.0, 3.0, 5.0], end=[0.5, 1.0, 4.0, 6.0]
    )
    assert on_kept_clock(words, []) == words
    assert on_kept_clock(words, [(100.0, 104.0)]) == Words([], [], [])
    assert on_kept_clock(Words([], [], []), [(100.0, 104.0)]) == Words([], [], [])


def slow_kept_clock(words: Words, stretches: list[tuple[float, float]]) -> Words:
    """Oracle: cuts the parts that are not kept out one at a time, from the last to the first."""
    result = Words([], [], [])
    for token, start, end in zip(words.token, words.start, words.end, strict=True):
        if not any(a <= start < b or start <= a < end for a, b in stretches):
            continue
        gaps = list(zip([0.0, *(b for _, b in stretches)], [*(a for a, _ in stretches), 1e9], strict=True))
        for a, b in reversed(gaps):
            start, end = (min(t, a) if t < b else t - (b - a) for t in (start, end))
        result.token.append(token), result.start.append(start), result.end.append(end)
    return result


@pytest.mark.parametrize("seed", range(20))
def test_the_kept_clock_equals_a_slow_oracle(seed: int) -> None:
    rng = random.Random(seed)
    starts = sorted(rng.choice([rng.uniform(0, 100), float(rng.randrange(100))]) for _ in range(100))
    words = Words(list(range(100)), starts, [start + rng.choice([0.0, 1.0, rng.expovariate(0.3)]) for start in starts])
    edges = sorted(rng.sample(range(100), 2 * rng.randrange(1, 8)))
    kept = [(float(start), float(end)) for start, end in zip(edges[::2], edges[1::2], strict=True)]
    found, expected = on_kept_clock(words, kept), slow_kept_clock(words, kept)
    assert found.token == expected.token
    assert found.start == pytest.approx(expected.start, abs=1e-9)
    assert found.end == pytest.approx(expected.end, abs=1e-9)
    assert found.start == sorted(found.start)
    assert all(start <= end for start, end in zip(found.start, found.end, strict=True))
    assert {type(value) for value in (*found.token, *found.start)} <= {int, float}


def test_words_of_captions_all_have_a_place_in_their_stretches() -> None:
    rng = random.Random(0)
    vocabulary = Vocabulary({"stir": 0}, [])
    for _ in range(50):
        starts = [rng.uniform(0, 300) for _ in range(20)]
        captions = [Caption(start, start + rng.uniform(0.1, 5), "stir it and stir") for start in starts]
        words, kept = vocabulary.words(captions), stretches(captions)
        moved = on_kept_clock(words, kept)
        assert len(moved.token) == 40
        lengths = np.subtract(words.end, words.start)
        assert np.subtract(moved.end, moved.start) == pytest.approx(lengths, abs=1e-6)
        assert max(moved.end) <= sum(end - start for start, end in kept) + 1e-6


# --- videos and their captions -------------------------------------------------------------------------------------

LISTEN = Vocabulary({"bark": 0, "meow": 1, "moo": 2}, [])


def written(source: Path, layout: str, said: dict[str, str]) -> None:
    """Captions of one word, by what they are called, in one of the three layouts."""
    if layout == "caption.json":
        videos = {id: {"start": [0], "end": [5], "text": [text]} for id, text in said.items()}
        (source / layout).write_text(json.dumps(videos))
    elif layout == "x.csv":
        (source / layout).write_text("video_id,start,end,text\n" + "".join(f"{a},0,5,{b}\n" for a, b in said.items()))
    else:
        for id, text in said.items():
            (source / layout / f"{id}.csv").parent.mkdir(parents=True, exist_ok=True)
            (source / layout / f"{id}.csv").write_text(f"start,end,text\n0,5,{text}\n")


def tokens(source: Path, dataset: str = "folder", only_captioned: bool = False) -> dict[str, list[int] | str]:
    """The words of each video, or why it is left out."""
    with find(source) as captions:
        items = attach(DATASETS[dataset].listing(source), captions, LISTEN, source, only_captioned)
        return {item.id: item.reason if isinstance(item, Missing) else item.words.token for item in items}


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    """Videos of one name in several folders."""
    for name in ("a.mp4", "cats/a.mp4", "dogs/a.webm", "dogs/indoor/a.mp4"):
        (tmp_path / "pets" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "pets" / name).touch()
    return tmp_path / "pets"


LAYOUTS = pytest.mark.parametrize("layout", ["caption.json", "x.csv", "captions"])


@LAYOUTS
def test_videos_of_one_name_have_their_own_captions(
    pets: Path, layout: str, capsys: pytest.CaptureFixture[str]
) -> None:
    written(pets, layout, {"cats/a": "meow", "dogs/a": "bark", "dogs/indoor/a.mp4": "bark bark"})
    expected = {"a.mp4": [], "cats/a.mp4": [1], "dogs/a.webm": [0], "dogs/indoor/a.mp4": [0, 0]}
    assert tokens(pets) == expected
    written(pets, layout, {"cats/a": "meow", "dogs/a": "bark", "dogs/indoor/a.mp4": "bark bark", "a": "moo"})
    assert tokens(pets) == expected | {"a.mp4": [2]}
    assert capsys.readouterr().out == ""
    written(pets, layout, {"cats/a.mp4": "meow meow", "cats/a": "moo"})
    assert tokens(pets)["cats/a.mp4"] == [1, 1]  # by its id before any other name


@LAYOUTS
def test_captions_of_a_bare_name_are_those_of_the_video_beside_them(
    pets: Path, layout: str, capsys: pytest.CaptureFixture[str]
) -> None:
    written(pets, layout, {"a": "moo", "dogs/a": "bark"})
    assert tokens(pets) == {"a.mp4": [2], "cats/a.mp4": [], "dogs/a.webm": [0], "dogs/indoor/a.mp4": []}
    assert capsys.readouterr().out == (
        f"2 videos were given no captions: those of 'a' count only for a video a.* in {pets} itself; "
        "name them by their path, such as 'cats/a'\n"
    )
    (pets / "cats" / "a.mp4").unlink()
    assert tokens(pets, only_captioned=True)["dogs/indoor/a.mp4"] == "there are no captions of it"
    assert capsys.readouterr().out.startswith("1 video was given no captions: those of 'a' count only for a video a.*")


@LAYOUTS
def test_where_a_name_is_an_id_it_is_found_in_any_folder(
    tmp_path: Path, layout: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("0wR5jVB-WPk.mp4", "part1/-caPS4FHFF8.webm", "part2/silent.mkv"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    written(tmp_path, layout, {"0wR5jVB-WPk": "moo", "-caPS4FHFF8": "bark"})
    (tmp_path / "synthetic.json").touch()  # so that none is made
    for dataset in ("howto100m", "synthetic"):
        assert tokens(tmp_path, dataset) == {"0wR5jVB-WPk": [2], "-caPS4FHFF8": [0], "silent": []}
    assert capsys.readouterr().out == ""


def test_a_video_whose_captions_are_damaged_is_named(pets: Path) -> None:
    written(pets, "captions", {"cats/a": "meow"})
    (pets / "captions" / "a.csv").write_text("start,end\n")
    os.mkfifo(pets / "captions" / "dogs.csv")
    (pets / "dogs.mp4").touch()
    found = tokens(pets)
    assert found["cats/a.mp4"] == [1] and found["dogs/a.webm"] == []
    assert re.fullmatch("its captions cannot be read: .*/captions/a.csv has no column text; .*", str(found["a.mp4"]))
    assert re.match("its captions cannot be read: .*/captions/dogs.csv is a FIFO, not a file", str(found["dogs.mp4"]))


# --- HowTo100M -----------------------------------------------------------------------------------------------------


def test_howto100m(tmp_path: Path) -> None:
    for name in ("0wR5jVB-WPk.mp4", "part1/-caPS4FHFF8.webm", "part2/x/unlisted.mkv"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert [(video.id, video.label) for video in howto100m.listing(tmp_path)] == [
        ("0wR5jVB-WPk", ""), ("-caPS4FHFF8", ""), ("unlisted", ""),
    ]  # fmt: skip
    (tmp_path / "HowTo100M_v1.csv").write_text(
        "video_id,category_1,category_2,rank,task_id\nmissing0001,Pets,Dogs,1,2\n"
        '0wR5jVB-WPk,Food and Entertaining,"Recipes, quick",12,105253\n-caPS4FHFF8,Home and Garden,,1,2\n'
    )
    assert list(DATASETS["howto100m"].listing(tmp_path)) == [
        Video("0wR5jVB-WPk", tmp_path / "0wR5jVB-WPk.mp4", "Food and Entertaining", "train"),
        Video("-caPS4FHFF8", tmp_path / "part1/-caPS4FHFF8.webm", "Home and Garden", "train"),
        Video("unlisted", tmp_path / "part2/x/unlisted.mkv", "", "train"),
        Missing("missing0001", "listed in HowTo100M_v1.csv, but there is no such file"),
    ]
    assert DATASETS["howto100m"].captioned


def test_howto100m_without_videos(tmp_path: Path) -> None:
    (tmp_path / "caption.json").touch()
    with pytest.raises(UserError, match=r"there are no videos in .*; expected\nsource/0wR5jVB-WPk.mp4"):
        list(howto100m.listing(tmp_path))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "HowTo100M_v1.csv is not the official table; expected video_id,category_1,"),
        (b"id,label\na,b\n", "is not the official table"),
        (b"video_id,category_1\na\n", "line 2: 1 fields, but 2 in the header"),
        (b'video_id,category_1\na,"b', "is damaged: unexpected end of data; copy or download it again"),
        (b"video_id,category_1\na,\xe9\n", "is damaged: .*utf-8.*; copy or download it again"),
    ],
)
def test_a_damaged_table_of_howto100m_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "HowTo100M_v1.csv").write_bytes(content)
    with pytest.raises(UserError, match=message):
        list(howto100m.listing(tmp_path))
