"""The end of a run: the index, the list of rejected videos and the summary of finished shards."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from gdt.common.errors import Unusable, UserError
from gdt.common.wording import plural
from gdt.pipeline.shards.index import Index, gather_tables, write_index
from gdt.pipeline.shards.layout import INDEX, REJECTED
from gdt.pipeline.shards.naming import is_shard, shard_name
from gdt.pipeline.shards.rejected import write_rejected
from gdt.preprocess.job import PreprocessJob
from gdt.preprocess.summary import Summary, summarise
from gdt.preprocess.worker import SCRATCH


def finish(job: PreprocessJob, new_shards: Sequence[int]) -> Summary:
    """Write index, rejected.jsonl and summary, and remove shards that are not in the plan.

    `new_shards` are the numbers of those that this run made. Raises UserError if another run has written here
    meanwhile, and Unusable if no video can be used.
    """
    job.destination.remove_scratch(SCRATCH)
    names = [shard_name(number) for number in job.shards]
    tables = gather_tables(job.destination, names)
    others = sorted({*tables.ids, *tables.rejected} - job.listed.videos.keys())
    if others:
        raise UserError(
            f"{job.destination} has shards of another run with other videos (first: '{others[0]}'); when it has ended, "
            "run the same command again, or set --destination to another folder"
        )
    rejected = [
        # the path is that of the list: a video that was moved keeps its shard
        replace(video, path=job.source.address(job.listed.videos[video.id].path))
        for video in tables.rejected.values()
    ]
    settled = job.listed.settled(tables.ids)
    # before the index shows it: an assignment that was once seen must hold in later runs
    replace(job, listed=settled).plan(job.shards).write(job.destination)
    # before the index, so that readers find both
    write_rejected(job.destination, [*job.listed.left_out, *rejected])
    if not tables.ids:
        if job.destination.exists(INDEX):
            job.destination.remove(INDEX)  # so that no command takes the folder for a data set
        raise Unusable(
            f"0 of {plural(len(job.listed.videos), 'video')} can be used; {rejected[0].path}: "
            f"{rejected[0].reason}. See {job.destination.address(REJECTED)}"
        )

    def write(path: Path) -> Index:
        write_index(path, tables, json.dumps(job.details), settled.annotations(tables.ids))
        return Index.read(path, job.destination)

    index = job.destination.write(INDEX, write, before=job.index_before)
    for name in job.destination.files().keys() - set(names):
        if is_shard(name, or_partial=True):
            job.destination.remove(name)
    return summarise(index, job.listed, rejected, len(new_shards), job.count(new_shards))
