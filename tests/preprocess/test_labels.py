"""A folder of videos: their ids, and what labels.csv says of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gdt.common.errors import UserError
from gdt.preprocess.datasets.listing import Missing, Video
from tests.preprocess.test_datasets import missing, table, touch
from tests.preprocess.test_datasets import videos as listed_videos

CATS = "path,label,split,colour\n"


def videos(root: Path) -> dict[str, Video]:
    listed = listed_videos("folder", root)
    assert len({video.id for video in listed}) == len(listed)
    return {video.id: video for video in listed}


def paths(root: Path) -> dict[str, str]:
    return {name: str(video.path.relative_to(root)) for name, video in videos(root).items()}


def write(root: Path, text: str | bytes) -> None:
    (root / "labels.csv").write_bytes(text if isinstance(text, bytes) else text.encode())


# ids


def test_a_video_moved_to_another_split_keeps_its_id(tmp_path: Path) -> None:
    touch(tmp_path, "cats/1.mp4", "train/dogs/é 1.mp4", "2.mp4")
    assert list(paths(tmp_path)) == ["2.mp4", "cats/1.mp4", "dogs/é 1.mp4"]
    for folder in ("test", "Validation", "val"):
        for name in list(paths(tmp_path)):
            before = tmp_path / paths(tmp_path)[name]
            after = tmp_path / folder / name
            after.parent.mkdir(parents=True, exist_ok=True)
            before.rename(after)
        assert paths(tmp_path) == {name: f"{folder}/{name}" for name in ("2.mp4", "cats/1.mp4", "dogs/é 1.mp4")}


def test_videos_with_the_same_name_in_several_splits_keep_their_whole_paths(tmp_path: Path) -> None:
    alone = ["train/cats/2.mp4", "test/dogs/1.mp4"]
    twins = ["train/cats/1.mp4", "test/cats/1.mp4", "3.mp4", "valid/3.mp4", "Test/3.mp4"]
    touch(tmp_path, *alone, *twins)
    expected = {name: name for name in twins} | {name.partition("/")[2]: name for name in alone}
    assert paths(tmp_path) == expected
    (tmp_path / "test/cats/1.mp4").unlink()
    assert paths(tmp_path)["cats/1.mp4"] == "train/cats/1.mp4"


def test_nested_folders_of_splits_give_unique_ids(tmp_path: Path) -> None:
    touch(
        tmp_path,
        "train/test/1.mp4",
        "test/1.mp4",
        "val/1.mp4",
        "val/train.mp4",
        "train/val/test/2.mp4",
        "cats/test/1.mp4",
    )
    assert paths(tmp_path) == {
        "cats/test/1.mp4": "cats/test/1.mp4", "test/1.mp4": "test/1.mp4", "train/test/1.mp4": "train/test/1.mp4",
        "train/val/test/2.mp4": "train/val/test/2.mp4", "val/1.mp4": "val/1.mp4", "train.mp4": "val/train.mp4",
    }  # fmt: skip


def test_folders_are_read_once_without_folders_of_splits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    walks, walk = [], os.walk
    monkeypatch.setattr("os.walk", lambda *arguments, **options: walks.append(1) or walk(*arguments, **options))
    touch(tmp_path, "cats/train/1.mp4")
    assert list(paths(tmp_path)) == ["cats/train/1.mp4"] and len(walks) == 1
    touch(tmp_path, "TEST/1.mp4")
    assert list(paths(tmp_path)) == ["1.mp4", "cats/train/1.mp4"] and len(walks) == 3


def test_names_below_a_split_that_are_not_utf8_are_reported(tmp_path: Path) -> None:
    touch(tmp_path, "test/a.mp4")
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/test/caf\xe9.mp4")).touch()
    write(tmp_path, "id,label\na.mp4,x\n")
    assert list(videos(tmp_path)) == ["a.mp4"]
    assert [item.reason for item in missing("folder", tmp_path)] == ["its name is not valid UTF-8; rename it"]


# labels.csv


def test_labels_csv_overrides_folders(tmp_path: Path) -> None:
    touch(tmp_path, "cats/1.mp4", "cats/2.mp4", "test/cats/3.mp4", "test/cats/4.mp4", "5.mp4")
    write(
        tmp_path,
        "Video, Split ,colour,label,Note\n./cats/1.mp4,Validation,blue,tom cat,\"said \"\"a, b\"\"\nand c\"\n\n"
        "test/cats/3.mp4, train ,, ,x\ncats/4.mp4,,é,lion,\n",
    )  # fmt: skip
    assert table("folder", tmp_path) == {
        "cats/1.mp4": ("tom cat", "val"), "cats/2.mp4": ("cats", ""), "cats/3.mp4": ("cats", "train"),
        "cats/4.mp4": ("lion", "test"), "5.mp4": ("", ""),
    }  # fmt: skip
    assert {name: video.columns for name, video in videos(tmp_path).items()} == {
        "cats/1.mp4": (("colour", "blue"), ("Note", 'said "a, b"\nand c')), "cats/2.mp4": (), "5.mp4": (),
        "cats/3.mp4": (("colour", ""), ("Note", "x")), "cats/4.mp4": (("colour", "é"), ("Note", "")),
    }  # fmt: skip
    assert missing("folder", tmp_path) == []


def test_blanks_around_values_and_column_names_are_removed(tmp_path: Path) -> None:
    touch(tmp_path, "1.mp4", "2.mp4", "3.mp4")
    write(
        tmp_path,
        'path , weather,time of day \n1.mp4, sunny,late  morning\n2.mp4,"sunny\t"," late  morning\n"\n3.mp4,\u00a0,x\n',
    )
    columns = [video.columns for video in videos(tmp_path).values()]
    assert columns[0] == columns[1] == (("weather", "sunny"), ("time of day", "late  morning"))  # inside it is kept
    assert columns[2] == (("weather", ""), ("time of day", "x"))


@pytest.mark.parametrize("first", ["path", "id", "file", "filename", "video", "name", "FileName"])
@pytest.mark.parametrize(("before", "delimiter", "end"), [("", ",", "\n"), ("\ufeff", ";", "\r\n"), ("", "\t", "\n")])
def test_names_of_the_first_column_and_formats_of_spreadsheets(
    tmp_path: Path, first: str, before: str, delimiter: str, end: str
) -> None:
    touch(tmp_path, "a.mp4")
    write(
        tmp_path, before + end.join([delimiter.join(row) for row in ((first, "label", "x"), ("a.mp4", "ü", "1"))]) + end
    )
    assert videos(tmp_path)["a.mp4"] == Video("a.mp4", tmp_path / "a.mp4", "ü", columns=(("x", "1"),))


def test_absolute_paths_names_without_suffix_and_a_column_class(tmp_path: Path) -> None:
    touch(tmp_path, "cats/a.b.mp4", "2.mp4", "test/cats/3.mp4", "test/cats/4.mp4")
    write(tmp_path, f"path,Class\n{tmp_path}/cats/a.b.mp4,x\n2,y\ncats/3,z\n{tmp_path}/test/cats/4,w\n")
    assert {video.id: (video.label, video.columns) for video in videos(tmp_path).values()} == {
        "cats/a.b.mp4": ("x", ()), "2.mp4": ("y", ()), "cats/3.mp4": ("z", ()), "cats/4.mp4": ("w", ())
    }  # fmt: skip
    assert missing("folder", tmp_path) == []
    write(tmp_path, "path,class,label\n2,x,y\n")
    assert (videos(tmp_path)["2.mp4"].label, videos(tmp_path)["2.mp4"].columns) == ("y", (("class", "x"),))
    write(tmp_path, "path,labels\n2,x\n")
    assert (videos(tmp_path)["2.mp4"].label, videos(tmp_path)["2.mp4"].columns) == ("x", ())
    write(tmp_path, "path,label\n2,x\n2.mp4,y\n")
    with pytest.raises(UserError, match="'2.mp4' is already on line 2; remove one of the two"):
        videos(tmp_path)


def test_rows_without_a_video_are_reported(tmp_path: Path) -> None:
    touch(tmp_path, "a.mp4", ".hidden.mp4", "train/cats/1.mp4", "test/cats/1.mp4")
    names = ["zebra.mp4", "a.mp4", ".hidden.mp4", "cats/1.mp4", "aardvark.mp4", "train/cats/1.mp4"]
    write(tmp_path, "name,label\n" + "".join(f"{name},x\n" for name in names))
    no_file = "named in labels.csv, but there is no such file"
    several = (
        "named in labels.csv, but several splits have such a file; name each by its path including the split folder"
    )
    assert missing("folder", tmp_path) == [
        Missing(".hidden.mp4", "it is hidden: its name begins with a dot", tmp_path / ".hidden.mp4"),
        Missing("zebra.mp4", no_file), Missing("cats/1.mp4", several), Missing("aardvark.mp4", no_file),
    ]  # fmt: skip
    assert table("folder", tmp_path) == {
        "a.mp4": ("x", ""), "train/cats/1.mp4": ("x", "train"), "test/cats/1.mp4": ("cats", "test"),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            b"",
            "line 1 of .*/labels.csv: there is no header; expected one of path, id, file",
        ),
        (
            b"label,path\n",
            "line 1 of .*: its first column is 'label'; expected one of path, id, file",
        ),
        (b"path|label\n", r"line 1 of .*: its first column is 'path\|label'; expected"),
        (b"path,label,\n", "line 1 of .*: column 3 has no name"),
        (b"path,label,x,Label\n", "line 1 of .*: there are two columns 'label'"),
        (b"path,x,x\n", "line 1 of .*: there are two columns 'x'"),
        (b'path,label\na.mp4,cat\n"b.mp4,cat\nc.mp4,dog\n', "line 3 of .*: .* has a quote that is not closed"),
        (b"path,label\na.mp4,cat\nb.mp4\n", "line 3 of .*: 1 fields, but 2 in the header"),
        (b"path,label\na.mp4,cat,\n", "line 2 of .*: 3 fields, but 2 in the header"),
        (
            b"path,split\na.mp4,train\nb.mp4,holdout\n",
            "line 3 of .*: unknown split 'holdout'; available: train, training, val",
        ),
        (b'path,x\na.mp4,"1\n2"\nb.mp4,1\na.mp4,2\n', "line 5 of .*: 'a.mp4' is already on line 3; remove one"),
        (b"path,label\ntest/a.mp4,1\na.mp4,2\n", "line 3 of .*: 'test/a.mp4' is already on line 2; remove one"),
        (b"path,label\n ,cat\n", "line 2 of .*: the name of the video is empty"),
        (b"path,label\na.mp4,cat\nb.mp4,caf\xe9\n", "line 3 of .*: not UTF-8 .*; save the table as UTF-8"),
        ("path,label\n".encode("utf-16"), "line 1 of .*: not UTF-8"),
        (b"path,label\na.mp4,c\0t\n", "line 2 of .*: it contains a NUL character"),
        (b'path,label\na.mp4,"cat\n', "line 2 of .*: this row, or one after it, has a quote that is not closed"),
        (b'path,label\na.mp4,"cat"s\n', "line 2 of .*: ',' expected after '\"'"),
        (b"path,label\na.mp4," + b"x" * 200_000 + b"\n", "line 2 of .*: field larger than field limit"),
    ],
)
def test_a_damaged_labels_csv_is_refused_with_its_line(tmp_path: Path, text: bytes, message: str) -> None:
    touch(tmp_path, "test/a.mp4", "b.mp4")
    write(tmp_path, text)
    with pytest.raises(UserError, match=f"^{message}") as error:
        listed_videos("folder", tmp_path)
    assert "\n" not in str(error.value)


@pytest.mark.timeout(20)
def test_a_labels_csv_that_is_a_fifo_is_refused(tmp_path: Path) -> None:
    touch(tmp_path, "a.mp4")
    os.mkfifo(tmp_path / "labels.csv")
    with pytest.raises(UserError, match="labels.csv is a FIFO, not a file"):
        listed_videos("folder", tmp_path)


def test_a_real_table_of_labels(real: Path) -> None:
    """120 files of the GRID corpus, whose names are their commands: bbas3a is bin blue a s 3 again."""
    listed = videos(real / "grid")
    assert len(listed) == 120 and missing("folder", real / "grid") == []
    for name, video in listed.items():
        values = dict(video.columns)
        assert list(values) == ["command", "colour", "letter", "digit"] and (video.label, video.split) == ("", "")
        assert (values["command"][0], values["colour"][0], values["letter"], values["digit"]) == (*name[:2], *name[3:5])
