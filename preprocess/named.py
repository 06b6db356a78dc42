"""Videos that are named one by one, or by the folders that they are in, wherever these are."""

import json
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import chain
from pathlib import Path, PurePath
from types import MappingProxyType

from gdt.common.errors import LeftOut, UserError
from gdt.common.folders import File, Folder
from gdt.pipeline.shards.index import Index, gather_tables, write_index
from gdt.pipeline.shards.layout import INDEX
from gdt.pipeline.shards.naming import is_shard, shard_name
from gdt.preprocess.datasets.folder import TREE
from gdt.preprocess.datasets.listing import DataSet, SourceFiles, ignored_in_words, incomplete
from gdt.preprocess.ffmpeg import Extraction
from gdt.preprocess.job import PreprocessJob, prepare
from gdt.preprocess.plan import ShardTask
from gdt.preprocess.settings import Preprocess
from gdt.preprocess.stage import make_shards
from gdt.preprocess.textfiles import composed
from gdt.preprocess.tools import require_tools
from gdt.preprocess.videos import MEDIA, ListedVideo
from gdt.preprocess.worker import SCRATCH
from gdt.preprocess.workers import Workers

_ROOT = Path("/")
"""The folder that holds all of them on this machine."""
_GROUP, _GROUP_BYTES = 32, 16e6
"""Most videos of a group, and bytes of their files; one video may be more."""
SCRATCH_BYTES = int(2e9)
"""Bytes of groups that are decoded, or being decoded, at once; one group may be more."""
_BLOW_UP = 40.0
"""Bytes on the disk per byte of a file, while none is decoded: of a video of 13 kB/s, frames and the shard of them."""

Found = Mapping[str, File]
"""Videos and sounds by address, in the order in which they are named."""
Decoded = Generator[tuple[Index, list[LeftOut]], None, None]
"""The index of each shard, which is there until the next is asked for, and the videos that are not in it."""


def plan_groups(
    found: Found, scratch: Path, fps: int, parts: Mapping[str, tuple[float, float]] = MappingProxyType({})
) -> PreprocessJob:
    """The videos in groups, each a shard in `scratch`; those that an earlier plan there has stay in their groups.

    `parts`: by address, from which second to which; by default all.

    Raises UserError if no video has a name that can be used.
    """

    def listing(source: SourceFiles) -> Iterator[ListedVideo]:
        for address, file in found.items():
            part = parts.get(address)
            if file.folder.remote:
                yield ListedVideo(address, Path(file.path), folder=file.folder, segment=part, uncut=True)
            else:
                path = (file.folder.root / file.path).absolute()
                yield ListedVideo(address, path.relative_to(_ROOT), segment=part, uncut=True)

    extraction = Extraction(fps=fps)
    require_tools(extraction.limits, scratch)
    settings = Preprocess(
        "folder", _ROOT, scratch, extraction=extraction, videos_per_shard=_GROUP, drop_missing=True, allow_rejected=True
    )
    job = prepare(settings, DataSet(listing, TREE), _GROUP_BYTES)
    job.plan(job.shards).write(job.destination)
    return job


def decode_groups(job: PreprocessJob, pending: Sequence[int], workers: Workers = Workers()) -> Decoded:
    """Decode groups, a few ahead, in any order; those that a killed run has decoded come first."""
    if not workers.scheduler:  # whose workers may still be busy with tasks of a killed run
        job.destination.remove_scratch(SCRATCH)
    names = {shard_name(number): job.task(number).content for number in pending}
    made = [name for name, content in names.items() if job.contents.get(name) == content]
    for name in job.destination.files():
        if is_shard(name, or_partial=True) and name not in made:
            job.destination.remove(name)
    left = [number for number in pending if shard_name(number) not in made]
    with closing(_decoded(job, left, workers)) as decoded:
        for name in chain(made, decoded):
            tables = gather_tables(job.destination, [name])
            write_index(job.destination.root / INDEX, tables, json.dumps(job.details), {})
            index = Index.read(job.destination.root / INDEX, job.destination)
            yield index, [replace(video, path=video.id) for video in tables.rejected.values()]
            job.destination.remove(name)


def _decoded(job: PreprocessJob, numbers: Sequence[int], workers: Workers) -> Generator[str, None, None]:
    """Names of shards that are made on workers, as far ahead as there is room for them."""
    sizes = {shard_name(number): sum(max(video.size, 0) for video in job.shards[number]) for number in numbers}
    seen: list[float] = []

    def fits(tasks: Sequence[ShardTask]) -> bool:
        return sum(sizes[task.name] for task in tasks) * max(seen, default=_BLOW_UP) <= SCRATCH_BYTES

    if not numbers:
        return
    with closing(make_shards(job, numbers, workers, what="embed", fits=fits)) as shards:
        for shard in shards:
            # while a shard is written, its frames are there, too
            seen.append(2 * job.destination.state(shard.name).size / max(sizes[shard.name], 1))
            yield shard.name


def find(sources: Sequence[Folder | Path]) -> Found:
    """The videos and sounds of each source, a folder or a file; those that are named twice come once.

    Raises UserError if a source is neither a folder, a video nor a sound, or if none of them holds any.
    """
    ignored: Counter[str] = Counter()
    before: set[Path] = set()
    found: dict[str, File] = {}
    snapshots: dict[Folder, Folder] = {}
    for folder in map(Folder, sources):
        if not folder.remote:
            require_videos(folder.root, before)
        path = PurePath(str(folder))
        if not folder.remote and folder.root.is_dir():
            before.add(folder.root.resolve())
        elif path.suffix.lower() in MEDIA:
            if folder.parent not in snapshots:
                snapshots[folder.parent] = folder.parent.snapshot()  # asked for the state of each of its files
            found.setdefault(str(folder), File(snapshots[folder.parent], PurePath(path.name)))
            continue
        files = SourceFiles(folder.snapshot())
        for name in sorted(files.files(), key=composed):
            found.setdefault(files.folder.address(name), File(files.folder, name))
        ignored.update(files.ignored)
    if not found:
        what = f"there are no videos in {' '.join(map(str, sources))}"
        raise incomplete("; ".join([what, *ignored_in_words(ignored)]), TREE)
    return found


def require_videos(path: Path, before: set[Path]) -> None:
    """Raise UserError unless a path is a folder that shares no videos with those `before`, or a video or a sound."""
    if not path.exists():
        raise UserError(f"{path} does not exist")
    if path.is_dir():
        folder = path.resolve()
        if before & {folder, *folder.parents} or any(folder in other.parents for other in before):
            raise UserError(f"{path} and a folder before it share videos; name each once")
    elif not path.is_file() or path.suffix.lower() not in MEDIA:
        raise UserError(
            f"{path} is neither a folder nor a video or sound file, which ends in {', '.join(sorted(MEDIA))}"
        )
