"""Shards in an object store: the same bytes and losses as from a folder, and nothing silent or lost when it fails."""

import contextlib
import errno
import itertools
import json
import os
import re
import shutil
import signal
import threading
import unicodedata
import zlib
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gdt.cli import parse_command
from gdt.common.errors import UserError
from gdt.common.folders import Folder
from gdt.eval.downstream import evaluate
from gdt.eval.embed import features as features_of
from gdt.eval.results import rows
from gdt.eval.settings import Downstream, Embed
from gdt.pipeline.leaves import Clip
from gdt.pipeline.loader import Loader
from gdt.pipeline.shards.cache import Cache
from gdt.pipeline.shards.index import Index
from gdt.pipeline.shards.reader import ShardReader
from gdt.pipeline.sources.loading import Loading
from gdt.pipeline.tree import sampling_tree
from gdt.preprocess.settings import Preprocess, Verify
from gdt.preprocess.stage import dry_run
from gdt.preprocess.verify import verify
from gdt.train.pretrain import pretrain
from gdt.train.settings import SIZES
from tests.common.test_files import without_locks
from tests.composed import composed, inputs_of
from tests.conftest import few, preprocess
from tests.faulty import Store, serve
from tests.pipeline.test_cache import simulate
from tests.train.runs import losses, of_ranks, start_gdt, wait_until

pytest.importorskip("s3fs")
SET = Folder("s3://bucket/set")
THERE = Preprocess("folder", Folder("s3://bucket/videos"), Folder("s3://bucket/made"), videos_per_shard=4)


@pytest.fixture(scope="module")
def small(synthetic: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The generated videos in eleven shards."""
    folder = tmp_path_factory.mktemp("small") / "set"
    preprocess(Preprocess("synthetic", synthetic, folder, videos_per_shard=4))
    return folder


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    with serve() as store:
        yield store


@pytest.fixture
def s3(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """An empty store and an empty cache."""
    monkeypatch.setenv("GDT_CACHE", str(tmp_path / "cache"))
    store.begin_anew()
    return store


@pytest.fixture
def stored(s3: Store, small: Path) -> Store:
    """The store with the shards in s3://bucket/set."""
    s3.files.put(str(small), "bucket/set", recursive=True)
    s3.seen.clear()
    return s3


TINY = replace(SIZES["tiny"], preset="e", batch_size=4, steps=12, threads=1)


@pytest.fixture(scope="module")
def expected(small: Path, tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """The losses of training from the folder."""
    run = tmp_path_factory.mktemp("runs") / "folder"
    pretrain(replace(TINY, shards=small, out=run))
    return losses(run)


def s3_counts(stored: Store) -> dict[str, int]:
    """How often each shard was fetched."""
    return dict(Counter(stored.paths("GET", "/shard-")))


def test_training_from_a_store_gives_the_losses_of_a_folder(
    stored: Store, expected: list[float], tmp_path: Path
) -> None:
    pretrain(replace(TINY, shards=SET, out=tmp_path / "store"))
    assert losses(tmp_path / "store") == expected
    assert sorted(s3_counts(stored).values()) == [1] * 6, "six shards hold all training videos"
    rows = [json.loads(line) for line in (tmp_path / "store" / "metrics.jsonl").read_text().splitlines()]
    assert sum(row["fetched_mb_per_second"] for row in rows) > 0 and 0 < rows[-1]["cache_hits"] < 1
    everything = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".h5")
    assert b"very-secret" not in everything


def test_a_name_is_no_chain_of_addresses(tmp_path: Path) -> None:
    for name in ("a.mp4", "a.mp4::b.mp4"):
        (tmp_path / name).write_text(name)
    folder = Folder(f"file://{tmp_path}")
    for name in folder.files():
        with folder.open(name) as file:
            assert file.read().decode() == name


def whole(fs: object, folder: str) -> dict[str, bytes]:
    return {Path(name).name: fs.cat_file(name) for name in fs.find(folder)}


@pytest.fixture
def videos(s3: Store, synthetic: Path, tmp_path: Path) -> Path:
    """Ten videos, with labels and a broken one, as a folder and in s3://bucket/videos."""
    folder = tmp_path / "videos"
    for path in sorted(synthetic.rglob("*.mp4"))[:9]:
        (folder / "cats").mkdir(parents=True, exist_ok=True)
        shutil.copy(path, folder / "cats")
    (folder / "broken.mp4").write_bytes(b"nonsense")
    names = [path.name for path in (folder / "cats").iterdir()]
    said = json.loads((synthetic / "captions.json").read_text())
    spoken = {f"cats/{Path(name).stem}": said[Path(name).stem] for name in names}
    (folder / "captions.json").write_text(json.dumps(spoken))
    (folder / "labels.csv").write_text(f"path,label,split\ncats/{names[0]},tiger,test\n")
    s3.files.put(str(folder), "bucket/videos", recursive=True)
    s3.seen.clear()
    return folder


def test_preprocessing_in_a_store_gives_the_bytes_of_a_folder(
    s3: Store, videos: Path, word2vec: Path, tmp_path: Path
) -> None:
    there = replace(THERE, word2vec=word2vec)
    here = replace(there, source=videos, destination=tmp_path / "made")
    preprocess(here)
    summary = preprocess(there)
    assert (summary.kept, summary.shards_made, str(summary.index.folder)) == (9, 3, "s3://bucket/made")
    assert summary.index.text_count.all() and "tiger" in summary.index.classes
    made = whole(s3.files, "bucket/made")
    for path in (tmp_path / "made").glob("[!.]*"):
        here_and_there = path.read_bytes().replace(str(videos).encode(), b"s3://bucket/videos"), made[path.name]
        assert len({re.sub(rb', "times": .*', b"", data) for data in here_and_there}) == 1, path.name
    s3.seen.clear()
    assert preprocess(there).shards_made == 0
    assert not s3.paths("GET", "mp4") and not s3.paths("PUT", "shard")


@pytest.mark.parametrize("captions", few([False, True]))
def test_only_lists_and_captions_that_are_read_and_videos_are_fetched(
    s3: Store, videos: Path, word2vec: Path, captions: bool
) -> None:
    for name in ("archive.tar", "cats/notes.csv", "raw_caption_superclean.json", "captions/more.csv", ".hidden"):
        s3.files.pipe_file(f"bucket/videos/{name}", b"not needed")
    s3.files.pipe_file("bucket/made/archive.tar", b"not needed")
    settings = replace(THERE, word2vec=word2vec if captions else None)
    s3.seen.clear()
    said = dry_run(settings)
    wanted = ["/bucket/videos/captions.json"] * captions + ["/bucket/videos/labels.csv"]
    assert sorted(s3.paths("GET", r"bucket/(videos|made)/")) == wanted
    assert "tar 1" in said and "1 hidden" in said
    s3.seen.clear()
    assert preprocess(settings).kept == 9
    assert {path for path in s3.paths("GET", "bucket/videos/") if not path.endswith(".mp4")} == {*wanted}
    assert not s3.paths("GET", "archive") and s3.files.cat_file("bucket/made/archive.tar") == b"not needed"


def test_replaced_objects_are_decoded_again_and_uploaded_ones_only_compared(s3: Store, videos: Path) -> None:
    preprocess(THERE)
    first, second = sorted(s3.files.glob("bucket/videos/cats/*"))[:2]
    before = whole(s3.files, "bucket/made")
    upload_in_parts(first, s3.files.cat_file(first))
    s3.seen.clear()
    assert dry_run(THERE).endswith("; 1 file of the others changed in time: their content will be compared")
    assert not s3.paths("GET", "mp4")
    assert preprocess(THERE).shards_made == 0 and len(s3.paths("GET", "mp4")) == 1
    s3.seen.clear()
    assert preprocess(THERE).shards_made == 0 and not s3.paths("GET", "mp4")
    assert {name: data for name, data in whole(s3.files, "bucket/made").items() if name.startswith("shard")} == {
        name: data for name, data in before.items() if name.startswith("shard")
    }
    data = s3.files.cat_file(second)
    s3.files.pipe_file(second, data[:-1] + bytes([data[-1] ^ 1]))
    s3.files.pipe_file("bucket/made/shard-old/shard-000000.h5", b"of another set")
    assert preprocess(THERE).shards_made == 1
    assert s3.files.exists("bucket/made/shard-old/shard-000000.h5")


def upload_in_parts(name: str, data: bytes) -> None:
    """Upload an object in one part, which changes its tag."""
    import boto3

    client, (bucket, _, key) = boto3.client("s3", endpoint_url=os.environ["AWS_ENDPOINT_URL"]), name.partition("/")
    where = {"Bucket": bucket, "Key": key}
    where["UploadId"] = client.create_multipart_upload(**where)["UploadId"]
    tag = client.upload_part(**where, PartNumber=1, Body=data)["ETag"]
    client.complete_multipart_upload(**where, MultipartUpload={"Parts": [{"ETag": tag, "PartNumber": 1}]})


def read(index: Index, epochs: int, window: int = 1) -> tuple[list[int], list[np.ndarray]]:
    """A checksum of each batch of some epochs, and its shards."""
    clip = Clip(8, 4, 32)
    tree = sampling_tree(index, composed("e", 2), clip, "train", 0, shuffle_shards=window)
    steps = epochs * tree.batches_per_epoch
    coming = tree.videos(0, steps)
    plans, loading = tree.plans(0, steps), Loading(threads=1)
    with Loader(index, plans, inputs_of(index, clip), torch.device("cpu"), loading, None, coming) as loader:
        read = [zlib.crc32(b"".join(x.numpy().tobytes() for x in batch.tensors().values())) for batch in loader]
    return read, [index.shard[videos] for videos in tree.videos(0, steps)]


def test_a_small_cache_fetches_each_shard_once_per_epoch(stored: Store, small: Path, tmp_path: Path) -> None:
    here = Index.open(small)
    sizes = [header.size for header in here.headers]
    used = sorted({*here.shard[here.split == "train"]})
    bound = 2 * max(sizes[number] for number in used)
    assert bound < 0.4 * sum(sizes[number] for number in used)
    with watched(tmp_path / "cache") as peaks:
        read_there, batches = read(replace(Index.open(SET), cache_bytes=bound), 3)
    assert read_there == read(here, 3)[0]
    assert sorted({path[-9:-3] for path in s3_counts(stored)}) == [f"{number:06d}" for number in used]
    assert max(s3_counts(stored).values()) <= 3 and len(simulate(batches, sizes, bound)) <= 18
    assert max(peaks) <= bound
    # the least that would do is what works, and less is refused
    with pytest.raises(UserError, match=r"--cache to \d+MB") as refused:
        pretrain(replace(TINY, shards=SET, cache="1MB", out=tmp_path / "run"))
    least = re.search(r"--cache to (\d+MB)", str(refused.value))[1]
    pretrain(replace(TINY, shards=SET, cache=least, steps=2, out=tmp_path / "run"))


@contextlib.contextmanager
def watched(folder: Path) -> Iterator[list[int]]:
    """Bytes of finished shards at many times."""
    sizes, stop = [0], threading.Event()

    def look() -> None:
        while not stop.wait(0.002):
            with contextlib.suppress(OSError):
                before = {*folder.glob("*/*.h5")}
                total = sum(path.stat().st_size for path in before)
                if before == {*folder.glob("*/*.h5")}:  # else one that went and one that came would both count
                    sizes.append(total)

    (thread := threading.Thread(target=look, daemon=True)).start()
    yield sizes
    stop.set()
    thread.join()


@pytest.mark.parametrize("faults", [20, pytest.param(100, marks=pytest.mark.slow)])
def test_random_faults_change_nothing(stored: Store, small: Path, faults: int) -> None:
    here = Index.open(small)
    expected, _ = read(here, 1, window=2)
    stored.fail(".", "any", 2)
    index = replace(Index.open(SET), cache_bytes=3 * max(header.size for header in here.headers))
    left = faults
    while left > 0:
        stored.faults = [("GET .*shard", "any", min(5, left))]
        assert read(index, 1, window=2)[0] == expected
        left -= 5 - stored.faults[0][2]


@pytest.mark.parametrize(
    ("fault", "cause", "most"),  # whole copies that come: by a fetcher, ahead, then by the reader
    few([("damaged", "checksum mismatch", 2 + 2), ("replaced", "is not the shard of the index; restore it, or", 1 + 1),
         ("wrong bytes", "", 5 + 5), ("forbidden", "", 0), ("unavailable", "", 0)], 2),
)  # fmt: skip
def test_what_stays_wrong_is_fetched_again_once_and_stops_training_which_resumes(
    stored: Store, expected: list[float], small: Path, tmp_path: Path, fault: str, cause: str, most: int
) -> None:
    name, whole = "bucket/set/shard-000005.h5", (small / "shard-000005.h5").read_bytes()
    at_rest = {
        "damaged": whole[:-1] + bytes([whole[-1] ^ 1]),
        "replaced": (small / "shard-000004.h5").read_bytes(),
    }
    if fault in at_rest:
        stored.files.pipe_file(name, at_rest[fault])
    else:
        stored.fail("GET .*shard-000005", fault, 10_000)
    run = replace(TINY, shards=SET, out=tmp_path / "run")
    with pytest.raises(UserError, match=f"s3://{name}.*{cause}.*run the same (preprocessing )?command again"):
        pretrain(run)
    assert min(most, 1) <= s3_counts(stored).get(f"/{name}", 0) <= most
    stored.faults.clear()
    stored.files.pipe_file(name, whole)
    pretrain(run)
    assert losses(tmp_path / "run") == expected
    assert not list((tmp_path / "cache").rglob("*.partial"))


def test_a_disk_that_something_else_fills_takes_fewer_shards(
    stored: Store, small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch, times = Folder.fetch, itertools.count()

    def full(folder: Folder, name: str, to: Path, *rest: object) -> None:
        if "shard" in name and next(times) in (3, 5):
            raise OSError(errno.ENOSPC, "full")
        fetch(folder, name, to, *rest)

    monkeypatch.setattr(Folder, "fetch", full)
    assert read(Index.open(SET), 2)[0] == read(Index.open(small), 2)[0]


@pytest.mark.parametrize("locks", [True, False])
def test_runs_at_once_have_caches_of_their_own_and_leave_their_shards(
    stored: Store, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, locks: bool,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    if not locks:
        without_locks(monkeypatch)
    root = tmp_path / "cache"
    expected = read(Index.open(small), 2)[0]
    index = replace(Index.open(SET), cache_bytes=3 * max(header.size for header in Index.open(small).headers))
    mine = [root / name for name in ("features.h5", "x.partial", "x/features.h5", "shards-old/features.h5")]
    for path in mine:  # files of other programs
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(lambda _: read(index, 2)[0], range(3))) == [expected] * 3
    assert read(index, 2)[0] == expected
    left = [path for path in root.glob("shards-*/*.h5") if path not in mine]
    assert all(path.is_file() for path in mine) and sum(path.stat().st_size for path in left) <= index.cache_bytes
    assert bool(left) == locks and not list(root.glob("shards-*/*.partial"))
    assert capsys.readouterr().err.count("has no file locks or hard links") == (not locks)
    large = replace(index, cache_bytes=0)
    read(large, 1)
    stored.seen.clear()
    read(large, 1)
    assert (not s3_counts(stored)) == locks


@pytest.mark.parametrize("links", [True, False])
def test_what_another_run_holds_is_linked(
    stored: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], links: bool
) -> None:
    first, second = (ShardReader(Index.open(SET)) for _ in range(2))
    row = np.array([0])
    frames = first.frames(0, row)

    def refuse(*_: object) -> None:
        raise PermissionError(errno.EPERM, "no")

    if not links:
        monkeypatch.setattr(Path, "hardlink_to", refuse)
    assert np.array_equal(second.frames(0, row), frames)
    files = [*(tmp_path / "cache").glob("*/*.h5")]
    assert [path.stat().st_nlink for path in files] == [1 + links] * 2
    assert sum(s3_counts(stored).values()) == 2 - links
    assert ("has no file locks or hard links" in capsys.readouterr().err) != links
    for reader in (first, second):
        reader.close()


@pytest.mark.parametrize("fault", ["failed", "gone", "twice"])
def test_ranks_end_with_the_one_that_fetches(stored: Store, fault: str) -> None:
    index = Index.open(SET)
    leader = Cache(index, "run")
    if fault == "twice":
        with pytest.raises(UserError, match="another process fetches into"):
            Cache(index, "run")
    follower = Cache(index, "run", leads=False)
    demands = [cache.begin() for cache in (leader, follower)]
    for cache, demand in zip((leader, follower), demands, strict=True):
        cache.expect(demand, np.array([0]))
    leader.open(demands[0], 0).close()
    follower.open(demands[1], 0).close()
    assert s3_counts(stored) == {"/bucket/set/shard-000000.h5": 1}
    stored.fail("GET .*shard-000001", "forbidden", 10_000)
    with ThreadPoolExecutor(1) as pool:
        follower.expect(demands[1], np.array([1]))
        waiting = pool.submit(follower.open, demands[1], 1)
        if fault == "gone":
            leader.close()
        else:
            leader.done(demands[0])
            leader.expect(demands[0], np.array([1]))
        with pytest.raises(UserError, match="has ended" if fault == "gone" else "shard-000001.h5.*check the network"):
            waiting.result(60)
    leader.close()


def test_a_probe_shares_the_cache_of_its_run(stored: Store, small: Path, tmp_path: Path) -> None:
    bound = 3 * max(header.size for header in Index.open(small).headers)
    probed = replace(TINY, probe_every=4, shuffle_shards=1)
    with watched(tmp_path / "cache") as peaks:
        pretrain(replace(probed, shards=SET, cache=str(bound), out=tmp_path / "run"))
    pretrain(replace(probed, shards=small, out=tmp_path / "folder"))
    assert losses(tmp_path / "run") == losses(tmp_path / "folder")
    assert max(peaks) <= bound


def test_unfinished_shards_in_a_store_are_told_from_none(stored: Store) -> None:
    stored.files.rm_file("bucket/set/index.h5")
    with pytest.raises(UserError, match=r"s3://bucket/set has shards but no index.h5: preprocessing has not finished"):
        Index.open(SET)
    with pytest.raises(UserError, match=r"there are no shards in s3://bucket/other \(no index.h5\); make them with"):
        Index.open(Folder("s3://bucket/other"))


def training(run: Path, *more: object) -> list[object]:
    sizes = ["--size", "tiny", "--batch-size", 4, "--steps", 12, "--threads", 1, "--device", "cpu"]
    return ["pretrain", "--shards", "s3://bucket/set", "--preset", "e", "--out", run, *sizes, *more]


def test_two_ranks_share_every_fetch(stored: Store, small: Path, tmp_path: Path) -> None:
    half = sum(sorted(header.size for header in Index.open(small).headers)[-3:])
    more = ["--preset", "l", "--batch-size", 2, "--group-size", 2, "--steps", 24, "--loading.prefetch", 1,
            "--shuffle-shards", 1, "--cache", half]  # fmt: skip
    ranks = [start_gdt(training(tmp_path / "run", *more), tmp_path, **of_rank) for of_rank in of_ranks(2)]
    said = [rank.communicate() for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], said
    assert len(losses(tmp_path / "run")) == 24
    assert len(s3_counts(stored)) == 6 and max(s3_counts(stored).values()) <= 2, "two epochs"


@pytest.mark.slow
@pytest.mark.parametrize("kills", [1, 10])
def test_kills_change_nothing(
    s3: Store, videos: Path, small: Path, expected: list[float], tmp_path: Path, kills: int
) -> None:
    def killed(pattern: str, method: str, times: int, *arguments: object) -> None:
        """Run a command, and kill it and its workers after some requests."""
        s3.seen.clear()
        process = start_gdt(arguments, tmp_path)
        wait_until(lambda: len(s3.paths(method, pattern)) >= times or process.poll() is not None)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()

    there = replace(THERE, videos_per_shard=2)
    typed = ["preprocess", "--layout", "folder", "--source", "s3://bucket/videos", "--destination", "s3://bucket/made",
             "--videos-per-shard", 2, "--workers", 2]  # fmt: skip
    s3.fail("PUT .*made/index", "no answer", 10_000)  # so that no run ends before it is killed
    for kill in range(kills):
        killed("made/shard", "PUT", 1 + kill % 2, *typed)
        with pytest.raises(UserError):  # nothing that a reader takes for a data set
            Index.open(there.shard_folder)
        for left in s3.files.glob("bucket/made/shard*")[2:]:  # so that there is work to do
            s3.files.rm_file(left)
    s3.faults.clear()
    preprocess(there)
    preprocess(replace(there, source=videos, destination=tmp_path / "made"))
    made = whole(s3.files, "bucket/made")
    assert all(made[path.name] == path.read_bytes() for path in (tmp_path / "made").glob("*.h5"))

    s3.files.put(str(small), "bucket/set", recursive=True)
    for kill in range(kills):
        killed("set/shard", "GET", 1 + kill % 4, *training(tmp_path / "run", "--checkpoint-steps", 1))
    pretrain(replace(TINY, shards=SET, out=tmp_path / "run"))
    assert losses(tmp_path / "run") == expected


def test_verify_evaluate_and_embed_read_a_store(stored: Store, small: Path, checkpoint: Path, tmp_path: Path) -> None:
    for command in ("verify", "evaluate", "embed"):
        assert parse_command(command, ["--shards", str(SET)]).shards == SET
    found, features = [], []
    for name, folder in (("folder", small), ("store", SET)):
        tables = evaluate(Downstream((checkpoint,), "set", folder, clips=2, jobs=1, out=tmp_path / name))
        found.append([(row["metric"], row["value"]) for row in rows(tables.results)])
        features.append(features_of(Embed(checkpoint, shards=folder, clips=2)).features["video"])
    assert found[0] == found[1] and found[0] and np.array_equal(*features)

    assert not verify(Verify(shards=SET))
    stored.fail("GET .*shard-000003", "wrong bytes", 10_000)
    assert list(verify(Verify(shards=SET))) == ["shard-000003.h5"]
    stored.faults.clear()
    stored.files.pipe_file("bucket/set/shard-000002.h5", b"nonsense")
    assert list(verify(Verify(shards=SET, remove=True))) == ["shard-000002.h5"]
    assert "shard-000002.h5" not in whole(stored.files, "bucket/set")


@pytest.mark.slow
def test_videos_in_a_store_are_embedded_like_those_of_a_folder(s3: Store, synthetic: Path, checkpoint: Path) -> None:
    s3.files.put(str(synthetic / "test"), "bucket/test", recursive=True)
    one, url = min((synthetic / "test").rglob("*.mp4")), "s3://bucket/test"
    asked = {"clips": 1, "workers": 1, "modalities": ("video",)}
    here, there = (features_of(Embed(checkpoint, sources, **asked)) for sources in (
        (synthetic / "test", one), (Folder(url), Folder(f"{url}/{one.relative_to(synthetic / 'test')}"))
    ))  # fmt: skip
    assert np.array_equal(here.features["video"], there.features["video"])
    assert [name.replace("s3://bucket/test", str(synthetic / "test")) for name in there.id] == here.id.tolist()
    decomposed = f"bucket/accents/{unicodedata.normalize('NFD', 'é')}.mp4"
    s3.files.put_file(str(one), decomposed)
    found = features_of(Embed(checkpoint, (Folder("s3://bucket/accents"),), **asked))
    assert found.id.tolist() == [f"s3://{decomposed}"]


def test_of_two_runs_that_differ_one_publishes(s3: Store, videos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replace_index, runs = Folder._replace, itertools.count()

    def late(*arguments: Any) -> None:
        s3.files.pipe_file("bucket/made/index.h5", b"of another run %d" % next(runs))
        replace_index(*arguments)

    for round in range(2):  # without an index before, and with one
        with monkeypatch.context() as patch, pytest.raises(UserError, match="another run has written"):
            patch.setattr(Folder, "_replace", late)
            preprocess(THERE)
        assert s3.files.cat_file("bucket/made/index.h5") == b"of another run %d" % round
    assert preprocess(THERE).kept == 9


@pytest.mark.parametrize("url", ["s3://me:my-password@bucket/set", "s3://bucket/set?X-Amz-Signature=my-password"])
def test_secrets_in_urls_are_refused_and_not_repeated(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UserError, match="password") as refused:
        parse_command("pretrain", ["--size", "tiny", "--shards", url])
    assert "my-" not in str(refused.value) + capsys.readouterr().err
