"""The stage is complete, resumable and byte-identical, and reports what it rejects."""

import contextlib
import hashlib
import json
import os
import re
import shutil
import socket
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gdt.common.errors import UserError
from gdt.common.folders import Folder
from gdt.pipeline.shards.index import Index
from gdt.pipeline.shards.reader import ShardReader
from gdt.pipeline.shards.rejected import read_rejected
from gdt.preprocess import checks, datasets, stage
from gdt.preprocess.decode import extract_group
from gdt.preprocess.ffmpeg import Extraction
from gdt.preprocess.finish import finish
from gdt.preprocess.job import PreprocessJob, prepare
from gdt.preprocess.plan import ShardTask
from gdt.preprocess.process import Limits
from gdt.preprocess.settings import Preprocess
from gdt.preprocess.stage import command, run
from gdt.preprocess.summary import describe
from gdt.preprocess.worker import make_shard
from tests.conftest import Run, write_word2vec
from tests.preprocess.intact import problems
from tests.preprocess.media import clock, made
from tests.tamper import small_disk


def digests(folder: Path) -> dict[str, str]:
    """Digests of all files but the summary, which holds times, and without the times in the plan."""
    return {
        path.name: hashlib.sha256(re.sub(rb', "times": .*', b"", path.read_bytes())).hexdigest()
        for path in sorted(folder.iterdir())
        if path.is_file() and path.name not in ("summary.json", ".lock")
    }


def test_other_settings_do_not_replace_finished_shards(synthetic: Path, tmp_path: Path) -> None:
    settings = Preprocess("folder", synthetic / "test", tmp_path, videos_per_shard=8, workers=1)
    assert run(settings).shards_made == 2
    before = digests(tmp_path)
    small = replace(settings, extraction=Extraction(short_side=32))
    with pytest.raises(UserError, match="short-side was 160, now 32; set --destination"):
        run(small)
    assert run(replace(settings, videos_per_shard=4)).shards_made == 0  # affects new shards only
    assert digests(tmp_path) == before
    (tmp_path / "index.h5").unlink()  # as after an interrupted run
    with pytest.raises(UserError, match="short-side was 160, now 32; set --destination"):
        run(small)
    assert run(settings).shards_made == 0 and digests(tmp_path) == before
    with pytest.raises(UserError, match="colours was none, now 8"):  # as if there were a new option
        checks.contents(Folder(tmp_path), {"colours": 8}, False)
    limits = Extraction(limits=Limits(timeout_factor=50, ffmpeg_memory=8))
    assert run(replace(settings, extraction=limits)).shards_made == 0


def test_drop_missing_leaves_a_complete_data_set(synthetic: Path, tmp_path: Path) -> None:
    videos = tmp_path / "videos"
    shutil.copytree(synthetic / "test", videos)
    settings = Preprocess("folder", videos, tmp_path / "shards", videos_per_shard=4, workers=1)
    assert run(settings).shards_made == 3
    for path in sorted(videos.rglob("*.mp4"))[8:]:  # all videos of the last shard
        path.unlink()
    plan, rejected = tmp_path / "shards" / "plan.jsonl", tmp_path / "shards" / "rejected.jsonl"
    before = digests(tmp_path / "shards")
    gone = r"the shards in .* hold 4 videos no longer in .* \(first: '.*'\);"
    with pytest.raises(UserError, match=gone):
        run(settings)
    assert digests(tmp_path / "shards") == before
    plan.rename(tmp_path / "plan")  # as where only the shards were copied
    with pytest.raises(UserError, match=gone):
        run(settings)
    (tmp_path / "plan").rename(plan)
    row = {"id": sorted(Index.open(tmp_path / "shards").id)[-1], "path": "a", "reason": "a second file", "fault": True}
    for text, message in ((json.dumps(row), gone), ("{", r"line 1 of .*rejected.jsonl is damaged .*; delete the file")):
        rejected.write_text(f"{text}\n")
        with pytest.raises(UserError, match=message):
            run(settings)
    rejected.unlink()
    of_others = [tmp_path / "shards" / name for name in ("shard-mine.h5", "shard-000000.h5.bak", "shard-1.h5.txt")]
    for path in of_others:
        path.touch()
    summary = run(replace(settings, drop_missing=True))
    assert (summary.kept, summary.shards_made, len(summary.index.shard_names)) == (8, 0, 2)
    assert all(path.is_file() for path in of_others) and not (tmp_path / "shards" / "shard-000002.h5").exists()


def test_changed_list_rebuilds_only_affected_shards(synthetic: Path, tmp_path: Path) -> None:
    videos, every = tmp_path / "videos", sorted((synthetic / "train").rglob("*.mp4"))
    videos.mkdir()
    for k, path in enumerate(every[:12]):
        shutil.copy(path, videos / f"{2 * k:02d}.mp4")
    settings = Preprocess("folder", videos, tmp_path / "shards", videos_per_shard=4, workers=2)
    assert run(settings).shards_made == 3
    first = digests(tmp_path / "shards")
    for k, path in enumerate(every[12:17]):  # between the others
        shutil.copy(path, videos / f"{2 * k + 1:02d}.mp4")
    assert run(settings).shards_made == 2
    second = digests(tmp_path / "shards")
    assert {name: second[name] for name in first if name.startswith("shard")} == {
        name: first[name] for name in first if name.startswith("shard")
    }
    index = Index.open(tmp_path / "shards")
    assert index.id.tolist() == sorted(path.name for path in videos.iterdir())  # in order of id, not of shard
    shutil.copy(every[20], videos / "00.mp4")  # another video with this name
    (videos / "08.mp4").unlink()
    assert run(replace(settings, drop_missing=True)).shards_made == 2
    third = digests(tmp_path / "shards")
    assert [name for name in second if name.startswith("shard") and third[name] != second[name]] == [
        "shard-000000.h5", "shard-000001.h5",
    ]  # fmt: skip
    assert "08.mp4" not in Index.open(tmp_path / "shards").id
    # one run with fewer shards gives the same table and statistics
    at_once = run(replace(settings, destination=tmp_path / "other", videos_per_shard=100)).index
    index = Index.open(tmp_path / "shards")
    assert at_once.id.tolist() == index.id.tolist() and len(at_once.shard_names) == 1
    assert at_once.statistics == index.statistics


def test_summary_counts_everything(real: Path, tmp_path: Path) -> None:
    (tmp_path / "videos").mkdir()
    bad = ["broken.mp4", "empty.flv", "video_270.mov"]
    for name in (*bad, "silent-black-10s.mp4", "h265_10bits.mp4", "bbaf2n.mpg"):
        (tmp_path / "videos" / name).symlink_to(real / "clips" / name)
    done = run(Preprocess("folder", tmp_path / "videos", tmp_path / "shards"))
    saved, index = json.loads((tmp_path / "shards" / "summary.json").read_text()), done.index
    assert saved["videos"] == 6 == saved["kept"] + sum(saved["left_out"].values())
    assert saved["left_out"]["it is too short"] == 1
    assert np.isclose(saved["hours"], index.frame_count.sum() / 30 / 3600)
    assert np.isclose(saved["gigabytes"], sum(path.stat().st_size for path in tmp_path.glob("*/shard-*.h5")) / 1e9)
    silent = index.id.tolist().index("silent-black-10s.mp4")
    assert index.silence[silent] == 10 and index.mel_count[silent] == 0
    assert saved["without_sound"] == int((index.mel_count == 0).sum()) == 2
    rejected = {row.id: row.reason for row in read_rejected(Folder(tmp_path / "shards"))}
    assert (done.videos, done.kept, done.without_sound) == (6, 3, 2)
    assert sorted(rejected) == bad and "moov atom not found" in rejected["broken.mp4"]
    text = describe(done)
    assert "3 of 6 videos kept" in text and "its sound track is silent" in text
    assert "       1  it is too short\n" in text and "set --test 0.1 and run again" in text


def test_full_disk_stops_the_run_without_partial_shards(synthetic: Path, tmp_path: Path) -> None:
    settings = Preprocess("folder", synthetic / "test", tmp_path / "undisturbed", videos_per_shard=2)
    run(settings)
    with small_disk(tmp_path / "disk", "1500k") as disk:
        full = replace(settings, destination=disk / "shards")
        with pytest.raises(UserError, match="no space left on the disk of .*disk/shards.*; free some, and run the sam"):
            run(full)
        shards = list((disk / "shards").glob("shard-*"))
        assert shards and all(problems(path) == [] for path in shards)
        assert not (disk / "shards" / "index.h5").exists()
        subprocess.run(["mount", "-o", "remount,size=200m", disk], check=True)
        summary = run(full)  # resumes
        assert summary.kept == 12 and summary.shards_kept == len(shards)
        assert digests(disk / "shards") == digests(tmp_path / "undisturbed")


@pytest.fixture(scope="module")
def word2vec(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small file of word vectors."""
    path = tmp_path_factory.mktemp("words") / "small.txt"
    write_word2vec(path, ["lay the red", "place white please"], 2)
    return path


def test_howto100m_keeps_captioned_stretches(word2vec: Path, tmp_path: Path) -> None:
    made(tmp_path / "aaaaaaaaaaa.mp4", "testsrc=s=64x48:r=30:d=45", "anoisesrc=d=45:r=24000:seed=1")
    made(tmp_path / "bbbbbbbbbbb.mp4", clock(1.2))
    captions = {"start": [5, 30.04], "end": [9, 36], "text": ["lay the red", "place white please"]}
    (tmp_path / "caption.json").write_text(json.dumps({"aaaaaaaaaaa": captions}))
    with pytest.raises(UserError, match="set --word2vec"):
        run(Preprocess("howto100m", tmp_path, tmp_path / "shards", workers=1))
    summary = run(Preprocess("howto100m", tmp_path, tmp_path / "shards", word2vec=word2vec, workers=1))
    index = summary.index
    assert index.id.tolist() == ["aaaaaaaaaaa"]
    assert index.frame_count.tolist() == [30 * (4 + 6)] and abs(index.mel_count[0] - 100 * (4 + 6)) <= 1
    assert next(read_rejected(Folder(tmp_path / "shards"))).reason == "it has no captions"
    reader = ShardReader(index)
    assert reader.tokens(0, 0.0).tolist() == [0, 3]  # lay, red
    assert reader.tokens(0, 4.02).tolist() == [1, 5]  # place, white; please ends later than 4 s after
    whole = run(Preprocess("folder", tmp_path, tmp_path / "whole", workers=1)).index
    kept = ShardReader(whole)
    video = whole.id.tolist().index("aaaaaaaaaaa.mp4")
    for first, original in ((0, 150), (119, 269), (120, 900), (299, 1079)):  # frames 5-9 s and 30-36 s, nothing else
        assert np.array_equal(reader.frames(0, [first])[0], kept.frames(video, [original])[0])
    assert np.array_equal(reader.logmel(0, 10, 300), kept.logmel(video, 510, 300))
    assert np.array_equal(reader.logmel(0, 410, 500), kept.logmel(video, 3010, 500))


@pytest.fixture
def four(synthetic: Path, tmp_path: Path) -> Preprocess:
    """Four videos in two shards."""
    (tmp_path / "videos").mkdir()
    for k, path in enumerate(sorted((synthetic / "train").rglob("*.mp4"))[:4]):
        shutil.copy(path, tmp_path / "videos" / f"{k}.mp4")
    return Preprocess("folder", tmp_path / "videos", tmp_path / "shards", videos_per_shard=2, workers=1)


def test_dry_run_counts_and_writes_nothing(four: Preprocess, monkeypatch: pytest.MonkeyPatch) -> None:
    gigabytes = sum(path.stat().st_size for path in four.source_folder.root.iterdir()) / 1e9
    with monkeypatch.context() as patched:
        patched.setattr(PreprocessJob, "task", None)  # attaches captions, of a million videos in hours
        said = stage.command(replace(four, dry_run=True, test=0.5))
    assert re.match(rf"4 videos \(\d test, \d train; 0 classes\), {gigabytes:.2f} GB; 0 left out", said)
    assert said.endswith("2 shards, of which 2 with 4 videos are not made yet")
    assert not four.shard_folder.root.exists()
    run(four)
    before = digests(four.shard_folder.root)
    (four.source_folder.root / "new.mp4").touch()
    assert stage.dry_run(four).endswith("3 shards, of which 1 with 1 video are not made yet")
    assert digests(four.shard_folder.root) == before


def test_captions_of_no_video_are_counted(four: Preprocess, word2vec: Path) -> None:
    (four.source_folder.root / "captions").mkdir()
    for name in ("0.en", "0.de", "1", "9", "b.en"):
        (four.source_folder.root / f"captions/{name}.vtt").write_text("WEBVTT\n\n00:00.000 --> 00:01.000\nred\n")
    settings = replace(four, word2vec=word2vec)
    said = "ignored: 2 captions of no video (first: '9')"
    assert said in stage.dry_run(settings).splitlines()
    summary = run(settings)
    assert summary.index.text_count.tolist() == [1, 1, 0, 0] and said in describe(summary).splitlines()
    assert summary.numbers["ignored"] == {"captions of no video (first: '9')": 2}


def test_a_file_that_cannot_be_read_is_tried_again(four: Preprocess, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreadable(*arguments: Any) -> Any:
        path.rename(aside)
        try:
            return extract_group(*arguments)
        finally:
            aside.rename(path)

    run(four)
    expected = digests(four.shard_folder.root)
    path, aside = (four.source_folder.root / name for name in ("2.mp4", "aside"))
    (four.shard_folder.root / "shard-000001.h5").unlink()
    with monkeypatch.context() as patch:
        patch.setattr("gdt.preprocess.worker.extract_group", unreadable)
        with pytest.raises(UserError, match=rf"1 video could not be read .*first: {path}.* --allow-rejected"):
            command(four)
        assert " 3 of 4 videos kept" in f" {command(replace(four, allow_rejected=True))}"
        assert next(read_rejected(four.shard_folder)).reason.startswith("the file has disappeared during the run; ")
    assert run(four).shards_made == 1 and digests(four.shard_folder.root) == expected


def test_videos_that_a_worker_does_not_see_stop_the_run(four: Preprocess, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = four.source_folder.root.with_name("gone")

    def elsewhere(task: ShardTask) -> None:
        if four.source_folder.root.exists():
            four.source_folder.root.rename(gone)
        make_shard(task)

    with monkeypatch.context() as patch:
        patch.setattr(stage, "make_shard", elsewhere)
        with pytest.raises(UserError, match=r"sees none of the videos of .*shard-000000.h5 \(0.mp4 to 1.mp4\); mount"):
            run(four)
    gone.rename(four.source_folder.root)
    assert run(four).kept == 4


def test_a_lost_plan_is_made_again(four: Preprocess) -> None:
    run(four)
    before, path = digests(four.shard_folder.root), four.shard_folder.root / "plan.jsonl"
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(UserError, match="plan.jsonl is damaged .*; delete it: shards whose videos change are made"):
        run(four)
    path.unlink()
    assert run(four).shards_made == 0 and digests(four.shard_folder.root) == before


def test_shards_of_another_run_are_not_indexed(four: Preprocess) -> None:
    """Two runs with other videos may write into one folder of a store, which has no locks."""
    run(four)
    job = prepare(four, datasets.DATASETS["folder"])
    listed = replace(job.listed, videos={id: video for id, video in job.listed.videos.items() if id != "2.mp4"})
    with pytest.raises(UserError, match=r"has shards of another run with other videos \(first: '2.mp4'\)"):
        finish(replace(job, listed=listed), [])


def test_non_files_named_like_videos_are_reported_and_never_opened(four: Preprocess) -> None:
    folder = four.source_folder.root / "odd"
    folder.mkdir()
    os.mkfifo(folder / "fifo.mp4")
    (folder / "zero.mp4").symlink_to("/dev/zero")
    (folder / "loop.mp4").symlink_to(folder / "loop.mp4")
    (folder / "folder.mp4").mkdir()
    (folder / "._a.mp4").touch()  # left by macOS: no video
    (folder / "empty.mp4").touch()
    with socket.socket(socket.AF_UNIX) as server, contextlib.chdir(folder):
        server.bind("socket.mp4")
        assert stage.dry_run(four).startswith("9 videos (9 train; ")
        summary = run(four)
        rejected = {row.id: row for row in read_rejected(Folder(four.shard_folder.root))}
    special = dict.fromkeys(("fifo.mp4", "zero.mp4", "socket.mp4"), "it is a special file, not a file")
    expected = special | {"loop.mp4": "the file does not exist", "empty.mp4": "the file is empty"}
    assert {row.removeprefix("odd/"): rejected[row].reason for row in rejected} == expected
    assert all(Path(row.path).name == Path(name).name for name, row in rejected.items())
    assert (summary.kept, summary.videos) == (4, 9)


def test_many_files_of_the_same_id_stop_the_run(four: Preprocess) -> None:
    for kind in ("cats", "dogs", "birds"):
        shutil.copytree(four.source_folder, four.source_folder.root / kind, ignore=lambda *_: ["cats", "dogs"])
    few = replace(four, dataset="kinetics", layout="", source=four.source_folder.root / "cats")
    shutil.copy(few.source_folder.root / "0.mp4", four.source_folder.root / "cats" / "0.webm")
    assert run(few).reasons == {"it has the id of another video": 1}
    many = replace(few, source=four.source_folder, destination=four.shard_folder.root.with_name("many"))
    for doing in (run, stage.dry_run):
        with pytest.raises(UserError, match=r"13 of 17 .*birds/0.mp4: it has the id of .*, or set --dataset <name>"):
            doing(many)
    assert run(replace(many, allow_rejected=True)).kept == 4
    assert run(replace(many, dataset="mine", destination=four.shard_folder.root.with_name("mine"))).kept == 17


def test_no_usable_video_is_an_error_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "videos").mkdir()
    (tmp_path / "videos" / "a.mp4").write_bytes(b"nonsense")
    with pytest.raises(UserError, match=r"0 of 1 video can be used; .*a.mp4: ffmpeg cannot decode it"):
        run(Preprocess("folder", tmp_path / "videos", tmp_path / "shards", workers=1))
    assert json.loads((tmp_path / "shards" / "rejected.jsonl").read_text())["id"] == "a.mp4"
    with pytest.raises(UserError, match="has shards but no index.h5: .* or found no usable video"):
        Index.open(tmp_path / "shards")


@pytest.mark.parametrize(
    ("arguments", "environment", "message"),
    [
        ("--dataset kinetix", {}, "--dataset is 'kinetix'; did you mean 'kinetics'?"),
        ("--dataset folder --source . --word2vec x.bin", {}, "there are no captions in"),
        ("--dataset folder --source . --scheduler tcp://127.0.0.1:1", {}, "there are no videos"),
        ("--dataset folder --source . --scheduler bla", {}, "--scheduler is 'bla'; it must be an address"),
        ("--dataset folder --source VIDEOS --scheduler tcp://127.0.0.1:1", {}, "no Dask scheduler answers at"),
        ("--dataset folder --source VIDEOS --destination out\udce9", {}, "the name of --destination is not UTF-8"),
        ("--dataset folder --source VIDEOS", {"PATH": ""}, "ffmpeg is not installed"),
        ("--dataset folder --source VIDEOS --fps 101", {}, "--fps is 101"),
        ("--dataset folder --source VIDEOS --ffmpeg-memory nan", {}, "--ffmpeg-memory is nan"),
    ],
)
def test_mistakes_are_one_sentence_and_exit_2(
    command: Run, synthetic: Path, arguments: str, environment: dict[str, str], message: str
) -> None:
    done = command("preprocess", *arguments.replace("VIDEOS", str(synthetic / "val")).split(), **environment)
    assert done.returncode == 2
    assert message in done.stderr and "Traceback" not in done.stderr
