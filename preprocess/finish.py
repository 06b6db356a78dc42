"""The end of a run: the index, the list of rejected videos and the summary of finished shards."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from gdt.common.errors import Unusable, UserError, plural
from gdt.common.files import dump_row, write_lines
from gdt.pipeline.shards.index import Index, gather_tables, write_index
from gdt.pipeline.shards.layout import INDEX, REJECTED
from gdt.pipeline.shards.naming import shard_name
from gdt.preprocess.datasets.listing import Missing
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
    rows = _rejected(job, tables.rejected)
    settled = job.listed.settled(tables.ids)
    # before the index shows it: an assignment that was once seen must hold in later runs
    replace(job, listed=settled).plan(job.shards).write(job.destination)
    # before the index, so that readers find both
    job.destination.write(REJECTED, lambda path: write_lines(path, map(dump_row, rows)))
    if not tables.ids:
        if job.destination.exists(INDEX):
            job.destination.remove(INDEX)  # so that no command takes the folder for a data set
        raise Unusable(
            f"0 of {plural(len(job.listed.videos), 'video')} can be used; {rows[0]['path'] or rows[0]['id']}: "
            f"{rows[0]['reason']}. See {job.destination.address(REJECTED)}"
        )

    def write(path: Path) -> Index:
        write_index(path, tables, json.dumps(job.details), settled.annotations(tables.ids))
        return Index.read(path, job.destination)

    index = job.destination.write(INDEX, write, before=job.index_tag)
    for name in job.destination.files().keys() - set(names):
        if name.startswith("shard-") and ".h5" in name:
            job.destination.remove(name)
    return summarise(index, job.listed, len(new_shards), job.count(new_shards))


def _rejected(job: PreprocessJob, reasons: Mapping[str, str]) -> list[dict[str, str]]:
    """The rows of rejected.jsonl, given the reason of each video that is in no shard, by id."""
    # paths from the list: a video that was moved keeps its shard
    rejected = [Missing(id, reason, job.listed.videos[id].path) for id, reason in reasons.items()]
    rows = []
    for video in [*job.listed.missing, *rejected]:
        path = job.source.address(video.path) if video.path else ""
        rows.append({"id": video.id, "path": path, "reason": video.reason})
    return rows
