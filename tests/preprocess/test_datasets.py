"""Listings of data sets: videos with class and split, and missing ones."""

import csv
import itertools
import os
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from gdt.common.errors import LeftOut, UserError
from gdt.common.folders import Folder
from gdt.preprocess.datasets import DATASETS, find, listing
from gdt.preprocess.datasets.listing import BROKEN, EMPTY, HIDDEN, LISTED, Item, SourceFiles, ignored_in_words
from gdt.preprocess.ffmpeg import _FORMATS
from gdt.preprocess.plan import Listed, collect
from gdt.preprocess.videos import SOUNDS, SUFFIXES, ListedVideo
from tests.conftest import ROOT


def touch(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()


def listed(dataset: str, root: Path) -> Iterator[Item]:
    return listing(find(dataset, Folder(root)), SourceFiles(Folder(root)))


def collected(dataset: str, root: Path) -> Listed:
    source = SourceFiles(Folder(root))
    return collect(listing(DATASETS[dataset], source), source)


def videos(dataset: str, root: Path) -> list[ListedVideo]:
    return [item for item in listed(dataset, root) if isinstance(item, ListedVideo)]


def missing(dataset: str, root: Path) -> list[LeftOut]:
    return [item for item in listed(dataset, root) if isinstance(item, LeftOut)]


def unlisted(path: str) -> LeftOut:
    return LeftOut(Path(path).stem, "not named in the official list, so it is left out", path)


def table(dataset: str, root: Path) -> dict[str, tuple[str, str]]:
    rows = [(video.id, (video.label, video.split)) for video in videos(dataset, root)]
    assert len(dict(rows)) == len(rows)
    return dict(rows)


def segments(dataset: str, root: Path) -> dict[str, tuple[str, tuple[float, float] | None]]:
    return {video.id: (video.path.name, video.segment) for video in videos(dataset, root)}


def write_hmdb_lists(root: Path, text: str, folds: Iterable[int] = (1, 2, 3)) -> None:
    """Write the official lists of one class."""
    for fold in folds:
        touch(root, f"testTrainMulti_7030_splits/wave_test_split{fold}.txt")
        (root / f"testTrainMulti_7030_splits/wave_test_split{fold}.txt").write_text(text)


def refused(dataset: str, root: Path, message: str) -> None:
    with pytest.raises(UserError, match=message):
        list(listed(dataset, root))


# any data set


def test_every_file_of_a_data_set_is_registered() -> None:
    files = {path.stem for path in (ROOT / "preprocess" / "datasets").glob("*.py")}
    assert files - {"__init__", "labels", "listing", "official", "youtube"} == set(DATASETS)


@pytest.mark.parametrize(
    ("dataset", "names", "message"),
    [
        ("folder", ["notes.txt", ".hidden.mp4"], "there are no videos in .*; TREE"),
        ("ucf", [], r"unknown layout 'ucf'; did you mean 'ucf101'\?"),
        ("ucf101", ["UCF-101/Archery/v_Archery_g01_c01.avi"], "the folder ucfTrainTestlist .* is missing, .*TREE"),
        ("hmdb51", ["hmdb51_org/wave/a.avi"], "the folder testTrainMulti_7030_splits .* is missing, .*TREE"),
        ("hmdb51", ["testTrainMulti_7030_splits/a.txt"], r"has no \*_test_split1.txt; TREE"),
        ("vggsound", ["a.mp4"], "vggsound.csv is missing; TREE"),
        ("audioset", ["a.mp4"], "has none of balanced_train_segments.csv, .*; TREE"),
    ],
)
def test_an_incomplete_source_is_refused_with_what_is_expected(
    tmp_path: Path, dataset: str, names: list[str], message: str
) -> None:
    touch(tmp_path, *names)
    tree = DATASETS[dataset].tree if dataset in DATASETS else ""
    refused(dataset, tmp_path, message.replace("TREE", f"expected:\n{re.escape(tree)}"))
    refused("ucf101", tmp_path / "absent", "absent does not exist; set --source")


def test_every_entry_is_used_or_counted_and_linked_folders_are_followed_once(tmp_path: Path) -> None:
    source, cats = tmp_path / "videos", tmp_path / "disk" / "cats"
    touch(tmp_path, "disk/cats/a.mp4", "videos/test/dogs/b.mp4")
    (source / "train").mkdir()
    (source / "train" / "cats").symlink_to(cats)
    (cats / "loop").symlink_to(cats)
    (source / "a link").symlink_to("test")  # a folder is listed by its own name
    (source / "unmounted").symlink_to("/nowhere")
    (source / "train" / "birds").mkdir()
    os.mkfifo(source / "train" / "pipe")
    assert table("folder", source) == {"cats/a.mp4": ("cats", "train"), "dogs/b.mp4": ("dogs", "test")}
    found = collected("folder", source)
    assert not found.left_out and found.ignored == {LISTED: 2, BROKEN: 1, EMPTY: 1, "": 1}
    (said,) = ignored_in_words(found.ignored)
    assert said.endswith("2 link to a folder that is listed already; 1 empty folder; 1 broken link")


def test_a_broken_link_to_a_list_is_no_missing_list(tmp_path: Path) -> None:
    touch(tmp_path, "a.mp4")
    (tmp_path / "labels.csv").symlink_to("/nowhere/labels.csv")
    refused("folder", tmp_path, "cannot read .*labels.csv: No such file")


LEFTOVERS = (
    ".Trash-1000/files/a.mp4", "cats/.ipynb_checkpoints/a.mp4", "cats/@eaDir/a.mp4/a.mp4", "lost+found/a.mp4",
    "._a.mp4", "train/#recycle/a.mp4", "$RECYCLE.BIN/a.mp4", "__MACOSX/a.mp4", "System Volume Information/a.mp4",
)  # fmt: skip


def test_hidden_folders_trash_and_other_files_are_counted(tmp_path: Path) -> None:
    touch(tmp_path, "cats/a.mp4", *LEFTOVERS, "a.gif", "cats/b.GIF", "notes.txt", "README", "cats/c.mp4.part")
    (tmp_path / "lost+found").chmod(0)  # as root made it
    found = collected("folder", tmp_path)
    assert list(found.videos) == ["cats/a.mp4"] and not found.left_out
    assert found.ignored == {HIDDEN: len(LEFTOVERS), ".gif": 2, ".txt": 1, "": 1, ".part": 1}
    (said,) = ignored_in_words(found.ignored)
    assert said == "ignored: 5 not a video by its suffix (gif 2, no suffix 1, part 1, txt 1); 9 hidden or trash"
    (tmp_path / "cats/a.mp4").unlink()
    refused("folder", tmp_path, r"no videos in .*; ignored: 5 not a video .*gif 2")


def test_every_format_that_ffmpeg_may_read_has_its_suffixes() -> None:
    """Those in ffmpeg's own list, but for sound, subtitles, stills and manifests."""
    others = {"mka", "mks", "m4b", "isma", "avif", "mpo", "ism", "mp2", "m2a", "mpa"}
    for name in _FORMATS.split(","):
        said = subprocess.run(["ffmpeg", "-h", f"demuxer={name}"], capture_output=True, text=True)
        found = re.search(r"Common extensions: (.*)\.", said.stdout)
        for suffix in set(found[1].split(",") if found else ()) - others:
            assert f".{suffix}" in SUFFIXES | SOUNDS, name


def test_names_that_are_not_utf8_are_reported(tmp_path: Path) -> None:
    touch(tmp_path, "a.mp4")
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.mp4")).touch()
    reason = "its name is not valid UTF-8; rename it"
    assert [video.id for video in videos("folder", tmp_path)] == ["a.mp4"]
    assert missing("folder", tmp_path) == [LeftOut(r"'caf\udce9.mp4'", reason, "caf?.mp4", fault=True)]


# folder


def test_any_tree_is_a_folder_data_set(tmp_path: Path) -> None:
    touch(tmp_path, "a.mp4", "Test/cats/indoor/c.webm", "validation/d.mkv", "train/dogs/e.mov", "train/b.wav")
    assert table("folder", tmp_path) == {
        "a.mp4": ("", ""), "cats/indoor/c.webm": ("cats/indoor", "test"), "d.mkv": ("", "val"),
        "dogs/e.mov": ("dogs", "train"), "b.wav": ("", "train"),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("names", "labels"),
    [
        (["bus/1.mp4", "car/2.mp4", "train/3.mp4"], ["bus", "car", "train"]),
        (["bus/fast/1.wav", "Train/fast/2.wav", "Train/slow/3.wav"], ["bus/fast", "Train/fast", "Train/slow"]),
        (["train/1.mp4", "train/cats/2.mp4"], ["train", "train/cats"]),
        (["test/cats/1.mp4", "test/dogs/2.mp4"], ["test/cats", "test/dogs"]),
        (["val/1.mp4", "test/2.mp4"], ["val", "test"]),
        (["fold1/1.wav", "fold2/2.wav", "audio/3.wav"], ["fold1", "fold2", "audio"]),
        (["a/train/1.mp4", "a/test/2.mp4"], ["a/train", "a/test"]),
    ],
)
@pytest.mark.parametrize("dataset", ["folder", "kinetics"])
def test_folders_named_as_splits_are_classes_without_their_counterparts(
    tmp_path: Path, dataset: str, names: list[str], labels: list[str]
) -> None:
    touch(tmp_path, *names)
    by_name = {video.path.as_posix(): (video.label, video.split) for video in videos(dataset, tmp_path)}
    assert by_name == {name: (label, "") for name, label in zip(names, labels, strict=True)}
    reserved = {part for name in names for part in Path(name).parts if part.lower() in ("train", "val", "test")}
    (note,) = collected(dataset, tmp_path).readings
    assert note.startswith("folders: all are classes") and all(part in note for part in reserved)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["train/1.mp4", "test/2.mp4", "bus/3.mp4", "car/4.mp4"],
         "folders test, train of .* can be splits or classes, since bus, car are beside them; for splits, move .*csv"),
        (["test/cats/1.mp4", "cats/2.mp4"], "folders test of .*, since cats are in them as elsewhere; for splits, "),
        (["val/cats/1.mp4", "test/cats/2.mp4"], "folders test, val of .*, since cats are in them"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("dataset", ["folder", "kinetics"])
def test_folders_that_can_be_splits_or_classes_are_refused(
    tmp_path: Path, dataset: str, names: list[str], message: str
) -> None:
    touch(tmp_path, *names)
    refused(dataset, tmp_path, message)


def test_labels_csv_settles_whether_folders_are_splits(tmp_path: Path) -> None:
    touch(tmp_path, "train/1.mp4", "test/2.mp4", "bus/3.mp4")
    (tmp_path / "labels.csv").write_text("path,split\ntrain/1,val\n")
    refused("folder", tmp_path, "can be splits or classes")
    (tmp_path / "labels.csv").write_text("path,split\ntrain/1,val\ntest/2,train\n")
    expected = {"1.mp4": ("train", "val"), "2.mp4": ("test", "train"), "bus/3.mp4": ("bus", "")}
    assert table("folder", tmp_path) == expected


def test_generated_videos_of_one_split_have_it(tmp_path: Path) -> None:
    touch(tmp_path, "train/spin/a.mp4")
    assert table("synthetic", tmp_path) == {"a": ("spin", "train")}


# the names that downloaders and converters give, and official lists as spreadsheets save them

DOWNLOADED = ("{}.mp4.mkv", "{}.f399.mp4", "{}.webm.mp4", "{}.mp4.f137-1.WEBM")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("dataset", ["kinetics", "vggsound", "audioset", "howto100m", "ucf101"])
def test_added_suffixes_and_encodings_of_lists(tmp_path: Path, dataset: str, encoding: str) -> None:
    ids = [letter * 11 for letter in "abcd"]
    if dataset == "ucf101":
        ids = [f"v_A_{id}" for id in ids]
    rows, files = {
        "kinetics": (KINETICS + "".join(f"A,{id},2,5,validate\n" for id in ids), ["a.csv"]),
        "vggsound": ("".join(f"{id},2,A,test\n" for id in ids), ["vggsound.csv"]),
        "audioset": ("# YTID\n" + "".join(f'{id}, 2, 5, "A,B"\n' for id in ids), ["eval_segments.csv"]),
        "howto100m": ("video_id,category_1\n" + "".join(f"{id},A\n" for id in ids), ["HowTo100M_v1.csv"]),
        "ucf101": (
            "".join(f"A/{id}.avi 1\n" for id in ids),
            [f"ucfTrainTestlist/{split}list0{fold}.txt" for split in ("train", "test") for fold in (1, 2, 3)],
        ),
    }[dataset]
    for k, name in enumerate(files):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        lines = rows if k < 3 else rows.replace("A/", "A/other")
        (tmp_path / name).write_bytes(lines.replace("\n", "\r\n").encode(encoding))
    touch(tmp_path, *(f"A/{form.format(id)}" for form, id in zip(DOWNLOADED, ids, strict=True)))
    touch(tmp_path, f"A/{ids[1]}.mp4", f"A/{ids[1]}.f251.webm")  # the exact name wins, and sound alone is last
    found = collected(dataset, tmp_path)
    label = "A;B" if dataset == "audioset" else "A"
    assert [(video.id, video.label) for video in found.videos.values()] == [(id, label) for id in ids]
    assert found.videos[ids[1]].path.name == f"{ids[1]}.mp4"
    second = [Path(row.path).name for row in found.left_out if row.path]
    assert second == [f"{ids[1]}.f399.mp4", f"{ids[1]}.f251.webm"]
    touch(tmp_path, "note.txt")
    total = sum(path.is_file() for path in tmp_path.rglob("*"))
    found = collected(dataset, tmp_path)
    assert total == len(found.videos) + len(second) + len(files) + found.ignored.total()  # each is accounted for
    assert found.ignored == {".txt": 1}  # lists that are read are not ignored


# Kinetics

KINETICS = "label,youtube_id,time_start,time_end,split\n"


def test_every_official_kinetics_name_is_understood(tmp_path: Path, real: Path) -> None:
    shutil.copy(real / "kinetics" / "kinetics-400_val.csv", tmp_path)
    with (tmp_path / "kinetics-400_val.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    labels = {f"{row['youtube_id']}_{int(row['time_start']):06d}_{int(row['time_end']):06d}": row for row in rows}
    some = dict(itertools.islice(labels.items(), 0, None, 10))
    touch(tmp_path, *(f"{name}.mp4" for name in some))
    assert table("kinetics", tmp_path) == {name: (row["label"], "val") for name, row in some.items()}
    assert len(missing("kinetics", tmp_path)) == 19906 - len(some) and len(labels) == len(rows) == 19906


def test_the_kinetics_csv_wins_over_folders(tmp_path: Path) -> None:
    (tmp_path / "annotations").mkdir()
    (tmp_path / "annotations/._a.csv").write_bytes(b"\0\5\x16\7")  # as macOS adds it
    (tmp_path / "a.csv").write_text(KINETICS + "old,0wR5jVB-WPk,417,427,train\n")  # the last one counts
    (tmp_path / "annotations/a.csv").write_text(KINETICS + "playing drums,0wR5jVB-WPk,417,427,validate\n")
    (tmp_path / "b.csv").write_text("youtube_id,time_start,time_end,split\n3caPS4FHFF8,36.0,46.0,test\n")
    name = "0wR5jVB-WPk_000416_000426"  # a second off, as some tools round
    touch(tmp_path, f"train/drums/{name}.mp4", "train/some/3caPS4FHFF8.mp4", "train/a_b/AAAAAAAAAAA.mp4")
    # test files have no label
    assert table("kinetics", tmp_path) == {name: ("playing drums", "val"), "3caPS4FHFF8": ("", "test")}
    assert missing("kinetics", tmp_path) == [unlisted("train/a_b/AAAAAAAAAAA.mp4")]


def test_one_original_stands_for_all_rows_without_a_file(tmp_path: Path) -> None:
    rows = [f"{label},_-abc_12_34,{start},{start + 10},train\n" for label, start in (("a", 5), ("b", 50), ("c", 500))]
    (tmp_path / "a.csv").write_text(KINETICS + "".join(rows))
    names = [f"_-abc_12_34_{times}" for times in ("000005_000015", "000050_000060", "000500_000510")]
    touch(tmp_path, "_-abc_12_34.mp4", f"{names[1]}.mp4")
    assert [(video.id, video.label, video.path.name, video.segment) for video in videos("kinetics", tmp_path)] == [
        (names[1], "b", f"{names[1]}.mp4", None), (names[0], "a", "_-abc_12_34.mp4", (5, 15)),
        (names[2], "c", "_-abc_12_34.mp4", (500, 510)),
    ]  # fmt: skip
    assert missing("kinetics", tmp_path) == []
    touch(tmp_path, f"{names[0]}.mp4", f"{names[2]}.mp4")
    reason = "its segments have files of their own"
    assert missing("kinetics", tmp_path) == [LeftOut("_-abc_12_34", reason, "_-abc_12_34.mp4")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name,class\n", "x.csv has no column youtube_id, time_start, time_end, split; expected youtube_id,time_s"),
        (KINETICS + "a,0wR5jVB-WPk,417,427,val\na,0wR5jVB-WPk,x,427,val\n", "line 3 of .*x.csv: .*'x'"),
        (KINETICS + "a,0wR5jVB-WPk,417,427,holdout\n", "line 2 of .*x.csv: unknown value 'holdout'; expected you"),
        (KINETICS + "a, with a comma,0wR5jVB-WPk,417,427,val\n", "line 2 of .*x.csv: the row does not have 5 values"),
        (KINETICS + '"a,0wR5jVB-WPk,417,427,val\n', "line 2 of .*x.csv: unexpected end of data"),
        (KINETICS + "caf\udce9,0wR5jVB-WPk,417,427,val\n", "x.csv is not UTF-8 text: .*; convert it"),
    ],
)
def test_an_unexpected_csv_is_refused(tmp_path: Path, text: str, message: str) -> None:
    touch(tmp_path, "0wR5jVB-WPk_000417_000427.mp4")
    (tmp_path / "x.csv").write_bytes(text.encode(errors="surrogateescape"))
    refused("kinetics", tmp_path, message)


# UCF-101 and HMDB-51


@pytest.mark.parametrize(
    ("dataset", "lists", "folder", "classes", "unused", "folds", "odd"),
    [
        ("ucf101", "ucfTrainTestlist", "UCF-101", 101, 0, [(9537, 3783), (9586, 3734), (9624, 3696)],
         ("HandstandPushups", "v_HandStandPushups_g01_c01", ("test", "train", "train"))),
        ("hmdb51", "testTrainMulti_7030_splits", "hmdb51_org", 51, 395, [(3570, 1530)] * 3,
         ("cartwheel", "Geena_und_die_Radschl_ge___;-)_cartwheel_f_cm_np1_fr_med_2", ("train", "test", "train"))),
    ],
)  # fmt: skip
def test_official_folds(
    real: Path, tmp_path: Path, dataset: str, lists: str, folder: str, classes: int, unused: int,
    folds: list[tuple[int, int]], odd: tuple[str, str, tuple[str, ...]],
) -> None:  # fmt: skip
    """Of all official names, as empty files."""
    shutil.copytree(real / dataset / lists, tmp_path / lists)
    names = {
        f"{folder}/{path.stem.rpartition('_test_split')[0]}/{line.split()[0]}"
        for path in (tmp_path / lists).glob("*1.txt")
        for line in path.read_text().splitlines()
    }
    touch(tmp_path, *names)
    found = videos(dataset, tmp_path)
    assert missing(dataset, tmp_path) == [] and len({video.id.lower() for video in found}) == len(names)
    for fold, numbers in enumerate(folds):
        splits = Counter(video.folds[fold] for video in found)
        assert (splits["train"], splits["test"]) == numbers
    assert len({video.label for video in found}) == classes
    assert sum({*video.folds} == {"unused"} for video in found) == unused
    assert all(video.split == video.folds[0] for video in found)
    assert odd in {(video.label, video.id, video.folds) for video in found}


def test_class_folders_may_be_the_source_or_nested(tmp_path: Path) -> None:
    """Names of files and lists differ in case and suffix."""
    write_hmdb_lists(tmp_path, "A_Wave.avi 2 \nb.avi 1 \n")
    touch(tmp_path, "clips/wave/A_wave.mp4", "clips/wave/a_wave.MKV", "clips/wave/mine.avi")
    reason = "listed in the official splits, but there is no file of this name with the suffix of a video"
    for source, path in ((tmp_path / "clips", "wave"), (tmp_path, "clips/wave")):
        kept, second, mine, absent = listed("hmdb51", source)
        assert kept == ListedVideo("A_wave", Path(path, "A_wave.mp4"), "wave", "test", ("test",) * 3, official=True)
        assert second.reason == f"its entry has another file; {path}/A_wave.mp4 is kept" and second.fault
        assert mine == unlisted(f"{path}/mine.avi") and absent == LeftOut("b", reason)
    touch(tmp_path, "clips/run/b.avi")
    refused("hmdb51", tmp_path / "clips", "b.avi is not in the folder of its class; expected:\nsource/hmdb51_org/")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: " \n", "is empty; copy or download it again"),
        (lambda text: text[: -len("a.avi 1 \n") * 3], "fold 2 are incomplete: they name 3 of 6 videos, and not '"),
        (lambda text: text[:-4], "unknown line '.*'; expected "),
        (lambda text: "<!DOCTYPE html>\n<a href='/x.avi'>404</a>\n", "unknown line '<!DOCTYPE html>'; expected"),
        (lambda text: text + "a.avi 2 \nb.avi 2 \n", "contradict .* for 2 videos: 'a' is train and test in fold 2"),
    ],
)  # fmt: skip
def test_official_lists_that_are_empty_cut_html_or_contradicting_are_refused(
    tmp_path: Path, change: Callable[[str], str], message: str
) -> None:
    touch(tmp_path, "wave/a.avi")
    whole = "".join(f"{name}.avi 1 \n" for name in "abcdef")
    write_hmdb_lists(tmp_path, whole)
    assert [video.folds for video in videos("hmdb51", tmp_path)] == [("train",) * 3]
    write_hmdb_lists(tmp_path, change(whole), [2])
    refused("hmdb51", tmp_path, message)
    (tmp_path / "testTrainMulti_7030_splits" / "wave_test_split2.txt").unlink()
    refused("hmdb51", tmp_path, "cannot read .*wave_test_split2.txt: No such file")


def test_files_of_the_folder_of_the_data_set_go_before_others_also_if_it_is_a_link(tmp_path: Path) -> None:
    write_hmdb_lists(tmp_path, "a.avi 1 \nb.avi 1 \nc.avi 1 \n")
    touch(tmp_path, "disk/wave/a.avi.mp4", "disk/wave/b.avi", "a/a.mp4")  # the first comes last, for its name
    (tmp_path / "hmdb51_org").symlink_to("disk")
    found = collected("hmdb51", tmp_path)
    names = ["hmdb51_org/wave/a.avi.mp4", "hmdb51_org/wave/b.avi"]
    assert [str(video.path) for video in found.videos.values()] == names
    outside, absent = found.left_out
    assert outside.reason.startswith("not in the folder of the data set") and absent.id == "c"
    assert found.ignored == {LISTED: 1}  # the disk; lists that are read are not ignored
