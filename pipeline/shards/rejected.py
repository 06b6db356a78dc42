"""Videos that are in no shard: rows of the shard that tried them, and of the list beside the shards."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from gdt.common.errors import LeftOut, UserError
from gdt.common.files import dump_row, write_lines
from gdt.common.folders import Folder
from gdt.pipeline.shards.container import text_array
from gdt.pipeline.shards.layout import REJECTED


def cause_of(reason: str) -> str:
    """What videos that are rejected for the same reason have in common: the cause, without numbers."""
    cause, _, _ = reason.partition(";")
    return re.sub(r"(?<!UTF-)\b(0x[0-9a-f]+|\d+(\.\d+)?)(?=\D|$)", "…", cause)


def rejected_column(videos: Iterable[LeftOut]) -> np.ndarray:
    """The column of a shard."""
    rows = [_row(video, "id", "reason", "hash") for video in videos]
    return text_array([json.dumps(row, ensure_ascii=False) for row in rows])


def rejected_in(tables: Mapping[str, np.ndarray]) -> list[LeftOut]:
    """The rejected videos of a shard, given its tables."""
    return [LeftOut(**row) for row in map(json.loads, tables["rejected"].tolist())]


def write_rejected(folder: Folder, videos: Iterable[LeftOut]) -> None:
    rows = [dump_row(_row(video, "id", "path", "reason")) for video in videos]
    folder.write(REJECTED, lambda path: write_lines(path, rows))


def read_rejected(folder: Folder) -> Iterator[LeftOut]:
    """All that a folder of shards lists. Raises UserError if the list is damaged."""
    if folder.exists(REJECTED):
        with folder.open(REJECTED) as file:
            for number, line in enumerate(file, 1):
                try:
                    yield LeftOut(**json.loads(line))
                except (ValueError, TypeError) as error:
                    raise UserError(
                        f"line {number} of {folder.address(REJECTED)} is damaged ({error}); delete the file: the next "
                        "run of the same preprocessing command writes it again"
                    ) from error


def _row(video: LeftOut, *names: str) -> dict[str, Any]:
    row: dict[str, Any] = {name: getattr(video, name) for name in names}
    return row | {"fault": True} if video.fault else row
