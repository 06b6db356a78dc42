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
    gallery = rows.features[among]
    query, there = query[~np.isnan(query[:, 0])], ~np.isnan(gallery[:, 0])
    there[own] = False  # a video is nearest to itself
    if not len(query) or not there.any():
        raise UserError(
            f"nothing can be compared: no {settings.by if not len(query) else among} for the length of a clip"
        )
    similarity = np.full(len(gallery), -np.inf)
    similarity[there] = (unit(gallery[there]) @ unit(query).T).max(1)
    found = np.argsort(-similarity, kind="stable")[: min(settings.k, int(there.sum()))]
    lines = [
        [f"{similarity[row]:.3f}", rows.id[row], f"{rows.start[row]:.1f} s" if rows.made["per"] == "clip" else "",
         rows.path[row]]
        for row in found
    ]  # fmt: skip
    return tabulate(lines, ["cosine", "video", "from", "file"], tablefmt="simple", disable_numparse=True)


def _embedded(settings: Nearest, rows: Rows) -> np.ndarray:
    """Features of a video file, made as those of the file of features were."""
    with tempfile.TemporaryDirectory() as folder:
        query = Embed(
            settings.ckpt or Path(rows.made["checkpoint"]), (Path(settings.query),), out=Path(folder) / "query.npz",
            of=(settings.by,), kind=cast(Kind, rows.made["kind"]), per=cast(Per, rows.made["per"]),
            clips=int(rows.made["clips"]), workers=1,
        )  # fmt: skip
        return rows_of(query)[0].features[settings.by]
