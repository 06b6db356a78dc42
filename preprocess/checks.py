"""What a run checks: which finished shards it keeps, whether their files have changed, and that most videos are usable.

A file is the same if its size and its hash are. Shards hold the hash, not the time, so that copies of a file give the
same shard; the plan holds the time, so that only files of another time are read again.
"""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tqdm import tqdm

from gdt.common.errors import LeftOut, UserError
from gdt.common.files import hash_of
from gdt.common.folders import Folder
from gdt.common.machine import cores
from gdt.common.wording import plural
from gdt.pipeline.shards import container
from gdt.pipeline.shards.container import Damaged, Header, OtherSchema, texts
from gdt.pipeline.shards.index import read_table
from gdt.pipeline.shards.layout import INDEX
from gdt.pipeline.shards.naming import is_shard
from gdt.pipeline.shards.rejected import cause_of, read_rejected, rejected_in
from gdt.preprocess.plan import Listed, Plan
from gdt.preprocess.worker import MadeShard

_FIRST = 100
"""Number of videos of which most must be usable."""


def contents(destination: Folder, details: dict[str, Any], retry_rejected: bool) -> dict[str, str]:
    """What the finished shards were made of, by file name. Raises UserError for those of other settings or versions.

    Empty for shards whose rejected videos are to be retried.
    """
    another = f"set --destination to another folder, or delete those shards and {INDEX} first"
    contents: dict[str, str] = {}

    def look(name: str, size: int) -> Header | None:
        try:
            return Header.read_in(destination, name, size)
        except OtherSchema as error:
            raise UserError(f"{destination} holds shards of another version: {error}; {another}") from error
        except (FileNotFoundError, Damaged):
            return None  # is made again

    # shards that 'gdt verify --remove' has removed are still in the index
    sizes = {name: state.size for name, state in destination.files().items()}
    names = [name for name in sizes if is_shard(name) or name == INDEX]
    with ThreadPoolExecutor(destination.reads_at_once) as pool:
        headers = list(pool.map(look, names, map(sizes.get, names)))
    for name, header in zip(names, headers, strict=True):
        if header is None:
            continue
        recorded = json.loads(header.attributes["settings"])
        differing = [
            f"{key.replace('_', '-')} was {recorded.get(key) or 'none'}, now {value or 'none'}"
            for key, value in details.items()
            if recorded.get(key) != value
        ]
        if differing:
            raise UserError(f"{destination} holds shards made with other settings: {'; '.join(differing)}; {another}")
        retried = retry_rejected and name != INDEX and header.arrays["rejected"].shape[0] > 0
        contents[name] = "" if retried else header.attributes.get("content", "")
    return contents


def hashes(destination: Folder, name: str, size: int) -> dict[str, str]:
    """The hash of each file that a shard was made of, by id."""
    _, tables = read_table(destination, name, size)
    kept = zip(texts(tables["video/id"]), texts(tables["video/hash"]), strict=True)
    return dict(kept) | {video.id: video.hash for video in rejected_in(tables)}


def changed(source: Folder, doubtful: Sequence[tuple[int, Path, str]]) -> set[int]:
    """The numbers of the shards of which a file has another hash. Raises UserError for a file that cannot be read."""

    def look(number: int, path: Path, known: str) -> int:
        with source.local(path) as file:
            hash = hash_of(file)
        if not hash:
            where = source.address(path)
            raise UserError(f"cannot read {where}, which may have changed; check its disk and permissions")
        return number if hash != known else -1

    if not doubtful:
        return set()
    with ThreadPoolExecutor(cores()) as pool:
        numbers = pool.map(look, *zip(*doubtful, strict=True))
        return {*tqdm(numbers, "compare", len(doubtful), unit="video")} - {-1}


def indexed(destination: Folder) -> list[str]:
    """The ids of the videos in the index of finished shards; none without it, or if it is damaged."""
    if not destination.exists(INDEX):
        return []
    try:
        with destination.local(INDEX) as local:
            arrays, _ = container.read(local)
        return texts(arrays["video/id"]).tolist()
    except (Damaged, OtherSchema, KeyError):
        return []


def require_planned(plan: Plan, listed: Listed, source: Folder, destination: Folder) -> None:
    """Refuse to drop videos of finished shards after a wrong SOURCE or an unmounted disk."""
    known = listed.videos.keys() | {video.id for video in listed.left_out if video.fault}  # whose files are there
    planned = [name for names in plan.shards.values() for name in names] or indexed(destination)
    gone = [name for name in planned if name not in known]
    if gone:
        rejected = {video.id for video in read_rejected(destination) if not video.fault}
        gone = [name for name in gone if name not in rejected]
    if gone:
        raise UserError(
            f"the shards in {destination} hold {plural(len(gone), 'video')} no longer in {source} (first: '{gone[0]}')"
            "; restore them, or set --drop-missing to rebuild the shards without them, or --destination to another "
            "folder"
        )


class TooManyRejected(UserError):
    """Too many videos are rejected."""


def require_few_rejected(results: Iterator[MadeShard]) -> None:
    """Raise TooManyRejected if more than a third of the first videos are rejected for one reason."""
    first: list[MadeShard] = []
    while sum(shard.videos for shard in first) < _FIRST:
        shard = next(results, None)
        if shard is None:
            return
        first.append(shard)
    rejected = [video for shard in first for video in shard.rejected]
    way = "mend what is wrong and run the same command again"
    _require_few(rejected, sum(shard.videos for shard in first), "of the first", way)


def _require_few(rejected: Sequence[LeftOut], videos: int, of: str, way: str) -> None:
    """Raise TooManyRejected if over a third of the videos are rejected for one reason."""
    reasons = Counter(cause_of(video.reason) for video in rejected)
    if reasons and 3 * max(reasons.values()) > videos:
        most, count = reasons.most_common(1)[0]
        first = next(video for video in rejected if cause_of(video.reason) == most)
        raise TooManyRejected(
            f"{count} {of} {videos} videos are rejected for the same reason (first: {first.path or first.id}: "
            f"{first.reason}); {way}, or set --allow-rejected to go on without such videos"
        )


def require_names(listed: Listed, layout: str, layout_given: bool) -> None:
    """Raise TooManyRejected if the names of too many files are at fault; `layout_given`: whether --layout was."""
    faults = [video for video in listed.left_out if video.fault]
    option = "--layout folder" if layout_given else "--dataset <name> for the layout folder"
    way = "rename files" + (f", or set {option}, whose ids are paths" if layout != "folder" else "")
    _require_few(faults, len(listed.videos) + len(faults), "of", way)
