"""The videos whose features are nearest to those of one: by what is seen, by what is heard, or across the two."""

from __future__ import annotations

import difflib
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
from tabulate import tabulate

from gdt.common.errors import UserError
from gdt.eval.embed import Embed, Features, Kind, Modality, Per, features, read


@dataclass(frozen=True)
class Nearest:
    """Find the videos that are most like one."""

    query: str
    """Id of a video in the file of features, or a video file."""
    features: Path = Path("features.h5")
    """File that `gdt eval embed` wrote, .h5 or .npz."""
    by: Modality = "video"
    """What of the query is compared: its picture or its sound."""
    among: Modality | None = None
    """With what of the others; default the same. Another one needs embeddings."""
    k: int = 5
    """How many to find."""
    ckpt: Path | None = None
    """For a query that is a video file: the checkpoint that the features are of; default the one they name."""

    def __post_init__(self) -> None:
        if self.k < 1:
            raise UserError(f"--k is {self.k}; it must be 1 or more")


def nearest(settings: Nearest) -> str:
    """A table of what was found, nearest first. Raises UserError where the file or the query cannot be used."""
    rows = read(settings.features)
    asked = os.path.realpath(settings.query)
    own = np.flatnonzero([settings.query == name or (path and asked == os.path.realpath(path))
                          for name, path in zip(rows.id, rows.path, strict=True)])  # fmt: skip
    if len(own):
        query = rows
    elif Path(settings.query).is_file():
        require_comparable(rows, rows, settings.by, settings.among or settings.by)  # before a video is decoded
        query = _embedded(settings, rows)
    else:
        like = difflib.get_close_matches(settings.query, rows.id.tolist(), 3) or rows.id[:1].tolist()
        raise UserError(
            f"'{settings.query}' is neither an id in {settings.features} (such as {', '.join(like)}) nor a video file"
        )
    found, similarity = most_similar(rows, query, own, settings.by, settings.among or settings.by, settings.k)
    lines = [
        [f"{cosine:.3f}", rows.id[row], f"{rows.start[row]:.1f} s" if rows.metadata["per"] == "clip" else "",
         rows.path[row]]
        for row, cosine in zip(found, similarity, strict=True)
    ]  # fmt: skip
    return tabulate(lines, ["cosine", "video", "from", "file"], tablefmt="simple", disable_numparse=True)


def most_similar(
    rows: Features, query: Features, own: np.ndarray, by: str, among: str, k: int
) -> tuple[np.ndarray, np.ndarray]:
    """The numbers of the k rows that are nearest by cosine to any of those asked for, nearest first, and the cosines.

    `own` are the numbers of the rows that ask, where `query` is `rows`; none of them is found. Else all of `query` ask.
    Raises UserError where there is nothing to compare, or what is no metric of anything.
    """
    from gdt.eval.retrieval import unit  # scikit-learn takes a second

    require_comparable(rows, query, by, among)
    if k < 1:
        raise UserError(f"k is {k}; it must be 1 or more")
    asked, gallery = query.features[by], rows.features[among]
    asked = asked[own] if len(own) else asked
    asked = asked[~np.isnan(asked[:, 0])]
    others = np.delete(np.arange(len(rows.id)), own)  # a video is nearest to itself
    others = others[~np.isnan(gallery[others, 0])]
    if not len(asked):
        raise UserError(f"what was asked with has no {by} for the length of a clip; ask by something else")
    if not len(others):
        raise UserError(f"nothing can be found: no {among} for the length of a clip")
    similarity = (unit(gallery[others]) @ unit(asked).T).max(1)
    found = np.argsort(-similarity, kind="stable")[:k]
    return others[found], similarity[found]


def require_comparable(rows: Features, query: Features, by: str, among: str) -> None:
    """Raise UserError where the cosine of features means nothing."""
    for name, held in ((by, query), (among, rows)):
        if name not in held.features:
            raise UserError(f"there are no features of {name}; there are those of {' and '.join(held.features)}")
    one, other = query.metadata["kind"], rows.metadata["kind"]
    if one != other:
        raise UserError(f"{one} cannot be compared with {other}; embed both in one way")
    if among != by and rows.metadata["kind"] != "embeddings":
        raise UserError("these are features of trunks, and picture and sound meet in embeddings only")
    if query.features[by].shape[1] != rows.features[among].shape[1]:
        raise UserError("these are features of two models; embed both with the same one")


def _embedded(settings: Nearest, rows: Features) -> Features:
    """Features of a video file, made as those of the file of features were."""
    with tempfile.TemporaryDirectory() as folder:
        query = Embed(
            settings.ckpt or Path(rows.metadata["checkpoint"]), (Path(settings.query),), out=Path(folder) / "query.npz",
            of=(settings.by,), kind=cast(Kind, rows.metadata["kind"]), per=cast(Per, rows.metadata["per"]),
            clips=int(rows.metadata["clips"]), workers=1,
        )  # fmt: skip
        return features(query)
