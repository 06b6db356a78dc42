"""What a run of preprocessing has to do: its videos, listed and assigned to shards."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gdt.common.errors import Unusable, UserError
from gdt.common.folders import Folder, State
from gdt.pipeline.shards.layout import BANDS, INDEX
from gdt.pipeline.shards.naming import shard_name
from gdt.preprocess import checks, datasets
from gdt.preprocess.captions import readers
from gdt.preprocess.captions.attach import Spoken
from gdt.preprocess.captions.words import Vocabulary
from gdt.preprocess.datasets.listing import DataSet, SourceFiles
from gdt.preprocess.ffmpeg import Extraction
from gdt.preprocess.plan import SHARD_BYTES, Listed, Plan, ShardTask, assign, collect
from gdt.preprocess.settings import Preprocess
from gdt.preprocess.videos import ListedVideo


@dataclass(frozen=True)
class PreprocessJob:
    source: Folder
    destination: Folder
    index_before: State
    """Tag of the index in a store at the start; another one means that another run has written there."""
    listed: Listed
    spoken: Spoken | None
    extraction: Extraction
    details: dict[str, Any]
    """Settings that change shards."""
    shards: dict[int, list[ListedVideo]]
    """The videos of each shard by its number."""
    contents: dict[str, str]
    """What the finished shards were made of (ShardTask.content), by file name."""
    times: Mapping[str, str]
    """Times of files, from the plan of the last run."""

    def task(self, number: int) -> ShardTask:
        videos = self.shards[number]
        if self.spoken is not None:
            videos = [self.spoken.attach(video) for video in videos]
        name = shard_name(number)
        return ShardTask(self.destination, name, self.source, videos, self.extraction, self.details)

    def pending(self) -> list[int]:
        """Numbers of the shards that are absent, or made of other videos or settings."""
        made_of = {number: self.contents.get(shard_name(number)) for number in self.shards}
        # a task is made last, since its captions take time
        return [number for number, content in made_of.items() if not content or content != self.task(number).content]

    def doubtful(self, pending: Sequence[int]) -> list[tuple[int, Path, str]]:
        """The files of finished shards whose time is another or unknown: number of the shard, path, hash."""
        doubtful: list[tuple[int, Path, str]] = []
        present = self.destination.files()
        for number in sorted(self.shards.keys() - set(pending)):
            files = [video for video in self.shards[number] if video.size >= 0]
            others = [video for video in files if not video.time or video.time != self.times.get(video.id)]
            if others:
                name = shard_name(number)
                hashes = checks.hashes(self.destination, name, present[name].size)
                doubtful += [(number, video.path, hashes[video.id]) for video in others]
        return doubtful

    def plan(self, numbers: Iterable[int]) -> Plan:
        """The plan, with the present times for some shards; the others may hold older files, so theirs stay."""
        ids = {number: [video.id for video in videos] for number, videos in self.shards.items()}
        times = {video.id: video.time for number in numbers for video in self.shards[number]}
        files = {video.id: self._place(video) for videos in self.shards.values() for video in videos}
        return Plan(self.listed.shares, ids, {**self.times, **times}, files)

    def _place(self, video: ListedVideo) -> str:
        """The address of its file, with its begin there, if that is known; empty if it is several parts of a file."""
        address = (video.folder or self.source).address(video.path)
        begin = f"#t={video.segment[0]:.10g}" if video.segment and (video.shared or video.uncut) else ""
        return "" if video.stretches else f"{address}{begin}"

    def count(self, numbers: Iterable[int]) -> int:
        """Number of videos of some shards."""
        return sum(len(self.shards[number]) for number in numbers)


def prepare(settings: Preprocess, entry: DataSet, shard_bytes: float = SHARD_BYTES) -> PreprocessJob:
    """List the videos of a data set and assign them to shards. Raises UserError if finished shards would be lost."""
    source = settings.source_folder.snapshot()
    destination = settings.absolute_shards
    index_before = destination.state(INDEX)
    layout = datasets.layout_of(settings.dataset, settings.layout)
    spoken = _find_captions(settings, entry, layout, source)
    plan = Plan.read(destination)
    shares = plan.shares.changed(settings.val, settings.test)
    files = SourceFiles(source)
    items = datasets.listing(entry, files)
    listed = collect(items if spoken is None else spoken.select(items, files), files, shares)
    if not listed.videos:
        named = (f"{video.path or video.id}: {video.reason}" for video in listed.left_out)
        raise Unusable(f"none of the videos in {source} can be used: {next(named, 'there are none')}")
    if not listed.drawn and (settings.val or settings.test):
        raise UserError(
            f"every video in {source} already has a split, from its folder or a list; --val and --test apply only to "
            "videos without one, so leave them out; with --dataset folder, labels.csv can move videos to other splits"
        )
    if not settings.allow_rejected:
        checks.require_names(listed, layout, bool(settings.layout))
    details = {
        **settings.extraction.identity,
        "bands": BANDS,
        "dataset": layout,
        "vocabulary": spoken.vocabulary.digest if spoken else "",
    }
    contents = checks.contents(destination, details, settings.retry_rejected)
    if not settings.drop_missing:
        checks.require_planned(plan, listed, source, destination)
    shards = assign(listed.videos, plan.shards, settings.videos_per_shard, shard_bytes)
    return PreprocessJob(
        source, destination, index_before, listed, spoken, settings.extraction, details, shards, contents, plan.times
    )


def _find_captions(settings: Preprocess, entry: DataSet, layout: str, source: Folder) -> Spoken | None:
    """The captions of the data set, None without word vectors."""
    if settings.word2vec is None:
        if entry.needs_captions:
            raise UserError(
                f"{layout} needs word vectors for its captions; set --word2vec to a file in word2vec's "
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
