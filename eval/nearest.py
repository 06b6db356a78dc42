"""The videos whose features are nearest to those of one: by what is seen, by what is heard, or across the two."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import cast

import numpy as np
from tabulate import tabulate

from eval.embed import Rows, read, rows_of
from eval.retrieval import unit
from eval.settings.embed import Embed, Kind, Nearest, Per
from pipeline.errors import UserError


def nearest(settings: Nearest) -> str:
    """A table of what was found, nearest first. Raises UserError where the file or the query cannot be used."""
    rows = read(settings.features)
    among = settings.among or settings.by
    for name in (settings.by, among):
        if name not in rows.features:
            raise UserError(f"{settings.features} has no features of {name}; it has {', '.join(rows.features)}")
    if among != settings.by and rows.made["kind"] != "embeddings":
        raise UserError(f"{settings.features} holds features of trunks, and picture and sound meet in embeddings only")
    own = np.flatnonzero(rows.id == settings.query)
    if len(own):
        query = rows.features[settings.by][own]
    elif Path(settings.query).is_file():
        query = _embedded(settings, rows)
    else:
        raise UserError(f"'{settings.query}' is neither an id in {settings.features} nor a video file")
    query = query[~np.isnan(query[:, 0])]
    if not len(query):
        raise UserError(f"nothing can be compared: no {settings.by} for the length of a clip")
    others = np.delete(np.arange(len(rows.id)), own)  # a video is nearest to itself
    found, similarity = most_similar(query, rows.features[among], others, settings.k)
    if not len(found):
        raise UserError(f"nothing can be compared: no {among} for the length of a clip")
    lines = [
        [f"{cosine:.3f}", rows.id[row], f"{rows.start[row]:.1f} s" if rows.made["per"] == "clip" else "",
         rows.path[row]]
        for row, cosine in zip(found, similarity, strict=True)
    ]  # fmt: skip
    return tabulate(lines, ["cosine", "video", "from", "file"], tablefmt="simple", disable_numparse=True)


def most_similar(query: np.ndarray, gallery: np.ndarray, among: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """The k rows of a gallery [n, d], among those numbered `among`, that are nearest to any row of `query` [q, d] by
    cosine: their numbers, int64, nearest first, and the cosines. Rows of NaN are not found.
    """
    among = among[~np.isnan(gallery[among, 0])]
    similarity = (unit(gallery[among]) @ unit(query).T).max(1)
    found = np.argsort(-similarity, kind="stable")[:k]
    return among[found], similarity[found]


def _embedded(settings: Nearest, rows: Rows) -> np.ndarray:
    """Features of a video file, made as those of the file of features were."""
    with tempfile.TemporaryDirectory() as folder:
        query = Embed(
            settings.ckpt or Path(rows.made["checkpoint"]), (Path(settings.query),), out=Path(folder) / "query.npz",
            of=(settings.by,), kind=cast(Kind, rows.made["kind"]), per=cast(Per, rows.made["per"]),
            clips=int(rows.made["clips"]), workers=1,
        )  # fmt: skip
        return rows_of(query).features[settings.by]
