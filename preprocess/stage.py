"""Videos to shards: list the videos, make the missing shards, and write the index."""

import sys
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing, suppress
from functools import partial

from tqdm import tqdm

from gdt.common.commandline import gdt_command
from gdt.common.errors import UserError
from gdt.common.files import scratch
from gdt.common.machine import cores
from gdt.common.wording import plural
from gdt.pipeline.shards.container import Damaged, Header, OtherSchema
from gdt.pipeline.shards.index import names_in
from gdt.pipeline.shards.naming import shard_folder, shard_name
from gdt.preprocess import checks, cluster, datasets
from gdt.preprocess.datasets.listing import DataSet
from gdt.preprocess.finish import finish
from gdt.preprocess.job import PreprocessJob, prepare
from gdt.preprocess.plan import ShardTask
from gdt.preprocess.settings import Preprocess
from gdt.preprocess.summary import Summary, describe, left_out
from gdt.preprocess.tools import require_tools
from gdt.preprocess.worker import PROGRESS, SAME_FOLDER, SCRATCH, MadeShard, make_shard
from gdt.preprocess.workers import Workers


def command(settings: Preprocess) -> str:
    """Preprocess; returns a summary and the commands that follow.

    Raises UserError, after the summary, if a video could not be read.
    """
    if settings.dry_run:
        return dry_run(settings)
    summary = run(settings)
    if summary.unread and not settings.allow_rejected:
        print(describe(summary))
        raise UserError(
            f"{plural(len(summary.unread), 'video')} could not be read or decoded now (first: {summary.unread[0]}); "
            "mend the disk or free memory and run the same command again, or set --allow-rejected to go on without"
        )
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
    with scratch() as folder:
        require_tools(settings.extraction.limits, folder)
    job = prepare(settings, _data_set(settings))
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


def _data_set(settings: Preprocess) -> DataSet:
    """The data set of the layout. Raises UserError if there is none of this name, or no source."""
    return datasets.find(datasets.layout_of(settings.dataset, settings.layout), settings.source_folder)


def run(settings: Preprocess) -> Summary:
    """Make the missing shards, then the index. Raises UserError on bad input, before any work if possible."""
    destination = settings.absolute_shards
    entry = _data_set(settings)
    try:
        str(destination).encode()
    except UnicodeEncodeError as error:
        raise UserError("the name of --destination is not UTF-8; set it to another folder") from error
    with destination.locked():
        require_tools(settings.extraction.limits, destination.scratch)
        job = prepare(settings, entry)
        if not settings.scheduler:  # workers of a cluster may still be busy with tasks of a killed run
            destination.remove_scratch(SCRATCH)
        job.plan(number for number in job.shards if shard_name(number) not in job.contents).write(destination)
        pending = job.pending()
        pending = sorted({*pending, *checks.changed(job.source, job.doubtful(pending))})
        if pending:
            try:
                _make_shards(settings, job, pending)
            except checks.TooManyRejected:
                _remove_rejecting(job, pending)
                raise
        job.plan(job.shards).write(destination)
        return finish(job, pending)


def _make_shards(settings: Preprocess, job: PreprocessJob, pending: Sequence[int]) -> None:
    with closing(make_shards(job, pending, settings)) as results:
        if not settings.allow_rejected:
            checks.require_few_rejected(results)
        for _ in results:
            pass


def make_shards(
    job: PreprocessJob,
    numbers: Sequence[int],
    asked: Workers,
    what: str = "preprocess",
    fits: Callable[[Sequence[ShardTask]], bool] = lambda tasks: True,
) -> Generator[MadeShard, None, None]:
    """Make shards on workers, with a bar named `what`; yields them as they are finished, and makes others meanwhile.

    `fits`: whether there is room for some tasks at once: those that are begun and not yet taken, and the next.
    """
    total = job.count(numbers)
    workers = asked.workers or cores()
    interval = 0.5 if sys.stderr.isatty() else 20.0
    with (
        cluster.connect(asked.scheduler, workers, total) as client,
        tqdm(total=total, unit="video", desc=what, smoothing=0.02, mininterval=interval) as bar,
    ):
        # reports may come late, and again from a task that is repeated
        client.subscribe_topic(PROGRESS, lambda event: bar.update(min(event[1], total - bar.n)))
        made = cluster.map_unordered(client, make_shard, map(job.task, numbers), workers, fits)
        yield from map(partial(_require_here, job), made)
        bar.update(total - bar.n)


def _require_here(job: PreprocessJob, made: MadeShard) -> MadeShard:
    """Raise UserError if a machine has written its shard to another disk; the other shards are kept."""
    with suppress(Damaged, UserError, OSError):
        if Header.read_in(job.destination, made.name, job.destination.state(made.name).size).crc32 == made.crc32:
            return made
    raise UserError(f"{made.host} has written {made.name}, but not to {job.destination} here; {SAME_FOLDER}")


def _remove_rejecting(job: PreprocessJob, numbers: Iterable[int]) -> None:
    """Remove the shards that were made with rejected videos, so that the next run tries these again."""
    present = job.destination.files()
    for task in map(job.task, numbers):
        with suppress(KeyError, Damaged, OtherSchema):
            header = Header.read_in(job.destination, task.name, present[task.name].size)
            if header.arrays["rejected"].shape[0] and header.attributes.get("content") == task.content:
                job.destination.remove(task.name)
