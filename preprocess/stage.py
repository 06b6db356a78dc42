"""Videos to shards: which to make, making them, going on after an interruption, and the index at the end."""

from __future__ import annotations

import contextlib
import itertools
import json
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from heapq import nlargest
from pathlib import Path
from typing import Any, ClassVar, Literal

from tqdm import tqdm

from gdt.common.errors import UserError, require_positive
from gdt.common.files import dump_row, write_lines
from gdt.common.lock import locked
from gdt.pipeline.shards.index import Index, read_annotations, rewrite_index, write_index
from gdt.pipeline.shards.layout import INDEX, REJECTED, read_rejected, shard_folder, shard_rejected
from gdt.pipeline.shards.seal import Damaged, OtherSchema, open_sealed, read_seal
from gdt.preprocess import cluster, datasets
from gdt.preprocess.captions import readers
from gdt.preprocess.captions.attach import attach
from gdt.preprocess.captions.words import Vocabulary
from gdt.preprocess.datasets.listing import Missing, Video
from gdt.preprocess.ffmpeg import Extraction, require_ffmpeg
from gdt.preprocess.logmel import BANDS
from gdt.preprocess.plan import PLAN, Plan, absent_videos, as_planned, held_videos, read_settings, read_shares
from gdt.preprocess.relabel import Marks, same
from gdt.preprocess.summary import SLOWEST, Slow, Summary, summarise
from gdt.preprocess.videos import Shares, VideoList
from gdt.preprocess.worker import PROGRESS, Changed, full_disk_named, make_numbered

_ATTEMPTS = 4
"""How often a shard is tried whose videos change or come and go."""


@dataclass(frozen=True)
class Preprocess(cluster.Workers):
    """Turn a data set of videos into shards; run again to go on where it stopped."""

    headings: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "data": ("dataset", "source", "destination", "val", "test", "duplicates", "drop_missing"),
        "captions": ("word2vec", "stop_words"),
        "shard": ("videos_per_shard", "megabytes_per_shard"),
        "run": ("dry_run", "workers", "scheduler"),
    }
    """Of `--help`, and the settings below them."""

    dataset: str = "folder"
    """Which layout the videos have: folder (any tree) or a data set, such as kinetics or synthetic; an unknown name
    lists them."""
    source: Path | None = None
    """Folder of the videos. The synthetic sets are generated there (default data/videos/<dataset>)."""
    destination: Path | None = None
    """Folder of the shards; default data/shards/<dataset>."""
    extraction: Extraction = field(default_factory=Extraction)
    """How frames and sound are taken from a video."""
    word2vec: Path | None = None
    """File of word vectors in word2vec's format (.bin or text), to which the words of captions are matched; without it
    captions are not read. Needed for howto100m."""
    stop_words: Path | None = None
    """File of words to leave out, one per line; default scikit-learn's English list."""
    videos_per_shard: int = 128
    """Most videos in one shard file."""
    megabytes_per_shard: float = 256.0
    """Megabytes of video files after which a shard is full, so that long videos make no huge shards. A shard is 3 to 10
    times as large as its videos; a worker needs that much free disk beside the shards."""
    val: float | None = None
    """Share, from 0 to 1, of the videos whose source does not say a split that becomes val, chosen by their ids: videos
    that are added move none. It is remembered: without it, that of the last run into DESTINATION, 0 in the first."""
    test: float | None = None
    """The same of test; what is in neither is train. 0 makes it train again."""
    duplicates: Literal["refuse", "first"] = "refuse"
    """What to do about files with one id: stop and name them, or keep the first and name the others in
    rejected.jsonl."""
    drop_missing: bool = False
    """Where videos of finished shards are no longer in SOURCE, make those shards anew without them."""
    dry_run: bool = False
    """Decode a few videos, say how long and how large the whole would be, and write nothing."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "", "videos_per_shard")
        if not self.megabytes_per_shard > 0:
            raise UserError(f"--megabytes-per-shard is {self.megabytes_per_shard}; it must be above 0")
        Shares(self.val or 0.0, self.test or 0.0)  # refuses what are none

    @property
    def shard_folder(self) -> Path:
        return shard_folder(self.dataset, self.destination)

    @property
    def source_folder(self) -> Path:
        """Absolute, since workers of a cluster may have been started in another folder."""
        return (self.source or Path("data/videos") / self.dataset).absolute()


def run(settings: Preprocess) -> Summary:
    """Make every shard that is not there yet, then the index. Raises UserError on bad input, before any work."""
    try:
        return _run(settings)
    except (OSError, RuntimeError) as error:
        raise full_disk_named(error, settings.shard_folder) from error


def _run(settings: Preprocess) -> Summary:
    require_ffmpeg()
    datasets.find(settings.dataset, settings.source_folder)
    destination = settings.shard_folder.absolute()
    with locked(destination), contextlib.ExitStack() as stack:
        items, language = described(settings, destination, stack)
        source = settings.source_folder
        videos = listed(as_planned(items, source, destination), settings, destination, stack)
        if not len(videos):
            why = next(map("{id}: {reason}".format_map, map(json.loads, videos.missing_rows())), "there are none")
            raise UserError(f"none of the videos in {source} can be used: {why}")
        details = settings.extraction.identity | {"bands": BANDS, "dataset": settings.dataset} | language
        _refuse_to_replace(videos, destination, details, settings.drop_missing)
        if not settings.scheduler:  # elsewhere, workers may still be at what a killed run gave them
            _remove_scratch(destination)
        plan = Plan(videos, destination, settings.videos_per_shard, settings.megabytes_per_shard)
        tell_changed(settings, videos.shares)
        plan.write(details)
        pending = plan.pending(settings.extraction, details)
        before = Marks.of(destination)
        slow: list[Slow] = []
        if pending:
            _forget_index(plan, pending)
            slow = _make(plan, pending, details, settings)
        return _finish(plan, pending, before, slow, details)


Items = Iterator[Video | Missing]


def described(settings: Preprocess, scratch: Path, stack: contextlib.ExitStack) -> tuple[Items, dict[str, str]]:
    """The videos of the data set with what is said in them, and what tells the language of their tokens."""
    source = settings.source_folder
    entry = datasets.find(settings.dataset, source)
    if entry.generate is not None:
        entry.generate(source)
    items = datasets.listing(settings.dataset, source)
    if settings.word2vec is None:
        if entry.needs_captions:
            raise UserError(
                f"{settings.dataset} keeps what is captioned, and needs the word vectors its words are looked up in: "
                "set --word2vec to GoogleNews-vectors-negative300.bin or another file in word2vec's format "
                "(to learn from sound alone, use --dataset folder)"
            )
        return items, {"vocabulary": "", "stop_words": ""}
    said = readers.Captions.find(source, scratch)
    if said is None:
        raise UserError(f"there are no captions in {source}; expected:\n{readers.EXPECTED}")
    if settings.extraction.fps % 10 and entry.needs_captions:
        raise UserError("--fps must be a multiple of 10 for captioned stretches, which begin at tenths of a second")
    stack.enter_context(said)
    vocabulary = Vocabulary.load(settings.word2vec, settings.stop_words)
    language = {"vocabulary": vocabulary.digest, "stop_words": vocabulary.stop_digest}
    return attach(items, said, vocabulary, source, only_captioned=entry.needs_captions), language


def listed(items: Items, settings: Preprocess, scratch: Path, stack: contextlib.ExitStack) -> VideoList:
    """The list of the videos, open as long as the stack is; shares that are not given are those of the last run.

    Raises UserError if shares are given and every video has its split.
    """
    source, last = settings.source_folder, read_shares(settings.shard_folder) or Shares()
    shares = Shares(
        last.val if settings.val is None else settings.val, last.test if settings.test is None else settings.test
    )
    videos = stack.enter_context(VideoList(items, source, scratch, shares, settings.duplicates))
    if len(videos) and not videos.without_split and (settings.val or settings.test):
        raise UserError(
            f"every video in {source} has its split, by its folder or by a list; --val and --test are shares of "
            "those that have none: leave them out"
        )
    return videos


def tell_changed(settings: Preprocess, shares: Shares) -> None:
    """Print a line where these shares are not those of the last run, or where nobody knows."""
    destination = settings.shard_folder
    last = read_shares(destination)
    if last is None:
        if None in (settings.val, settings.test) and any(destination.glob("shard-*.h5")):
            told = "is damaged or gone, and what --val and --test were with it: what is not given again is 0"
            print(f"{destination / PLAN} {told}", flush=True)
        return
    pairs = zip(("--val", "--test"), astuple(shares), astuple(last), strict=True)
    if changes := [f"{name} is {now} and was {before}" for name, now, before in pairs if now != before]:
        print(f"{', '.join(changes)}; videos that change their split by it are counted as relabelled", flush=True)


def _refuse_to_replace(videos: VideoList, destination: Path, details: dict[str, Any], drop_missing: bool) -> None:
    """A wrong SOURCE, a disk that is not mounted or a changed option must not replace finished shards, which may be
    days of work.
    """
    before = read_settings(destination)
    for path in destination.glob("shard-*.h5"):
        try:
            read_seal(path)
        except OtherSchema as error:
            raise UserError(
                f"{destination} holds shards of another version: {error}; set --destination to another folder, or "
                "delete those shards first"
            ) from error
        except (OSError, Damaged):
            pass  # it is made again
    if before is None or not any(destination.glob("shard-*.h5")):
        return
    changed = [
        f"{name.replace('_', '-')} {before.get(name)}, now {value}"
        for name, value in details.items()
        if before.get(name) != value
    ]
    if changed:
        raise UserError(
            f"{destination} holds shards made with {'; '.join(changed)}; set --destination to another folder, "
            "or delete those shards first"
        )
    planned, absent = absent_videos(videos, destination)
    if sum(map(len, absent.values())) > planned / 2:
        raise UserError(
            f"{destination} holds shards of {planned} videos, most of which are not in {videos.source}; "
            "set --destination to another folder, or delete those shards first"
        )
    if not drop_missing and (gone := list(held_videos(destination, absent))):
        raise UserError(
            f"{len(gone)} videos of the finished shards in {destination} are no longer in {videos.source} (first: "
            f"'{gone[0]}'); bring them back, or pass --drop-missing, which makes those shards anew without them"
        )


def _make(plan: Plan, pending: Sequence[int], details: dict[str, Any], settings: Preprocess) -> list[Slow]:
    total = sum(plan.count(shard) for shard in pending)
    slow: list[Slow] = []
    interval = 0.5 if sys.stderr.isatty() else 20.0
    with cluster.connect(settings.scheduler, settings.workers) as client:
        print(f"Dask dashboard: {client.dashboard_link}", flush=True)
        with tqdm(total=total, unit="video", desc="preprocess", smoothing=0.02, mininterval=interval) as bar:
            client.subscribe_topic(PROGRESS, lambda event: bar.update(event[1]))
            for attempt in range(_ATTEMPTS):
                tasks = ((shard, plan.task(shard, settings.extraction, details, attempt > 0)) for shard in pending)
                again = []
                for shard, made in cluster.unordered(client, make_numbered, tasks, settings.workers):
                    slow = nlargest(SLOWEST, [*slow, *made.slow])
                    if made.changed:
                        _look_again(plan, shard, made.changed)
                        again.append(shard)
                pending = sorted(again)  # after all others: what somebody writes to may be whole by then
                if not pending:
                    break
            else:
                raise UserError(f"videos in {settings.source_folder} come and go; run the same command again")
            client.unsubscribe_topic(PROGRESS)
            bar.update(total - bar.n)
    return slow


def _look_again(plan: Plan, shard: int, changed: Sequence[Changed]) -> None:
    """Take the sizes of videos that a worker saw changed as they are now. Raises UserError where it saw amiss."""
    for seen in changed:
        place = plan.places(shard)[seen.number]
        (video, before), now = plan.videos.video(place), plan.videos.look_again(place)
        if seen.size < 0 <= now == before:
            told = cluster.unseen(video.path, seen.host, "its disk")
            raise UserError(f"{told}: finished shards are kept")


def _remove_scratch(destination: Path) -> None:
    """What workers that were killed have left behind."""
    for scratch in destination.glob(".shard-*"):
        shutil.rmtree(scratch, ignore_errors=True)


def _forget_index(plan: Plan, pending: Sequence[int]) -> None:
    """Remove the index if it speaks of shards that are about to change; else it stays of use until the new one."""
    try:
        with open_sealed(plan.destination / INDEX) as file:
            spoken_of = set(file["shard/name"].asstr()[:])
    except (OSError, Damaged):
        spoken_of = set()
    kept = {plan.path(shard).name for shard in range(len(plan))} - {plan.path(shard).name for shard in pending}
    if not spoken_of or not spoken_of <= kept:
        (plan.destination / INDEX).unlink(missing_ok=True)


def _index_of(destination: Path, paths: Sequence[Path]) -> Index | None:
    """The index that is there, if it speaks of these shards as they are."""
    try:
        index = Index.open(destination)
    except UserError:
        return None
    same = index.shard_names == [path.name for path in paths]
    return index if same and index.shard_seal.tolist() == [read_seal(path).own for path in paths] else None


def _finish(plan: Plan, made: Sequence[int], before: Marks, slow: list[Slow], details: dict[str, Any]) -> Summary:
    """Index, rejected.jsonl and summary from the shards and the list; what is no part of the plan is removed."""
    videos, destination = plan.videos, plan.destination
    paths = [plan.path(shard) for shard in range(len(plan))]
    names = {path.name for path in paths}
    for old in destination.glob("shard-*.h5*"):
        if old.name not in names:
            old.unlink()
    _remove_scratch(destination)
    # by the path of now: a video that was moved keeps its shard
    rejected = (row | {"path": str(videos.path_of(row["id"]))} for path in paths for row in shard_rejected(path))
    write_lines(destination / REJECTED, itertools.chain(videos.missing_rows(), map(dump_row, rejected)))
    index = None if made else _index_of(destination, paths)
    if index is None:
        write_index(destination, paths, {"settings": json.dumps(details)}, videos.say)
        index = Index.open(destination)
    elif not same((there := read_annotations(destination))[1], said := videos.say(there[0])):
        rewrite_index(destination, said)
        index = Index.open(destination)
    if not len(index):
        first = next(read_rejected(destination))
        raise UserError(
            f"none of the {len(videos)} videos could be used; {first['path'] or first['id']}: {first['reason']}. "
            f"See {destination / REJECTED}"
        )
    decoded = sum(plan.count(shard) for shard in made)
    relabelled = before.differing(Marks.of(destination))
    return summarise(index, len(videos) + videos.missing, len(made), decoded, relabelled, slow)
