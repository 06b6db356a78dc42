"""A folder of videos: their ids, and what labels.csv says of them."""

import unicodedata
from pathlib import Path

import pytest

from gdt.common.errors import LeftOut, UserError
from gdt.preprocess.datasets.labels import NO_VIDEO, NOT_LISTED
from gdt.preprocess.videos import ListedVideo
from tests.preprocess.test_datasets import missing, table, touch
from tests.preprocess.test_datasets import videos as listed_videos


def videos(root: Path) -> dict[str, ListedVideo]:
    listed = listed_videos("folder", root)
    assert len({video.id for video in listed}) == len(listed)
    return {video.id: video for video in listed}


def write(root: Path, text: str | bytes) -> None:
    (root / "labels.csv").write_bytes(text if isinstance(text, bytes) else text.encode())


# ids


def test_videos_with_the_same_name_in_several_splits_keep_their_whole_paths(tmp_path: Path) -> None:
    alone = ["train/cats/2.mp4", "Validation/dogs/1.mp4"]
    twins = ["train/cats/1.mp4", "test/cats/1.mp4", "3.mp4", "valid/3.mp4", "Test/3.mp4"]
    touch(tmp_path, *alone, *twins)
    expected = {name: name for name in twins} | {name.partition("/")[2]: name for name in alone}
    assert {name: str(video.path) for name, video in videos(tmp_path).items()} == expected
    (tmp_path / "test/cats/1.mp4").unlink()
    assert str(videos(tmp_path)["cats/1.mp4"].path) == "train/cats/1.mp4"


# labels.csv


def test_labels_csv_overrides_folders(tmp_path: Path) -> None:
    touch(tmp_path, "train/cats/1.mp4", "train/cats/2.mp4", "test/cats/3.mp4", "test/cats/4.mp4", "5.mp4")
    write(
        tmp_path,
        "Video, Split ,colour,label,Note\n./cats/1.mp4,Validation,blue,tom cat,\"said \"\"a, b\"\"\nand c\"\n\n"
        "test/cats/3.mp4, train ,, ,x\ncats/4.mp4,,é,lion,\n",
    )  # fmt: skip
    assert table("folder", tmp_path) == {
        "cats/1.mp4": ("tom cat", "val"), "cats/2.mp4": ("cats", "train"), "cats/3.mp4": ("cats", "train"),
        "cats/4.mp4": ("lion", "test"), "5.mp4": ("", ""),
    }  # fmt: skip
    assert {name: video.columns for name, video in videos(tmp_path).items()} == {
        "cats/1.mp4": (("colour", "blue"), ("Note", 'said "a, b"\nand c')), "cats/2.mp4": (), "5.mp4": (),
        "cats/3.mp4": (("colour", ""), ("Note", "x")), "cats/4.mp4": (("colour", "é"), ("Note", "")),
    }  # fmt: skip
    assert missing("folder", tmp_path) == []


def test_a_column_of_folds_makes_each_a_test_split_once(tmp_path: Path) -> None:
    touch(tmp_path, "a.mp4", "b.mp4", "c.mp4", "d.mp4")
    write(tmp_path, "path,label,fold\na.mp4,x,1\nb.mp4,y,3\nc.mp4,x,\n")
    assert {name: (video.split, video.folds) for name, video in videos(tmp_path).items()} == {
        "a.mp4": ("test", ("test", "train", "train")), "b.mp4": ("train", ("train", "train", "test")),
        "c.mp4": ("", ("unused",) * 3), "d.mp4": ("", ("unused",) * 3),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("first", "encoding", "delimiter", "end"),
    [("path", "utf-8", ",", "\n"), ("FileName", "utf-8-sig", ";", "\r\n"), ("id", "utf-16", "\t", "\r\n")],
)
def test_names_of_the_first_column_and_formats_of_spreadsheets(
    tmp_path: Path, first: str, encoding: str, delimiter: str, end: str
) -> None:
    """Spreadsheets and pandas also write columns without a name, which are left out."""
    touch(tmp_path, "a.mp4")
    rows = (("", first, "label", "x", ""), ("0", "a.mp4", "ü", "1", "y"))
    write(tmp_path, "".join(delimiter.join(row) + end for row in rows).encode(encoding))
    assert videos(tmp_path)["a.mp4"] == ListedVideo("a.mp4", Path("a.mp4"), "ü", columns=(("x", "1"),))


def test_absolute_paths_names_without_suffix_and_a_column_class(tmp_path: Path) -> None:
    touch(tmp_path, "cats/a.b.mp4", "2.mp4", "test/birds/3.mp4", "test/birds/4.mp4")
    write(tmp_path, f"path,Class\n{tmp_path}/cats/a.b.mp4,x\n2,y\nbirds/3,z\n{tmp_path}/test/birds/4,w\n")
    assert {video.id: (video.label, video.columns) for video in videos(tmp_path).values()} == {
        "cats/a.b.mp4": ("x", ()), "2.mp4": ("y", ()), "birds/3.mp4": ("z", ()), "birds/4.mp4": ("w", ())
    }  # fmt: skip
    assert missing("folder", tmp_path) == []
    write(tmp_path, "path,class,label\n2,x,y\n")
    assert (videos(tmp_path)["2.mp4"].label, videos(tmp_path)["2.mp4"].columns) == ("y", (("class", "x"),))
    write(tmp_path, "path,labels\n2,x\n")
    assert (videos(tmp_path)["2.mp4"].label, videos(tmp_path)["2.mp4"].columns) == ("x", ())


def test_a_row_that_is_the_whole_name_of_a_file_is_not_that_of_another(tmp_path: Path) -> None:
    touch(tmp_path, "clip.avi", "clip.avi.mp4", "b.gif", "b.gif.mp4", "test/c.avi", "train/c.avi.mp4", "d.avi.mp4")
    write(tmp_path, "path,label\nclip.avi,1\nb.gif,2\nc.avi,3\nd.avi,4\n")
    assert {name: label for name, (label, _) in table("folder", tmp_path).items()} == {
        "clip.avi": "1", "clip.avi.mp4": "", "b.gif.mp4": "", "c.avi": "3", "c.avi.mp4": "", "d.avi.mp4": "4",
    }  # fmt: skip
    write(tmp_path, "path,label\nclip.avi,1\nclip.avi.mp4,2\n")
    assert (videos(tmp_path)["clip.avi"].label, videos(tmp_path)["clip.avi.mp4"].label) == ("1", "2")


def test_a_folder_that_would_be_two_labels_is_refused(tmp_path: Path) -> None:
    touch(tmp_path, "rock;paper/a.mp4")
    with pytest.raises(UserError, match="the folder 'rock;paper' has a ; in its name, which divides labels; rename"):
        videos(tmp_path)
    write(tmp_path, "path,label\nrock;paper/a.mp4,rock\n")
    assert videos(tmp_path)["rock;paper/a.mp4"].label == "rock"


@pytest.mark.parametrize("forms", [("NFC", "NFD"), ("NFD", "NFC")])
def test_composed_and_decomposed_names_are_one(tmp_path: Path, forms: tuple[str, str]) -> None:
    of_file, of_row = (unicodedata.normalize(form, "café/é") for form in forms)
    touch(tmp_path, f"train/{of_file}1.mp4", f"test/{of_row}2.mp4")
    write(tmp_path, f"path,note\n{of_row}1.mp4,é\n{of_file}2,\n")
    assert table("folder", tmp_path) == {"café/é1.mp4": ("café", "train"), "café/é2.mp4": ("café", "test")}
    assert missing("folder", tmp_path) == [] and videos(tmp_path)["café/é1.mp4"].columns == (("note", "é"),)


def test_rows_without_a_video_are_reported(tmp_path: Path) -> None:
    touch(tmp_path, "a.mp4", ".hidden.mp4", "train/cats/1.mp4", "test/cats/1.mp4", "cats/b.gif")
    names = ["zebra.mp4", "a.mp4", ".hidden.mp4", "cats/1.mp4", "aardvark.mp4", "train/cats/1.mp4", "cats/b.gif"]
    write(tmp_path, "name,label\n" + "".join(f"{name},x\n" for name in names))
    assert missing("folder", tmp_path) == [
        LeftOut("zebra.mp4", NO_VIDEO), LeftOut(".hidden.mp4", NOT_LISTED), LeftOut("cats/1.mp4", NO_VIDEO),
        LeftOut("aardvark.mp4", NO_VIDEO), LeftOut("cats/b.gif", NOT_LISTED),
    ]  # fmt: skip
    assert table("folder", tmp_path) == {
        "a.mp4": ("x", ""), "train/cats/1.mp4": ("x", "train"), "test/cats/1.mp4": ("cats", "test"),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"label,path\na,b\n", "line 2 of .*: the first column is 'label'; expected one of path, id, file"),
        (b"path,label\na.mp4,cat\nb.mp4\n", "line 3 of .*: the row does not have 2 values"),
        (b"path,split\na.mp4,train\nb.mp4,holdout\n", "line 3 of .*: unknown split 'holdout'; available: train, trai"),
        (b'path,x\na.mp4,"1\n2"\nb.mp4,1\na.mp4,2\n', ".*/labels.csv names 'a.mp4' on two lines; remove one"),
        (b"path,label\ntest/a.mp4,1\na.mp4,2\n", ".*/labels.csv names a video twice, as a.mp4 and as test/a.mp4; rem"),
        (b"path,label\n ,cat\n", "line 2 of .*: the name of the video is empty"),
        (b"path,split,fold\na.mp4,test,1\n", ".*/labels.csv.* the columns 'split' and 'fold' both set splits"),
        (b"path,fold\na.mp4,1.5\n", ".*/labels.csv.* the fold is '1.5'; it must be a number from 1 to 20"),
        (b"path,label,label\na.mp4,cat,dog\n", ".*/labels.csv has two columns 'label'; rename or remove one"),
        (b"path,label,folds\na.mp4,cat,1\n", "line 2 of .*: a further column has the name folds, which the index"),
        (b"path,label\nvideos/a.mp4,x\n", "no row of .*/labels.csv names a video: the first is 'videos/a.mp4', and a"),
    ],
)
def test_a_damaged_labels_csv_is_refused(tmp_path: Path, text: bytes, message: str) -> None:
    touch(tmp_path, "test/a.mp4", "b.mp4")
    write(tmp_path, text)
    with pytest.raises(UserError, match=f"^{message}") as error:
        listed_videos("folder", tmp_path)
    assert "\n" not in str(error.value)


def test_what_windows_and_pandas_write(tmp_path: Path) -> None:
    """Separators, unless names have them, and missing values."""
    touch(tmp_path, "cats/a.mp4", "cats/b.mp4")
    write(tmp_path, "path,label,weather,split\ncats\\a.mp4,None,<NA>,nan\n.\\cats\\b,Nan,rain,test\n")
    assert table("folder", tmp_path) == {"cats/a.mp4": ("cats", ""), "cats/b.mp4": ("Nan", "test")}
    assert videos(tmp_path)["cats/a.mp4"].columns == (("weather", ""),)
    touch(tmp_path, "c\\d.mp4")
    write(tmp_path, "path,label\nc\\d.mp4,x\n")
    assert table("folder", tmp_path)["c\\d.mp4"] == ("x", "")
