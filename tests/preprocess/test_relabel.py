"""Labels, splits and folds change without decoding a video again."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from gdt.common.errors import LeftOut, UserError
from gdt.common.folders import Folder
from gdt.pipeline.shards.index import Index
from gdt.pipeline.shards.rejected import read_rejected
from gdt.preprocess.datasets.labels import NO_VIDEO
from gdt.preprocess.plan import Shares
from gdt.preprocess.settings import Preprocess, Verify
from gdt.preprocess.stage import dry_run, run
from gdt.preprocess.summary import Summary, describe
from gdt.preprocess.verify import verify
from tests.tamper import interrupted

NAMES = [f"{kind}/{k}.mp4" for kind in ("cats", "dogs") for k in range(3)]


@pytest.fixture(scope="module")
def clips(synthetic: Path) -> list[Path]:
    """Short videos of different sizes."""
    by_size = {path.stat().st_size: path for path in sorted(synthetic.rglob("*.mp4"))}
    return list(by_size.values())


def of(root: Path) -> Preprocess:
    return Preprocess("folder", root / "videos", root / "shards", videos_per_shard=2, workers=1)


@pytest.fixture(scope="module")
def made(clips: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six videos of two classes, and their three shards."""
    root = tmp_path_factory.mktemp("made")
    for name, clip in zip(NAMES, clips, strict=False):
        (root / "videos" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(clip, root / "videos" / name)
    run(of(root))
    return root


@pytest.fixture
def pets(made: Path, tmp_path: Path) -> Preprocess:
    return of(shutil.copytree(made, tmp_path / "pets"))


def shards(settings: Preprocess) -> dict[str, tuple[bytes, int]]:
    """Bytes and modification time of every shard."""
    paths = settings.shard_folder.root.glob("shard-*")
    return {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in paths}


def move(settings: Preprocess, *names: str, to: str) -> None:
    """Move videos to a split, and those that are in none to train; or out of their splits, to "."."""
    root = settings.source_folder.root
    rest = [path.relative_to(root) for kind in ("cats", "dogs") for path in (root / kind).glob("*.mp4") if to != "."]
    for path, split in {**dict.fromkeys(rest, "train"), **{Path(name): to for name in names}}.items():
        target = root / split / str(path).removeprefix("train/").removeprefix("test/")
        target.parent.mkdir(parents=True, exist_ok=True)
        (root / path).rename(target)


def table(settings: Preprocess) -> dict[str, tuple[str, str]]:
    index = Index.open(settings.shard_folder.root)
    return dict(zip(index.id.tolist(), zip(index.label.tolist(), index.split.tolist(), strict=True), strict=True))


def decoded(summary: Summary) -> int:
    saved = json.loads((summary.index.folder.root / "summary.json").read_text())
    assert saved["decoded"] == summary.decoded and f"{summary.decoded} decoded; " in describe(summary)
    return summary.decoded


def again(settings: Preprocess) -> Summary:
    """Run again and check that shards and index do not change."""
    index, before = settings.shard_folder.root / "index.h5", shards(settings)
    whole = index.read_bytes()
    summary = run(settings)
    assert decoded(summary) == 0 and shards(settings) == before and index.read_bytes() == whole
    return summary


EVERY = {name: (name.partition("/")[0], "train") for name in NAMES}


def test_moving_videos_to_test_decodes_nothing(pets: Preprocess, tmp_path: Path) -> None:
    again(pets)
    path = pets.shard_folder.root / "shard-000000.h5"
    path.rename(tmp_path / "elsewhere.h5")
    path.symlink_to(tmp_path / "elsewhere.h5")
    before, index = shards(pets), (pets.shard_folder.root / "index.h5").read_bytes()
    move(pets, "cats/0.mp4", "dogs/2.mp4", to="test")
    assert decoded(run(pets)) == 0
    assert shards(pets) == before and (pets.shard_folder.root / "index.h5").read_bytes() != index
    assert table(pets) == EVERY | {"cats/0.mp4": ("cats", "test"), "dogs/2.mp4": ("dogs", "test")}
    assert path.is_symlink() and verify(Verify(shards=pets.shard_folder.root)) == {}
    again(pets)
    move(pets, "test/dogs/2.mp4", to="train")
    cats, tigers = (pets.source_folder.root / "test" / name for name in ("cats", "tigers"))
    cats.rename(tigers)  # another class means another id
    with pytest.raises(UserError, match=r"hold 1 video no longer in .* \(first: 'cats/0.mp4'\)"):
        run(pets)
    tigers.rename(cats)
    move(pets, "test/cats/0.mp4", *(f"train/{name}" for name in NAMES[1:]), to=".")
    assert decoded(run(pets)) == 0
    assert shards(pets) == before and (pets.shard_folder.root / "index.h5").read_bytes() == index


def test_labels_csv_relabels_and_adds_columns(pets: Preprocess) -> None:
    before, index = shards(pets), (pets.shard_folder.root / "index.h5").read_bytes()
    path = pets.source_folder.root / "labels.csv"
    path.write_text("id,label,split,fur/colour\ncats/1.mp4,tiger,,red\ndogs/0.mp4,,val,\nnone.mp4,,,\n")
    summary = run(pets)
    read = "labels.csv: 'id' names the videos; 'label' is the label; 'split' is the split; further labels are "
    assert f"{read}fur/colour" in describe(summary).splitlines()
    assert decoded(summary) == 0 and shards(pets) == before
    assert table(pets) == EVERY | {"cats/1.mp4": ("tiger", "train"), "dogs/0.mp4": ("dogs", "val")}
    assert summary.index.classes == ["cats", "dogs", "tiger"]
    assert {name: column.tolist() for name, column in summary.index.columns.items()} == {
        "fur/colour": ["", "red", "", "", "", ""]
    }
    assert summary.index.labelled("fur/colour").classes == ["red"]
    (row,) = read_rejected(Folder(pets.shard_folder.root))
    assert row == LeftOut("none.mp4", NO_VIDEO)
    again(pets)
    path.write_text("id,label,split,fur/colour,new\ncats/1.mp4,tiger,,red,\ndogs/0.mp4,,val,,\n")
    assert decoded(run(pets)) == 0  # an empty column
    assert list(Index.open(pets.shard_folder.root).columns) == ["fur/colour", "new"]
    path.write_text("id,label,split,fur/colour,new\ncats/1.mp4,tiger,,blue,\ndogs/0.mp4,,val,,y\n")
    assert decoded(run(pets)) == 0
    path.write_text("id,fold\ncats/1.mp4,1\ndogs/0.mp4,2\n")
    assert decoded(run(pets)) == 0 and Index.open(pets.shard_folder.root).official_folds == range(1, 3)
    path.unlink()
    assert decoded(run(pets)) == 0
    assert shards(pets) == before and (pets.shard_folder.root / "index.h5").read_bytes() == index


def test_lost_or_damaged_index_is_rebuilt_with_current_labels(pets: Preprocess) -> None:
    move(pets, "cats/0.mp4", to="test")
    (pets.source_folder.root / "labels.csv").write_text("file,label,x\ncats/1.mp4,tiger,1\n")
    run(pets)
    before, index = shards(pets), (pets.shard_folder.root / "index.h5").read_bytes()
    for damage in (b"", b"nonsense", index[:-1]):
        (pets.shard_folder.root / "index.h5").write_bytes(damage)
        assert decoded(run(pets)) == 0
        assert (pets.shard_folder.root / "index.h5").read_bytes() == index and shards(pets) == before
    (pets.shard_folder.root / "index.h5").unlink()
    run(pets)
    assert (pets.shard_folder.root / "index.h5").read_bytes() == index and shards(pets) == before


@pytest.mark.parametrize(
    "moment", ["pipeline.shards.container.writing", "common.files.os.fsync", "pipeline.shards.rejected.write_lines",
               "preprocess.finish.summarise", "preprocess.job.PreprocessJob.pending"],
)  # fmt: skip
def test_interrupted_relabelling_is_completed_by_the_next_run(pets: Preprocess, moment: str) -> None:
    before = shards(pets)
    move(pets, "cats/0.mp4", to="test")
    with interrupted(f"gdt.{moment}"):
        run(pets)
    assert len(Index.open(pets.shard_folder.root)) == 6  # the old or the new one
    assert decoded(run(pets)) == 0
    assert shards(pets) == before and table(pets) == EVERY | {"cats/0.mp4": ("cats", "test")}
    assert not list(pets.shard_folder.root.glob("*.partial"))


def test_rejected_video_has_its_current_path(pets: Preprocess) -> None:
    (pets.source_folder.root / "cats/broken.mp4").write_bytes(b"nonsense")
    run(pets)
    before = shards(pets)
    move(pets, "cats/broken.mp4", to="test")
    run(pets)
    (row,) = read_rejected(Folder(pets.shard_folder.root))
    assert (row.id, row.path) == ("cats/broken.mp4", str(pets.source_folder.root / "test/cats/broken.mp4"))
    assert shards(pets) == before


def test_a_split_is_not_left_empty_by_a_broken_file(pets: Preprocess) -> None:
    def splits() -> dict[str, str]:
        return {name: split for name, (_, split) in table(few).items()}

    (broken,) = Shares(test=1e-9).without_empty(NAMES).chosen
    path = pets.source_folder.root / broken
    intact = path.read_bytes()
    path.write_bytes(b"nonsense")
    few = replace(pets, destination=pets.shard_folder.root.with_name("few"), test=1e-9)
    assert run(few).kept == 5
    (chosen,) = json.loads((few.shard_folder.root / "plan.jsonl").read_text().splitlines()[0])["shares"]["chosen"]
    before = splits()
    assert before == dict.fromkeys(sorted({*NAMES} - {broken}), "train") | {chosen: "test"}
    path.write_bytes(intact)
    assert run(replace(few, test=None)).kept == 6
    assert splits() == before | {broken: "train"}  # what was chosen once stays


def test_shares_become_splits_are_remembered_and_apply_to_added_videos(pets: Preprocess, clips: list[Path]) -> None:
    def by_shares(val: float, test: float) -> dict[str, str]:
        return {name: Shares(val, test).split(name) for name in table(pets)}

    before, (val, test) = shards(pets), (0.0, 0.0)
    for given in ({"test": 0.3}, {"val": 0.3}, {}, {"val": 0.1, "test": 0.6}, {"test": 0.0}, {"test": 0.5}):
        val, test = given.get("val", val), given.get("test", test)
        assert decoded(run(replace(pets, **given))) == 0 and shards(pets) == before
        assert {name: split for name, (_, split) in table(pets).items()} == by_shares(val, test)
    for k in range(8):
        shutil.copy(clips[6 + k], pets.source_folder.root / f"cats/new {k}.mp4")
    assert decoded(run(pets)) == 8  # without --test
    assert {name: split for name, (_, split) in table(pets).items()} == by_shares(val, test) and len(table(pets)) == 14
    assert {name: shards(pets)[name] for name in before} == before
    again(pets)
    labels = pets.source_folder.root / "labels.csv"
    labels.write_text("id,split\n" + "".join(f"{name},train\n" for name in NAMES))
    assert decoded(run(replace(pets, test=0.89))) == 0
    assert {table(pets)[name][1] for name in NAMES} == {"train"}  # a split of the source stays
    labels.write_text("id,split\n" + "".join(f"{name},val\n" for name in table(pets)))
    for doing in (run, dry_run):
        with pytest.raises(UserError, match="every video in .*/videos already has a split"):
            doing(replace(pets, test=0.2))
    with pytest.raises(UserError, match="--val is 0.5 and --test is 0.5; they must add up"):
        Preprocess(val=0.5, test=0.5)
