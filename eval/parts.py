"""Features group by group, in a folder beside the file that will hold them: a killed run loses only groups in work."""

import json
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from gdt.common.errors import Damaged, LeftOut, UserError
from gdt.common.files import LOCK, locked
from gdt.eval.features import Features, read, write
from gdt.pipeline.leaves import MODALITIES
from gdt.pipeline.shards.container import Header

_ROWS = "rows-"


@dataclass(frozen=True)
class Parts:
    """Rows of groups of videos, a file of features for each, with the name of its shard."""

    folder: Path

    def has(self, name: str, content: str) -> bool:
        """Whether a group is finished that was made of `content`."""
        with suppress(OSError, Damaged):
            return Header.read(self.folder / f"{_ROWS}{name}").attributes["content"] == content
        return False

    def keep(self, name: str, content: str, rows: Features) -> None:
        """Write the rows of a group. Raises OSError."""
        skipped = json.dumps([asdict(video) for video in rows.skipped])
        attributes = {**rows.metadata, "content": content, "skipped": skipped}
        write(self.folder / f"{_ROWS}{name}", replace(rows, metadata=attributes))

    def read(self, names: Iterable[str]) -> Iterator[Features]:
        """The rows of finished groups."""
        for name in names:
            rows = read(self.folder / f"{_ROWS}{name}")
            skipped = (LeftOut(**video) for video in json.loads(rows.metadata["skipped"]))
            yield replace(rows, skipped=tuple(skipped))


@contextmanager
def parts_beside(out: Path, decisive: Mapping[str, str], overwrite: bool) -> Iterator[Parts]:
    """The parts of a file, which are removed in the end, or after an error with no group finished.

    Raises UserError if another process writes them or, without `overwrite`, if an earlier one made them otherwise.
    """
    folder = out.with_name(f"{out.name}.parts")
    with locked(folder, "set --out to another file"):
        finished = [*folder.glob(f"{_ROWS}*.h5")]
        if finished and not overwrite:
            require_same(Header.read(finished[0]).attributes, decisive, folder)
        elif not finished or not decisive.items() <= Header.read(finished[0]).attributes.items():
            for path in {*folder.iterdir()} - {folder / LOCK}:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        try:
            yield Parts(folder)
        except BaseException:
            if not [*folder.glob(f"{_ROWS}*.h5")]:
                shutil.rmtree(folder, ignore_errors=True)
            raise
        shutil.rmtree(folder, ignore_errors=True)


def require_same(recorded: Mapping[str, str], decisive: Mapping[str, str], where: Path) -> None:
    """Raise UserError if the rows of a file or folder were made of other weights or settings."""
    values = [(name, recorded.get(name, "none"), now) for name, now in decisive.items()]
    differing = [f"{name} was {before[:12]}, now {now[:12]}" for name, before, now in values if before != now]
    if differing:
        raise UserError(
            f"{where} has features of other weights or settings: {'; '.join(differing)}; set --out to another file, or "
            "pass --overwrite to replace it"
        )


def joined(order: Sequence[str], parts: Sequence[Features], metadata: dict[str, str]) -> Features:
    """The rows of some parts by the order of their ids; NaN where a part lacks a modality. Rows of other ids go."""
    rank = {name: place for place, name in enumerate(order)}
    places = np.array([rank.get(name, -1) for part in parts for name in part.id.tolist()], np.int64)
    rows = np.argsort(places, kind="stable")[np.count_nonzero(places < 0) :]
    target = np.full(len(places), -1)
    target[rows] = np.arange(len(rows))
    columns: dict[str, np.ndarray] = {}
    for part, at in zip(parts, np.split(target, np.cumsum([len(part.id) for part in parts])), strict=False):
        for name, values in part.columns.items():
            if name not in columns:
                columns[name] = np.full((len(rows), *values.shape[1:]), np.nan, values.dtype)
            columns[name][at[at >= 0]] = values[at >= 0]
    ids = np.concatenate([part.id for part in parts])[rows]
    skipped = sorted((video for part in parts for video in part.skipped), key=lambda video: rank[video.path])
    features = {name: columns[name] for name in MODALITIES if name in columns}
    return Features(ids, features, metadata, tuple(skipped), columns.get("start"))
