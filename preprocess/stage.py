"""Videos to shards: list the videos, plan the shards, make the missing ones, and write the index."""

from __future__ import annotations

import difflib
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import tyro
from tqdm import tqdm

from gdt.common.commandline import gdt_command
from gdt.common.errors import UserError, plural, require_positive
from gdt.common.folders import Folder
from gdt.common.location import Location
from gdt.common.stores import Place, absolute, folder_at
from gdt.pipeline.shards.container import Damaged, Head, OtherSchema
from gdt.pipeline.shards.layout import BANDS, INDEX, names_in
from gdt.pipeline.shards.naming import DATASETS, shard_folder
from gdt.preprocess import checks, cluster, datasets
from gdt.preprocess.captions import readers
from gdt.preprocess.captions.attach import Spoken
from gdt.preprocess.captions.words import Vocabulary
from gdt.preprocess.datasets.listing import CAPTIONS, Video, VideoSource
from gdt.preprocess.ffmpeg import Extraction
from gdt.preprocess.finish import finish, remove_scratch
from gdt.preprocess.plan import Listed, Plan, ShardTask, Shares, assign, collect, shard_name
from gdt.preprocess.summary import Summary, describe, left_out
from gdt.preprocess.tools import require_tools
from gdt.preprocess.worker import PROGRESS, make_shard


@dataclass(frozen=True)
class Preprocess(cluster.Workers):
    """Turn a data set of videos into shards. Run the same command again to resume."""

    dataset: str = "kinetics"
    """Name of the data set."""
    source: Location | None = None
    """Folder of the videos, or s3://…; default: data/videos/<dataset>."""
    destination: Location | None = None
    """Folder of the shards, or s3://…; default: data/shards/<dataset>."""
    layout: str = ""
    """Layout of --source; default: that of a known data set if --dataset names one, else folder, any tree of videos."""
    extraction: Annotated[Extraction, tyro.conf.arg(name="")] = field(default_factory=Extraction)
    word2vec: Path | None = None
    """word2vec file, to store captions as words; default: no captions."""
    videos_per_shard: int = 128
    """Maximum number of videos per shard; 256 MB of them end it sooner."""
    val: float | None = None
    """Fraction of unsplit videos for val; default: last run's, or 0."""
    test: float | None = None
    """The same for test; the others become train."""
    drop_missing: bool = False
    """Rebuild shards without the videos no longer in --source."""
    retry_rejected: bool = False
    """Rebuild the shards with rejected videos, to try these again."""
    allow_rejected: bool = False
    """Go on where more than a third of the first hundred videos are rejected for one reason."""
    dry_run: bool = False
    """List and count the videos; decode none."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "", "videos_per_shard")
        Shares(self.val or 0.0, self.test or 0.0)  # validates

    @property
    def known_layout(self) -> str:
        """The layout. Raises UserError if the name of the data set looks like a known one misspelt."""
        if self.layout or self.dataset in DATASETS:
            return self.layout or self.dataset
        similar = difflib.get_close_matches(self.dataset.casefold(), DATASETS, 1, 0.75)
        if similar:
            raise UserError(
                f"--dataset is '{self.dataset}'; did you mean '{similar[0]}'? If not, set --layout to folder (any tree "
                f"of videos) or {similar[0]}"
            )
        return "folder"

    @property
    def shard_folder(self) -> Place:
        return shard_folder(self.dataset, self.destination)

    @property
    def absolute_shards(self) -> Place:
        """Workers of a cluster may run in another folder."""
        return absolute(self.shard_folder)

    @property
    def source_folder(self) -> Place:
        """Absolute, as the shards are."""
        return absolute(self.source or Path("data/videos") / self.dataset)


@dataclass(frozen=True)
class PreprocessJob:
    """What a run has to do."""

    settings: Preprocess
    source: Folder
    """Of the videos."""
    destination: Folder
    """Of the shards."""
    index_tag: str
    """Of the index in a store at the start; another one means that another run has written there."""
    listed: Listed
    spoken: Spoken | None
    details: dict[str, Any]
    """Settings that change shards."""
    shards: dict[int, list[Video]]
    """The videos of each shard by its number."""
    contents: dict[str, str]
    """What the finished shards were made of (ShardTask.content), by file name."""
    times: Mapping[str, str]
    """As in the plan of the last run."""

    def task(self, number: int) -> ShardTask:
        """The task that makes a shard."""
        videos = self.shards[number]
        if self.spoken is not None:
            videos = [self.spoken.attach(video) for video in videos]
        name = shard_name(number)
        return ShardTask(self.destination, name, self.source, videos, self.settings.extraction, self.details)

    def pending(self) -> list[int]:
        """Numbers of the shards that are absent, or made of other videos or settings."""
        return [number for number in self.shards if self.contents.get(shard_name(number)) != self.task(number).content]

    def doubtful(self, pending: Sequence[int]) -> list[tuple[int, Path, str]]:
        """The files of finished shards whose time is another or unknown: number of the shard, path, hash."""
        doubtful: list[tuple[int, Path, str]] = []
        present = self.destination.files()
        for number in sorted(self.shards.keys() - set(pending)):
            files = [video for video in self.shards[number] if video.size >= 0]
            others = [video for video in files if not video.time or video.time != self.times.get(video.id)]
            name = shard_name(number)
            hashes = checks.hashes(self.destination, name, present[name].size) if others else {}
            if hashes:
                doubtful += [(number, video.path, hashes[video.id]) for video in others]
        return doubtful

    def plan(self, numbers: Iterable[int]) -> Plan:
        """The plan, with the present times for some shards; the others may hold older files, so theirs stay."""
        ids = {number: [video.id for video in videos] for number, videos in self.shards.items()}
        times = {video.id: video.time for number in numbers for video in self.shards[number]}
        return Plan(self.listed.shares, ids, {**self.times, **times})

    def count(self, numbers: Iterable[int]) -> int:
        """Number of videos of some shards."""
        return sum(len(self.shards[number]) for number in numbers)


def command(settings: Preprocess) -> str:
    """Preprocess; returns a summary and the commands that follow."""
    if settings.dry_run:
        return dry_run(settings)
    summary = run(settings)
    usual = settings.shard_folder == shard_folder(settings.dataset)
    data = ["--dataset", settings.dataset] if usual else ["--shards", settings.shard_folder]
    silent = ["--preset", "d"] if summary.without_sound == summary.kept else []
    pictures = summary.index.frame_count.any()
    lines = [describe(summary)]
    if pictures:
        lines.append(f"next: {gdt_command('pretrain', *data, *silent)}")
    if any(summary.index.folds):
        modalities = [] if pictures else ["--modalities", "audio"]
        evaluate = gdt_command("evaluate", *data, *modalities)
        purpose = "or, to" if pictures else "to"
        lines.append(f"{purpose} evaluate a model by the official folds: {evaluate} --ckpt <checkpoint>")
    return "\n".join(lines)


def dry_run(settings: Preprocess) -> str:
    """List and count the videos; decode none and write nothing."""
    ffmpeg = require_tools(settings.extraction.limits, Path(tempfile.gettempdir()))
    job = prepare(settings, ffmpeg)
    pending = job.pending()
    doubtful = job.doubtful(pending)
    videos = job.listed.settled(job.listed.videos).videos.values()  # as if decoding rejected none
    counts = Counter(video.split for video in videos)
    splits = ", ".join(f"{count} {split}" for split, count in sorted(counts.items()))
    classes = len(names_in(video.label for video in videos))
    gigabytes = sum(max(video.size, 0) for video in videos) / 1e9
    lines = [
        f"{plural(len(videos), 'video')} ({splits}; {plural(classes, 'class', 'classes')}), {gigabytes:.2f} GB; "
        + "\n".join(left_out(job.listed)),
        f"{plural(len(job.shards), 'shard')}, of which {len(pending)} with {plural(job.count(pending), 'video')} are "
        "not made yet",
    ]
    if doubtful:
        lines[-1] += f"; {plural(len(doubtful), 'file')} of the others changed in time: their content will be compared"
    return "\n".join(lines)


def run(settings: Preprocess) -> Summary:
    """Make the missing shards, then the index. Raises UserError on bad input, before any work if possible."""
    destination = folder_at(settings.absolute_shards)
    datasets.find(settings.known_layout, folder_at(settings.source_folder))
    with destination.locked():
        job = prepare(settings, require_tools(settings.extraction.limits, destination.scratch))
        if not settings.scheduler:  # workers of a cluster may still be busy with tasks of a killed run
            remove_scratch(destination)
        job.plan(number for number in job.shards if shard_name(number) not in job.contents).write(destination)
        pending = job.pending()
        pending = sorted({*pending, *checks.changed(job.source, job.doubtful(pending))})
        if pending:
            try:
                _make_shards(job, pending)
            except checks.TooManyRejected:
                _remove_rejecting(job, pending)
                raise
        job.plan(job.shards).write(destination)
        return finish(job, pending)


def prepare(settings: Preprocess, ffmpeg: str) -> PreprocessJob:
    """List the videos and assign them to shards. Raises UserError if finished shards would be lost.

    `ffmpeg` is its version and build.
    """
    source = folder_at(settings.source_folder)
    destination = folder_at(settings.absolute_shards)
    index_tag = destination.tag(INDEX)
    files = VideoSource(source)
    items = datasets.listing(settings.known_layout, files)
    spoken = _find_captions(settings, source)
    plan = Plan.read(destination)
    shares = plan.shares.changed(settings.val, settings.test)
    listed = collect(items if spoken is None else spoken.select(items), source, shares)
    listed = replace(listed, ignored=files.ignored, notes=files.notes)
    unused = spoken.captions.unused(spoken.used) if spoken else []
    if unused:
        files.ignored[f"{CAPTIONS} (first: '{unused[0]}')"] = len(unused)
    if not listed.videos:
        why = next((f"{row.id}: {row.reason}" for row in listed.missing), "there are none")
        raise UserError(f"none of the videos in {source} can be used: {why}")
    if not listed.drawn and (settings.val or settings.test):
        raise UserError(
            f"every video in {source} already has a split, from its folder or a list; --val and --test apply only to "
            "videos without one, so leave them out; with --dataset folder, labels.csv can move videos to other splits"
        )
    if not settings.allow_rejected:
        checks.require_names(listed, settings.known_layout, bool(settings.layout))
    details = {
        **settings.extraction.identity,
        "bands": BANDS,
        "dataset": settings.known_layout,
        "vocabulary": spoken.vocabulary.digest if spoken else "",
    }
    contents = checks.contents(destination, details, ffmpeg, settings.retry_rejected)
    if not settings.drop_missing:
        checks.require_planned(plan, listed, source, destination)
    shards = assign(listed.videos, plan.shards, settings.videos_per_shard)
    return PreprocessJob(
        settings, source, destination, index_tag, listed, spoken, details, shards, contents, plan.times
    )


def _find_captions(settings: Preprocess, source: Folder) -> Spoken | None:
    """The captions of the data set, None without word vectors."""
    entry = datasets.find(settings.known_layout, source)
    if settings.word2vec is None:
        if entry.needs_captions:
            raise UserError(
                f"{settings.known_layout} needs word vectors for its captions; set --word2vec to a file in word2vec's "
                "format, or use --dataset folder to do without captions"
            )
        return None
    if settings.extraction.fps % 10 and entry.needs_captions:
        raise UserError(
            f"--fps is {settings.extraction.fps}; set it to a multiple of 10, since captioned stretches begin at "
            "tenths of a second"
        )
    captions = readers.Captions.find(source)
    if captions is None:
        raise UserError(f"there are no captions in {source}; expected:\n{readers.EXPECTED}")
    vocabulary = Vocabulary.load(settings.word2vec)
    return Spoken(captions, vocabulary, source, entry.needs_captions)


def _make_shards(job: PreprocessJob, pending: Sequence[int]) -> None:
    settings = job.settings
    total = job.count(pending)
    interval = 0.5 if sys.stderr.isatty() else 20.0
    with (
        cluster.connect(settings.scheduler, settings.workers) as client,
        tqdm(total=total, unit="video", desc="preprocess", smoothing=0.02, mininterval=interval) as bar,
    ):
        client.subscribe_topic(PROGRESS, lambda event: bar.update(event[1]))
        results = cluster.map_unordered(client, make_shard, map(job.task, pending), settings.workers)
        if not settings.allow_rejected:
            checks.require_usable(results)
        for _ in results:
            pass
        client.unsubscribe_topic(PROGRESS)
        bar.update(total - bar.n)


def _remove_rejecting(job: PreprocessJob, numbers: Iterable[int]) -> None:
    """Remove the shards that were made with rejected videos, so that the next run tries these again."""
    present = job.destination.files()
    for task in map(job.task, numbers):
        with suppress(KeyError, Damaged, OtherSchema):
            head = Head.read_in(job.destination, task.name, present[task.name].size)
            if head.arrays["rejected"].shape[0] and head.notes.get("content") == task.content:
                job.destination.remove(task.name)
