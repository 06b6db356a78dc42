"""Files of captions: their layouts and their content."""

import json
import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from gdt.common.errors import UserError
from gdt.common.folders import Folder
from gdt.preprocess.captions.readers import Caption, Captions

HELLO = {"start": [1], "end": [2], "text": ["hello"]}


def find(source: Path) -> Captions:
    captions = Captions.find(Folder(source))
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
    assert len(captions) == 2 and captions.named(["b", "cats/b"]) == "cats/b"
    assert captions.get("-_xY..123 4") == [(1, 2, "first"), (3.5, 4, "one, two")]
    assert captions.get("cats/b") == [(0, 1, "x")]


def test_what_downloaders_and_whisper_put_beside_captions(tmp_path: Path) -> None:
    """Of several formats the last that holds captions counts; files that hold none are counted."""
    vtt = "WEBVTT\n\n00:01.000 --> 00:02.000\nhi\n"
    segments = [{"id": 0, "start": 1.0, "end": 2.5, "text": " dogs"}, {"id": 1, "start": 2.5, "end": 3, "text": "cats"}]
    whisper = json.dumps({"text": " dogs cats", "segments": segments, "language": "en"})
    for name, content in {
        "a.en.vtt": vtt, "a.live_chat.json": '{"action": 1}\n{"action": 2}\n', "a.info.json": '{"id": "a"}',
        "b.json": whisper, "b.txt": "dogs", "b.tsv": "start\tend\ttext\n",
        "c.json": whisper, "c.srt": "1\n00:00:05,000 --> 00:00:06,000\nhello\n",
        "d.csv": "start,end,text\n1,2,said\n", "d.json": "[1, 2]", "stats.csv": "views,likes\n1,2\n",
        "e.json": json.dumps(segments), "f.json": '{"text": "hello"}', "g.json": "", "h.json": '{"segments": null}',
        "i.json": '{"segments": [{"segment": [1, 2], "labels": "x"}]}',
    }.items():  # fmt: skip
        write(tmp_path / "captions" / name, content)
    captions = find(tmp_path)
    assert captions.get("a.en") == [(1, 2, "hi")] and captions.get("b") == [(1, 2.5, "dogs"), (2.5, 3, "cats")]
    assert captions.get("c") == [(5, 6, "hello")] and captions.get("d") == [(1, 2, "said")] and len(captions) == 5
    assert captions.get("e") == captions.get("b")
    none = ["a.info.json", "a.live_chat.json", "d.json", "f.json", "g.json", "h.json", "i.json", "stats.csv"]
    assert captions.others == none


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_subtitles_as_they_are_written(tmp_path: Path, encoding: str, newline: str) -> None:
    """Encodings, blank lines, tags, and a number as the text."""
    srt = "\n1\n00:00:01,500 --> 00:00:02,000\n<font color='red'>Caf\u00e9</font> {\\an8}olé\n\n\n"
    srt += "2\n00:00:03,000 --> 00:00:04,000 X1:1\n2001\n \n\n"
    srt += "3\n01:00:05,000 --> 01:00:06,000\n{\\i1}a < b, c > d{\\i0}\nso 1 --> 2\n"
    vtt = "WEBVTT - x\n\nSTYLE\n::cue {}\n\nNOTE\nno caption\n\nname\n01:01.500 --> 01:02.000 line:0\n<v Ann>Yes</v>\n"
    for name, text in (("a.srt", srt), ("b.VTT", vtt), ("c.srt", ""), ("d.vtt", "WEBVTT\n")):
        write(tmp_path / "captions" / name, text.replace("\n", newline).encode(encoding))
    captions = find(tmp_path)
    assert captions.get("a") == [(1.5, 2, "Caf\u00e9 olé"), (3, 4, "2001"), (3605, 3606, "a < b, c > d\nso 1 --> 2")]
    assert captions.get("b") == [(61.5, 62, "Yes")] and len(captions) == 2


def stamp(seconds: float) -> str:
    return f"{int(seconds // 60):02}:{seconds % 60:06.3f}"


def cue(start: float, end: float, *rows: str) -> str:
    return "\n".join([f"{stamp(start)} --> {stamp(end)} align:start position:0%", *rows, "\n"])


@pytest.mark.parametrize(
    ("rows", "settled", "timed"), [(2, True, True), (2, True, False), (3, False, True), (2, False, False)]
)
def test_rolling_captions_hold_each_word_once(tmp_path: Path, rows: int, settled: bool, timed: bool) -> None:
    """Each cue shows a line while it is said, maybe with times of its words, below those before it.

    YouTube's have two rows, and between two lines a cue of 10 ms, `settled`, of what stays.
    """
    rng = random.Random(0)
    times = [round(0.5 * (k + rng.random()), 3) for k in range(60)]
    said = [(time, rng.choice(["no", "yes", "stir", "the", "pan", "I'm"]) + str(k)) for k, time in enumerate(times)]
    cuts = [0, *sorted(rng.sample(range(1, 60), 14)), 60]
    lines = [said[a:b] for a, b in pairwise(cuts)]
    if not timed:
        lines = [[(line[0][0], " ".join(word for _, word in line))] for line in lines]
    written, expected, above = "WEBVTT\nKind: captions\nLanguage: en\n\n", [], [" "] * (rows - 1)
    for line, after in zip(lines, [*(line[0][0] for line in lines[1:]), 31.0], strict=True):
        last = round(after - 0.01 * settled, 3)
        (start, first), *others = line
        words = "".join(f"<00:{stamp(time)}><c> {word}</c>" for time, word in others)
        written += cue(start, last, *above, first + words)
        above = [*above, " ".join(word for _, word in line)][1:]
        written += cue(last, after, above[-1], " ") if settled else ""
        ends = [*(time for time, _ in others), last]
        expected += [(time, end, word) for (time, word), end in zip(line, ends, strict=True)]
    write(tmp_path / "captions/a.vtt", written)
    assert find(tmp_path).get("a") == expected


def test_what_is_said_again_is_kept(tmp_path: Path) -> None:
    cues = [cue(1, 2, "No!"), cue(2.1, 3, "No!"), cue(3, 4, "No!", "Stop!"), cue(4, 5, "Stop! No!")]
    cues += [cue(5, 6, "Go", "No!"), cue(6, 7, "No!", "No!")]
    write(tmp_path / "captions/a.vtt", "".join(["WEBVTT\n\n", *cues]))
    texts = [caption.text for caption in find(tmp_path).get("a")]
    assert texts == ["No!", "No!", "Stop!", "Stop! No!", "Go\nNo!", "No!"]


def test_character_references_and_tags_are_no_words(tmp_path: Path) -> None:
    text = "&gt;&gt; <i>rock</i> &amp; roll&nbsp;&#39;n&#x27; {\\an8}R&B &lt;b&gt;"
    expected = ">> rock & roll\xa0'n' R&B <b>"
    write(tmp_path / "1/caption.json", json.dumps({"a": {"start": [0], "end": [1], "text": [text]}}))
    write(tmp_path / "2/x.csv", f'video_id,start,end,text\na,0,1,"{text}"\n')
    write(tmp_path / "3/captions/a.csv", f'start,end,text\n0,1,"{text}"\n')
    write(tmp_path / "4/captions/a.srt", f"1\n00:00:00,000 --> 00:00:01,000\n{text}\n")
    write(tmp_path / "5/captions/a.vtt", f"WEBVTT\n\n00:00.000 --> 00:01.000\n{text}\n")
    for number in range(1, 6):
        assert find(tmp_path / str(number)).get("a") == [(0, 1, expected)], number


def test_of_several_languages_english_or_the_first_counts(tmp_path: Path) -> None:
    names = ["a.de", "a.en-US", "a.zh-Hans", "b.fr", "b.de", "c.en", "c", "d.avi", "e/f.en-orig", "g.mp4"]
    for name in names:
        write(tmp_path / f"captions/{name}.vtt", "WEBVTT\n\n00:00.000 --> 00:01.000\nx\n")
    captions = find(tmp_path)
    expected = {"a": "a.en-US", "b": "b.de", "c": "c", "e/f": "e/f.en-orig", "g": "", "f": "", "": ""}
    expected |= {id: id for id in ("a.de", "d.avi", "g.mp4")}
    assert {id: captions.named([id]) for id in expected} == expected
    assert captions.unused({"a", "c", "d.avi", "g.mp4"}) == ["b.de", "b.fr", "e/f.en-orig"]


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
    assert Captions.find(Folder(tmp_path)) is None


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
    ("name", "content", "message"),
    [
        (
            "caption.json",
            [1],
            "captions of video 'a' of .*caption.json: .*; expected {start: \\[...\\], end: .*in seconds",
        ),
        ("caption.json", {"start": {}, "end": {}, "text": {}}, "a column is not a list but dict; expected {start"),
        ("caption.json", {"start": ["early"], "end": [2], "text": ["x"]}, "'early'; expected"),
        ("caption.json", b'{"a": {"start": [1, 2', "caption.json is not valid JSON: parse error: premature EOF; copy"),
        ("caption.json", b"[]", r"caption.json holds no captions; expected:\nsource/caption.json"),
        ("captions/a.csv", b"start,text\n1,x\n", "a.csv has no column end; expected start,end,text"),
        ("captions/a.json", b'{"start": [', "cannot read the captions of .*a.json: Expecting value"),
        ("x.csv", b"video_id,start,end,text\na,0,1,x\nb,zero,1,x\n", "captions of video 'b' of .*x.csv: .*'zero'"),
        ("captions/a.vtt", b"<html>", "cannot read the captions of .*a.vtt: Invalid format; expected an .srt or .vtt"),
        ("captions/a.srt", b"caf\xe9", "the captions of .*a.srt: .*'utf-8'.*; expected an .srt or .vtt in UTF"),
        ("captions/a.srt", b"1\n00:00:01,0 --> 00:00:02,0\nx\n\n2\n0:02 --> 0:03\ny\n", "'0:02 --> 0:03' are no times"),
    ],
)
def test_a_damaged_file_or_an_unexpected_layout_is_refused(
    tmp_path: Path, name: str, content: Any, message: str
) -> None:
    write(tmp_path / name, content if isinstance(content, bytes) else json.dumps({"a": content, "b": HELLO}))
    with pytest.raises(UserError, match=message):
        find(tmp_path)
