"""Files of captions: their layouts, their content, and bounds of what is read."""

from __future__ import annotations

import json
import math
import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gdt.common.errors import UserError
from gdt.preprocess.captions import readers
from gdt.preprocess.captions.readers import Caption, Captions
from tests.conftest import ROOT
from tests.preprocess.test_fuzz import COUNT, INTACT, SEED, damaged

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


# --- layouts --------------------------------------------------------------------------------------------


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


def test_captions_are_looked_for_in_order(tmp_path: Path) -> None:
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


def test_a_folder_without_captions_gives_none(tmp_path: Path) -> None:
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


# --- content -----------------------------------------------------------------------------------------------


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
    found = readers._captions(columns, "here")
    assert found == [(1.25, 2.0, "a"), (2.5, 3.0, "b"), (3.0, 4.5, "c")]
    assert {type(time) for caption in found for time in caption[:2]} == {float}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([1], r"video 'a': no list start, end, text; expected \{start: \[...\], end: \[...\], text: \[...\]\}"),
        ({"start": [1], "end": [2]}, "video 'a': no list text; expected {start"),
        ({"start": 1, "end": 2, "text": "x"}, "video 'a': no list start, end, text; expected {start"),
        (
            {"start": [1, 2], "end": [2], "text": ["x"]},
            "video 'a': the lists differ in length, 2 of start, 1 of end, 1 of",
        ),
        ({"start": ["early"], "end": [2], "text": ["x"]}, "video 'a': the time 'early' is not a number of seconds"),
        ({"start": [[]], "end": [2], "text": ["x"]}, r"video 'a': the time \[\] is not a number of seconds"),
        ({"start": [1], "end": [2], "text": [["x"]]}, r"video 'a': \['x'\] is not text"),
        (
            {"start": ["early" * 999], "end": [2], "text": ["x"]},
            r"'early.{,200}\.\.\..{,200}' is not a number",
        ),
    ],
)
def test_an_unexpected_layout_is_refused(tmp_path: Path, content: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        read(tmp_path, content)
    assert list((tmp_path / "scratch").iterdir()) == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            b'{"a": {"start": [1, 2',
            r"caption.json is not valid JSON \(error at or before byte 21\): parse error: premature EOF; copy",
        ),
        (b"", "premature EOF"),
        (b'{"a": NaN}', "lexical error: invalid char in json text"),
        (
            b'{"a": {"start": [1], "end": [2], "text": ["\xe9"]}}',
            r"JSON \(.*\): lexical error: invalid bytes in UTF8 string.; c",
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
        (b"", "a.csv has no column start, end, text; expected start,end,text"),
        (b"start,end,text\n1,2\n", "line 2 of .*a.csv: the row does not have 3 values; expected start,end,text"),
        (b"start,end,text\n1,2,x,y\n", "line 2 of .*a.csv: the row does not have 3 values; expected start,end,text"),
        (b'start,end,text\n1,2,"x\n', "line 2 of .*a.csv: unexpected end of data; expected start,end"),
        (b"start,end,text\n1,2,\xe9\n", "a.csv is not UTF-8 text: .*; convert it"),
        (b"start,end,text\n1,2 s,x\n", "a.csv: the time '2 s' is not a number of seconds"),
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
        with pytest.raises(UserError, match="a.json is not valid JSON: Expecting value.*; copy or download it again"):
            captions.get("a")
        with pytest.raises(UserError, match=r"b.json: no list start, end, text; expected \{start"):
            captions.get("b")


def test_a_damaged_csv_of_many_videos_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("video_id,start,end,text\na,0,1,x\nb,zero,1,x\n")
    with pytest.raises(UserError, match=r"x.csv, video 'b': the time 'zero' is not a number of seconds"):
        find(tmp_path)
    (tmp_path / "x.csv").write_text("video_id,start,end,text\n")
    with pytest.raises(UserError, match=r"x.csv holds no captions"):
        find(tmp_path)


def test_an_unwritable_scratch_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "caption.json").write_text(json.dumps({"a": HELLO}))
    (tmp_path / "scratch").write_text("a file")
    with pytest.raises(UserError, match=r"cannot store captions in .*/scratch: File exists; they take about"):
        find(tmp_path)


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="needs a file that cannot be read")
@pytest.mark.parametrize("name", ["caption.json", "x.csv", "captions/a.csv", "captions/a.json"])
def test_unreadable_captions_are_refused(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gdt.common.files._virtual_devices", frozenset)  # else refused as virtual
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).symlink_to("/proc/self/mem")  # a regular file, and its first bytes are nowhere
    with pytest.raises(UserError, match=f"cannot read .*{name}: Input/output error"), find(tmp_path) as captions:
        captions.get("a")


@pytest.mark.timeout(20)
@pytest.mark.parametrize("name", ["caption.json", "captions.json", "x.csv", "captions/a.csv", "csv/a.json"])
@pytest.mark.parametrize(("what", "target"), [("FIFO", "fifo"), ("device", "/dev/null"), ("broken link", "absent")])
def test_captions_that_are_not_regular_files_are_refused(tmp_path: Path, name: str, what: str, target: str) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).symlink_to(tmp_path / target)
    with pytest.raises(UserError, match=f"/{name} is a {what}, not a file"), find(tmp_path) as captions:
        captions.get("a")


def test_a_full_disk_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "caption.json").write_text(json.dumps({f"{k} {'x' * 999}": HELLO for k in range(99)}))

    def small(*arguments: Any, **options: Any) -> sqlite3.Connection:
        found = connect(*arguments, **options)
        found.execute("PRAGMA max_page_count=9")
        return found

    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", small)
    with pytest.raises(UserError, match="cannot store captions in .*: No space left on device; they take about"):
        find(tmp_path)


def test_the_scratch_file_has_no_name_and_is_closed(tmp_path: Path) -> None:
    (tmp_path / "caption.json").write_text(json.dumps({"a": HELLO}))
    with find(tmp_path) as captions:
        assert list((tmp_path / "scratch").iterdir()) == []
        assert captions.get("a") == [(1, 2, "hello")]
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        captions.get("a")


MEMORY = """
import sys
from pathlib import Path
import ijson
from gdt.preprocess.captions.readers import Captions

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


# --- bounds ----------------------------------------------------------------------------

OPEN_ALL = """
import json, resource, sys
from pathlib import Path
from gdt.common.errors import UserError
from gdt.preprocess.captions.readers import Captions

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
    """The captions of the video 'a' in each folder, or the error; with 300 MB of memory."""
    result = subprocess.run(
        [sys.executable, "-c", OPEN_ALL], input="\n".join(map(str, folders)),
        cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True, timeout=200,
    )  # fmt: skip
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux to tell the memory")
@pytest.mark.parametrize("name", ["caption.json", "captions/a.json"])
def test_deeply_nested_lists_are_refused(tmp_path: Path, name: str) -> None:
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
        reason = "(has lists nested too deeply for captions|holds no captions)"
        assert re.match(rf"UserError: {folder / name} {reason}.*; expected .*\{{start: \[...\]", outcome)


def test_other_keys_may_be_nested(tmp_path: Path) -> None:
    words = [{"word": "hello", "tokens": [[1, 2], []]}]
    assert read(tmp_path, {"words": words, **HELLO, "text of all": "hello"}) == [(1, 2, "hello")]


@pytest.mark.timeout(20)
@pytest.mark.parametrize("value", ["0." + "1" * 3_000_000, "1" * 3_000_000, f'"{"x" * 3_000_000}"', " " * 3_000_000])
def test_an_endless_value_is_refused(tmp_path: Path, value: str) -> None:
    (tmp_path / "caption.json").write_text(f'{{"a": {{"start": [{value}')
    with pytest.raises(UserError, match=r"cannot parse .*caption.json: a value is longer than 1 MB \(after reading 1"):
        find(tmp_path)


@pytest.mark.parametrize("name", ["caption.json", "x.csv", "captions/a.csv", "captions/a.json"])
def test_captions_of_one_video_are_bounded(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "_MAX_BYTES", 1 << 20)
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
    message = rf"{name} holds more than 1 MB of captions of one video \(after reading .* bytes\); check that"
    with pytest.raises(UserError, match=message), find(tmp_path) as captions:
        captions.get("a")


def test_an_endless_line_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "_MAX_BYTES", 1 << 20)
    source = tmp_path / "source"
    source.mkdir()
    (source / "x.csv").write_text("a," * 1_000_000)
    with pytest.raises(UserError, match=r"x.csv holds more than 1 MB of header \(after reading 1"):
        find(source)
    (source / "x.csv").write_text("video_id,start,end,text\n" + "a," * 1_000_000)
    with pytest.raises(UserError, match=r"x.csv holds more than 1 MB of captions of one video \(after reading 1"):
        find(source)
    (source / "x.csv").write_text('video_id,start,end,text\n"' + "a" * 1_000_000)
    with pytest.raises(UserError, match="line . of .*x.csv: field larger than field limit"):
        find(source)


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
def test_damaged_captions_are_read_or_refused_with_a_message(tmp_path: Path) -> None:
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
        errors = [isinstance(outcome, str) for outcome in outcomes[layout :: len(FUZZED)]]
        assert COUNT / 10 < sum(errors) < COUNT * 9 / 10
