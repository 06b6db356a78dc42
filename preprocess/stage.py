"""Videos to shards: list the videos, plan the shards, make the missing ones, and write the index."""

from __future__ import annotations

import contextlib
import difflib
import itertools
import json
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from tqdm import tqdm

from gdt.common.commandline import gdt_command
from gdt.common.errors import UserError, plural, require_positive
from gdt.common.files import dump_row, write_lines
from gdt.common.lock import locked
from gdt.pipeline.shards import container
from gdt.pipeline.shards.container import Damaged, Head, OtherSchema, texts
from gdt.pipeline.shards.index import Index, read_rejected_of, write_index
from gdt.pipeline.shards.layout import BANDS, DATASETS, INDEX, REJECTED, read_rejected, shard_folder
from gdt.preprocess import cluster, datasets
from gdt.preprocess.captions import readers
from gdt.preprocess.captions.attach import attach
from gdt.preprocess.captions.words import Vocabulary
from gdt.preprocess.datasets.listing import Missing, Video
from gdt.preprocess.ffmpeg import STORED_NAMES, Extraction, require_ffmpeg
from gdt.preprocess.plan import PLAN, Plan, absent_videos, finished_videos, read_settings, read_shares, with_planned_ids
from gdt.preprocess.summary import Summary, count_relabelled, describe, summarise
from gdt.preprocess.videos import Shares, VideoList
from gdt.preprocess.worker import PROGRESS, ChangedVideo, explain_full_disk, make_planned_shard

_SIMILAR = 0.75
"""Likeness of the name of a data set to a known one above which it counts as misspelled."""
_ATTEMPTS = 4
"""Maximum attempts at a shard whose videos change, disappear or reappear."""


@dataclass(frozen=True)
class Preprocess(cluster.Workers):
    """Turn a data set of videos into shards. Run the same command again to resume."""

    dataset: str = "kinetics"
    """Name of the data set."""
    source: Path | None = None
    """Folder of the videos; default: data/videos/<dataset>."""
    destination: Path | None = None
    """Folder of the shards; default: data/shards/<dataset>."""
    layout: str = ""
    """Layout of --source; default: that of a known data set if --dataset names one, else folder, any tree of videos."""
    extraction: Annotated[Extraction, tyro.conf.arg(name="")] = field(default_factory=Extraction)
    word2vec: Path | None = None
    """word2vec file, to store captions as words; default: no captions."""
    stop_words: Path | None = None
    """Words to skip, one per line; default: scikit-learn's list."""
    videos_per_shard: int = 128
    """Maximum number of videos per shard."""
    megabytes_per_shard: float = 256.0
    """Maximum MB of videos per shard (a shard is 3-10 times that)."""
    val: float | None = None
    """Fraction of unsplit videos for val; default: last run's, or 0."""
    test: float | None = None
    """The same for test; the others become train."""
    duplicates: Literal["refuse", "first"] = "refuse"
    """Files with the same id: refuse them (an error), or keep the first."""
    drop_missing: bool = False
    """Rebuild finished shards without the videos no longer in --source."""
    dry_run: bool = False
    """Estimate time and size from a few videos; write no shards."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "", "videos_per_shard")
        if not self.megabytes_per_shard > 0:
            raise UserError(f"--megabytes-per-shard is {self.megabytes_per_shard}; it must be above 0")
        Shares(self.val or 0.0, self.test or 0.0)  # validates

    @property
    def known_layout(self) -> str:
        """The layout. Raises UserError if it is unknown, or if the name of the data set looks like one misspelled."""
        if self.layout or self.dataset in DATASETS:
            return self.layout or self.dataset
        if similar := difflib.get_close_matches(self.dataset.casefold(), DATASETS, 1, _SIMILAR):
            raise UserError(
                f"--dataset is '{self.dataset}'; did you mean '{similar[0]}'? Otherwise set --layout folder if its "
                f"videos are any tree of folders, or --layout {similar[0]} if they lie as in {similar[0]}"
            )
        return "folder"

    @property
    def shard_folder(self) -> Path:
        return shard_folder(self.dataset, self.destination)

    @property
    def source_folder(self) -> Path:
        """Absolute: workers of a cluster may run in another folder."""
        return (self.source or Path("data/videos") / self.dataset).absolute()


def command(settings: Preprocess) -> str:
    """Preprocess; returns a summary and the commands that follow."""
    if settings.dry_run:
        from gdt.preprocess.estimate import estimate

        return estimate(settings)
    summary = run(settings)
    usual = settings.shard_folder == shard_folder(settings.dataset)
    data = ["--dataset", settings.dataset] if usual else ["--shards", settings.shard_folder]
    silent = ["--preset", "d"] if summary.without_sound == summary.kept else []
    lines = [describe(summary), f"next: {gdt_command('pretrain', *data, *silent)}"]
    if any(summary.index.folds):
        lines.append(
            f"or, to evaluate a model by the official folds: {gdt_command('evaluate', *data)} --ckpt <checkpoint>"
        )
    return "\n".join(lines)


def run(settings: Preprocess) -> Summary:
    """Make the missing shards, then the index. Raises UserError on bad input, before any work if possible."""
    try:
        return _run(settings)
    except (OSError, RuntimeError) as error:
        raise explain_full_disk(error, settings.shard_folder) from error


def _run(settings: Preprocess) -> Summary:
    require_ffmpeg()
    datasets.find(settings.known_layout, settings.source_folder)
    destination = settings.shard_folder.absolute()
    with locked(destination), contextlib.ExitStack() as stack:
        items, language = find_videos(settings, destination, stack)
        source = settings.source_folder
        videos = list_videos(with_planned_ids(items, source, destination), settings, destination, stack)
        if not len(videos):
            why = next(map("{id}: {reason}".format_map, map(json.loads, videos.missing_rows())), "there are none")
            raise UserError(f"none of the videos in {source} can be used: {why}")
        details = settings.extraction.identity | {"bands": BANDS, "dataset": settings.known_layout} | language
        _protect_shards(videos, destination, details, settings.drop_missing)
        if not settings.scheduler:  # workers of a cluster may still be busy with tasks of a killed run
            _remove_scratch(destination)
        plan = Plan(videos, destination, settings.videos_per_shard, settings.megabytes_per_shard)
        report_changed_shares(settings, videos.shares)
        plan.write(details)
        pending = plan.pending(settings.extraction, details)
        if pending:
            _remove_stale_index(plan, pending)
            _make_shards(plan, pending, details, settings)
        return _finish(plan, pending, details)


Items = Iterator[Video | Missing]


def find_videos(settings: Preprocess, scratch: Path, stack: contextlib.ExitStack) -> tuple[Items, dict[str, str]]:
    """The videos of the data set with their captions, and the digests of vocabulary and stop words."""
    source = settings.source_folder
    entry = datasets.find(settings.known_layout, source)
    if entry.generate is not None:
        entry.generate(source, settings.source is not None)
    items = datasets.listing(settings.known_layout, source)
    if settings.word2vec is None:
        if entry.needs_captions:
            raise UserError(
                f"{settings.known_layout} needs word vectors for its captions; set --word2vec to a file in word2vec's "
                "format, or use --dataset folder to do without captions"
            )
        if entry.generate is None and (path := readers.Captions.locate(source)):
            print(f"{path} is ignored; to store its words, set --word2vec", flush=True)
        return items, {"vocabulary": "", "stop_words": ""}
    captions = readers.Captions.find(source, scratch)
    if captions is None:
        raise UserError(f"there are no captions in {source}; expected:\n{readers.EXPECTED}")
    if settings.extraction.fps % 10 and entry.needs_captions:
        raise UserError(
            f"--fps is {settings.extraction.fps}; set it to a multiple of 10, since captioned stretches begin at "
            "tenths of a second"
        )
    stack.enter_context(captions)
    vocabulary = Vocabulary.load(settings.word2vec, settings.stop_words)
    language = {"vocabulary": vocabulary.digest, "stop_words": vocabulary.stop_digest}
    return attach(items, captions, vocabulary, source, only_captioned=entry.needs_captions), language


def list_videos(items: Items, settings: Preprocess, scratch: Path, stack: contextlib.ExitStack) -> VideoList:
    """The list of the videos, closed with the stack; shares default to those of the last run.

    Raises UserError if shares are given but every video has a split.
    """
    source, last = settings.source_folder, read_shares(settings.shard_folder) or Shares()
    shares = Shares(
        last.val if settings.val is None else settings.val, last.test if settings.test is None else settings.test
    )
    videos = stack.enter_context(VideoList(items, source, scratch, shares, settings.duplicates))
    if len(videos) and not videos.without_split and (settings.val or settings.test):
        raise UserError(
            f"every video in {source} already has a split, from its folder or a list; --val and --test apply only to "
            "videos without one, so leave them out; with --dataset folder, labels.csv can move videos to other splits"
        )
    return videos


def report_changed_shares(settings: Preprocess, shares: Shares) -> None:
    """Print a line if the shares differ from those of the last run, or if those are lost."""
    destination = settings.shard_folder
    last = read_shares(destination)
    if last is None:
        if None in (settings.val, settings.test) and any(destination.glob("shard-*.h5")):
            lost = "is missing, so the last --val and --test are unknown; those not given are 0"
            print(f"{destination / PLAN} {lost}", flush=True)
        return
    pairs = zip(("--val", "--test"), astuple(shares), astuple(last), strict=True)
    if changes := [f"{name} is {now} and was {before}" for name, now, before in pairs if now != before]:
        said = f"{', '.join(changes)}; videos that change their split are counted as relabelled"
        print(said, flush=True)


def _protect_shards(videos: VideoList, destination: Path, details: dict[str, Any], drop_missing: bool) -> None:
    """Refuse to replace finished shards after a wrong SOURCE, an unmounted disk or a changed option."""
    another = f"set --destination to another folder, or delete those shards and {INDEX} first"
    before = read_settings(destination)
    for path in destination.glob("shard-*.h5"):
        try:
            Head.read(path)
        except OtherSchema as error:
            raise UserError(f"{destination} holds shards of another version: {error}; {another}") from error
        except (OSError, Damaged):
            pass  # is rebuilt
    # shards that 'gdt verify --remove' has removed are still in the index
    if before is None or not (any(destination.glob("shard-*.h5")) or (destination / INDEX).is_file()):
        return
    option_of = {stored: name for name, stored in STORED_NAMES.items()}
    changed = [
        f"{option_of.get(name, name).replace('_', '-')} was {_shown(before.get(name))}, now {_shown(value)}"
        for name, value in details.items()
        if before.get(name) != value
    ]
    if changed:
        raise UserError(f"{destination} holds shards made with other settings: {'; '.join(changed)}; {another}")
    planned, absent = absent_videos(videos, destination)
    if sum(map(len, absent.values())) > planned / 2:
        raise UserError(
            f"{destination} holds shards of {planned} videos, most of which are not in {videos.source}; {another}"
        )
    if not drop_missing and (gone := list(finished_videos(destination, absent))):
        raise UserError(
            f"the finished shards in {destination} hold {plural(len(gone), 'video')} no longer in {videos.source} "
            f"(first: '{gone[0]}'); restore them, or set --drop-missing to rebuild without them"
        )


def _shown(value: object) -> str:
    return "none" if value in ("", None) else str(value)


def _make_shards(plan: Plan, pending: Sequence[int], details: dict[str, Any], settings: Preprocess) -> None:
    total = sum(plan.count(shard) for shard in pending)
    interval = 0.5 if sys.stderr.isatty() else 20.0
    with (
        cluster.connect(settings.scheduler, settings.workers) as client,
        tqdm(total=total, unit="video", desc="preprocess", smoothing=0.02, mininterval=interval) as bar,
    ):
        client.subscribe_topic(PROGRESS, lambda event: bar.update(event[1]))
        for attempt in range(_ATTEMPTS):
            tasks = ((shard, plan.task(shard, settings.extraction, details, attempt > 0)) for shard in pending)
            again = []
            for shard, changed in cluster.map_unordered(client, make_planned_shard, tasks, settings.workers):
                if changed:
                    _update_sizes(plan, shard, changed)
                    again.append(shard)
            pending = sorted(again)  # after all others, when the files may be complete
            if not pending:
                break
        else:
            raise UserError(
                f"videos in {settings.source_folder} kept changing during the run; wait until they are complete, "
                "then run the same command again"
            )
        client.unsubscribe_topic(PROGRESS)
        bar.update(total - bar.n)


def _update_sizes(plan: Plan, shard: int, changed: Sequence[ChangedVideo]) -> None:
    """Update the sizes of changed videos. Raises UserError if a worker does not see a file that is there."""
    for seen in changed:
        number = plan.members(shard)[seen.number]
        (video, before), now = plan.videos.video(number), plan.videos.update_size(number)
        if seen.size < 0 <= now == before:
            raise UserError(f"{cluster.explain_unmounted(video.path, seen.host, 'its disk')}: finished shards are kept")


def _remove_scratch(destination: Path) -> None:
    """Remove temporary folders of killed workers."""
    for scratch in destination.glob(".shard-*"):
        shutil.rmtree(scratch, ignore_errors=True)


def _remove_stale_index(plan: Plan, pending: Sequence[int]) -> None:
    """Remove the index if shards that it lists will change; otherwise it stays usable until it is replaced."""
    try:
        listed = set(texts(container.read(plan.destination / INDEX)[0]["shard/name"]))
    except (OSError, Damaged):
        listed = set()
    kept = {plan.path(shard).name for shard in range(len(plan))} - {plan.path(shard).name for shard in pending}
    if not listed or not listed <= kept:
        (plan.destination / INDEX).unlink(missing_ok=True)


def _finish(plan: Plan, made: Sequence[int], details: dict[str, Any]) -> Summary:
    """Remove shards that are not in the plan; write index, rejected.jsonl and summary."""
    videos, destination = plan.videos, plan.destination
    paths = [plan.path(shard) for shard in range(len(plan))]
    names = {path.name for path in paths}
    for old in destination.glob("shard-*.h5*"):
        if old.name not in names:
            old.unlink()
    _remove_scratch(destination)
    # paths from the list: a video that was moved keeps its shard
    rejected = (row | {"path": str(videos.path_of(row["id"]))} for path in paths for row in read_rejected_of(path))
    write_lines(destination / REJECTED, itertools.chain(videos.missing_rows(), map(dump_row, rejected)))
    try:
        before = Index.open(destination)
    except UserError:
        before = None
    write_index(destination, paths, json.dumps(details), videos.annotations)
    index = Index.open(destination)
    if not len(index):
        (destination / INDEX).unlink()  # so that no command takes the folder for a data set
        first = next(read_rejected(destination))
        raise UserError(
            f"0 of {plural(len(videos), 'video')} can be used; {first['path'] or first['id']}: {first['reason']}. "
            f"See {destination / REJECTED}"
        )
    decoded = sum(plan.count(shard) for shard in made)
    relabelled = count_relabelled(before, index) if before else 0
    return summarise(
        index, len(videos) + videos.missing, len(made), decoded, relabelled, bool(videos.without_split),
        videos.shares.test,
    )  # fmt: skip
