"""Files of captions: their layouts and their content."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gdt.common.errors import UserError
from gdt.preprocess.captions.readers import Caption, Captions

HELLO = {"start": [1], "end": [2], "text": ["hello"]}


def find(source: Path) -> Captions:
    captions = Captions.find(source)
    assert captions is not None
    return captions


def write(path: Path, content: str | bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())


def read(tmp_path: Path, content: Any) -> list[Caption]:
    """What is read of a video 'a' whose captions are `content`."""
    write(tmp_path / "caption.json", json.dumps({"a": content, "b": HELLO}))
    return find(tmp_path).get("a")


# --- layouts --------------------------------------------------------------------------------------------


def test_the_json_of_howto100m(tmp_path: Path, real: Path) -> None:
    text = (real / "captions" / "grid_captions.json").read_text()
    write(tmp_path / "caption.json", text)
    captions = find(tmp_path)
    assert len(captions) == 120
    for id, video in json.loads(text).items():
        assert captions.get(id) == list(zip(video["start"], video["end"], video["text"], strict=True))
    assert captions.get("bbas3a")[0] == Caption(0.98, 1.47, "bin blue at")
    assert captions.get("unknown") == []


def test_a_csv_of_many_videos(tmp_path: Path, real: Path) -> None:
    write(tmp_path / "youcook2_validation.csv", (real / "captions" / "youcook2_validation.csv").read_bytes())
    write(tmp_path / "HowTo100M_v1.csv", "video_id,category_1\na,Pets\n")  # holds no captions
    captions = find(tmp_path)
    assert captions.get("xHr8X2Wpmno")[0] == Caption(47.0, 60.0, "pick the ends off the verdalago")
    rows = (tmp_path / "youcook2_validation.csv").read_text().splitlines()[1:]
    ids = {row.rpartition(",")[2] for row in rows}
    assert len(captions) == len(ids)
    assert sum(len(captions.get(id)) for id in ids) == len(rows)


def test_rows_of_a_video_may_be_apart_and_in_several_files(tmp_path: Path) -> None:
    write(tmp_path / "1.csv", "video_id,start,end,text\na,5,6,e\nb,0,1,x\na,1,2,b\na,1,9,c\n")
    write(tmp_path / "2.csv", "text,video_id,end,start\nd,a,3,1\n'a',a,1,0\n")
    captions = find(tmp_path)
    assert [caption.text for caption in captions.get("a")] == ["'a'", "b", "c", "d", "e"]
    assert captions.get("b") == [(0, 1, "x")]


def test_a_file_per_video(tmp_path: Path) -> None:
    write(tmp_path / "captions/-_xY..123 4.csv", ',start,end,text\n0,"3.5",4,"one, two"\n1,1,2,first\n')
    write(tmp_path / "captions/cats/b.json", '{"text": ["x", NaN], "start": [0, NaN], "end": [1, 2]}')
    write(tmp_path / "captions/._b.json", "left by macOS")
    (tmp_path / "captions" / "cats" / "again").symlink_to(tmp_path / "captions")  # seen already
    captions = find(tmp_path)
    assert len(captions) == 2 and "cats/b" in captions and "b" not in captions
    assert captions.get("-_xY..123 4") == [(1, 2, "first"), (3.5, 4, "one, two")]
    assert captions.get("cats/b") == [(0, 1, "x")]


def test_subtitles(tmp_path: Path) -> None:
    write(tmp_path / "captions/a.srt", "\ufeff1\r\n00:00:01,500 --> 01:00:02,000\r\n<i>Stir</i>\r\nit\r\n\r\n2\r\n"
          "00:00:00,000 --> 00:00:01,000\r\nfirst")  # fmt: skip
    write(
        tmp_path / "captions/b.vtt",
        "WEBVTT\n\nNOTE a --> b\n\nx\n00:01.250 --> 00:02.000 align:start\n<c.red>One</c> two\n",
    )
    captions = find(tmp_path)
    assert captions.get("a") == [(0, 1, "first"), (1.5, 3602, "Stir\nit")]
    assert captions.get("b") == [(1.25, 2, "One two")]


def test_captions_are_looked_for_in_order(tmp_path: Path) -> None:
    for name in ["x.csv", "csv/a.csv", "captions/a.csv"]:
        write(tmp_path / name, f"video_id,start,end,text\na,0,1,{name}\n")
        assert find(tmp_path).get("a") == [(0, 1, name)]
    for name in ["raw_caption_superclean.json", "captions.json", "raw_caption.json", "caption.json"]:
        write(tmp_path / name, json.dumps({"a": {"start": [0], "end": [1], "text": [name]}}))
        assert find(tmp_path).get("a") == [(0, 1, name)]


def test_a_folder_without_captions_gives_none(tmp_path: Path) -> None:
    (tmp_path / "captions").mkdir()
    write(tmp_path / "HowTo100M_v1.csv", "video_id,category_1\na,Pets\n")
    write(tmp_path / "empty.csv", "")
    write(tmp_path / "latin.csv", b"name\ncaf\xe9\n")
    assert Captions.find(tmp_path) is None


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


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([1], r"cannot read the captions of video 'a' of .*caption.json: .*; expected \{start: \[...\], end: "),
        ({"start": [1], "end": [2]}, "'text'; expected {start"),
        ({"start": [1, 2], "end": [2], "text": ["x"]}, "argument 2 is shorter than argument 1; expected {start"),
        ({"start": ["early"], "end": [2], "text": ["x"]}, "'early'; expected .* with times in seconds"),
    ],
)  # fmt: skip
def test_an_unexpected_layout_is_refused(tmp_path: Path, content: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        read(tmp_path, content)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("caption.json", b'{"a": {"start": [1, 2', "caption.json is not valid JSON: parse error: premature EOF; copy"),
        ("caption.json", b"[]", r"caption.json holds no captions; expected:\nsource/caption.json"),
        ("captions/a.csv", b"start,text\n1,x\n", "a.csv has no column end; expected start,end,text"),
        ("captions/a.json", b'{"start": [', "cannot read the captions of .*a.json: Expecting value"),
        ("x.csv", b"video_id,start,end,text\na,0,1,x\nb,zero,1,x\n", "captions of video 'b' of .*x.csv: .*'zero'"),
        ("x.csv", b"video_id,start,end,text\n", "x.csv holds no captions"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    write(tmp_path / name, content)
    with pytest.raises(UserError, match=message):
        find(tmp_path)
