"""Nearest neighbours of a video, within a modality or across the two."""

from __future__ import annotations

import difflib
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, cast, get_args

import numpy as np
import tyro
from tabulate import tabulate

from gdt.common.errors import UserError, plural, require_positive, unknown
from gdt.eval.embed import Embed, Features, Kind, Modality, Per, features, read


@dataclass(frozen=True)
class Nearest:
    """Find the videos most similar to a query video."""

    query: str
    """Id of a video in the features file, or a video file."""
    features: Path = Path("features.h5")
    """File written by `gdt embed`, .h5 or .npz."""
    by: Modality = "video"
    """Modality of the query."""
    among: Annotated[Modality | None, tyro.conf.arg(metavar="{video,audio}")] = None
    """Modality to search (other than --by: needs embeddings); default: --by."""
    k: int = 5
    """Number of neighbours."""
    ckpt: Path | None = None
    """Checkpoint that embeds a query file; default: that of the features."""

    def __post_init__(self) -> None:
        require_positive(self, "", "k")


def nearest(settings: Nearest) -> str:
    """A table of the nearest neighbours, without the query itself.

    Raises UserError if the file or the query cannot be used.
    """
    rows, among = read(settings.features), settings.among or settings.by
    path = os.path.realpath(settings.query)
    own = np.flatnonzero([settings.query == name or (file and path == os.path.realpath(file))
                          for name, file in zip(rows.id, rows.path, strict=True)])  # fmt: skip
    if len(own):
        query = rows
    elif Path(settings.query).is_file():
        require_comparable(rows, rows, settings.by, among)  # before decoding
        query = _embed_query(settings, rows)
    else:
        raise UserError(_unknown_query(settings, rows.id.tolist()))
    excluded = own if len(own) else _named_like(rows, path)
    ranked, cosines = most_similar(rows, query, own, settings.by, among, len(rows.id), excluded)
    found, similarity = ranked[: settings.k], cosines[: settings.k]
    columns = {"cosine": [f"{cosine:.3f}" for cosine in similarity], "video": rows.id[found].tolist()}
    if rows.metadata["per"] == "clip":
        columns["from"] = [f"{start:.1f} s" for start in rows.start[found]]
    if any(rows.path[found]):
        columns["file"] = rows.path[found].tolist()
    table = tabulate(columns, "keys", tablefmt="simple", disable_numparse=True)
    names = ", ".join(dict.fromkeys(rows.id[excluded].tolist()))
    # cosines across modalities are low even for the best match
    scale = f"median cosine of {plural(len(cosines), 'candidate')}: {np.median(cosines):.3f}"
    return "\n".join([table, "", *([f"left out: the query, {names}"] if names else []), scale])


def _unknown_query(settings: Nearest, ids: Sequence[str]) -> str:
    """The message about a query that is neither an id nor a file; suggests ids with the same or a similar name."""
    name = Path(settings.query).name.casefold()
    ids = list(dict.fromkeys(ids))
    by_name = {Path(each).name.casefold(): each for each in reversed(ids)}
    similar = [each for each in ids if Path(each).name.casefold() == name] or difflib.get_close_matches(
        settings.query, ids
    )
    similar = similar or [by_name[each] for each in difflib.get_close_matches(name, by_name)]
    if similar:
        return (
            f"'{settings.query}' is neither a file nor a video in {settings.features}; did you mean "
            f"{' or '.join(map(repr, similar[:2]))}?"
        )
    wrong = f"'{settings.query}' is neither an id in {settings.features} nor a video file"
    return f"{wrong}; set --query to one, such as {ids[0]}"


def _named_like(rows: Features, path: str) -> np.ndarray:
    """Rows of shards that may be of a video file: their id is the end of its path, with or without the suffix."""
    paths = path, os.path.splitext(path)[0]  # noqa: PTH122
    return np.flatnonzero([
        not file and any(each.endswith(f"/{name}") for each in paths)
        for name, file in zip(rows.id, rows.path, strict=True)
    ])  # fmt: skip


def most_similar(
    rows: Features, query: Features, own: np.ndarray, by: str, among: str, k: int, excluded: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Indices of the k rows with the highest cosine to any query row, and the cosines, highest first.

    `own`: rows of the query, if `query` is `rows`; if empty, all rows of `query` are used. `excluded`: rows that are
    not searched; default: `own`. Raises UserError if features are missing or cannot be compared.
    """
    from gdt.eval.retrieval import unit  # scikit-learn is slow to import

    require_comparable(rows, query, by, among)
    if k < 1:
        raise UserError(f"k is {k}; it must be 1 or more")
    queries, gallery = query.features[by], rows.features[among]
    queries = queries[own] if len(own) else queries
    queries = queries[~np.isnan(queries[:, 0])]
    others = np.delete(np.arange(len(rows.id)), own if excluded is None else excluded)
    others = others[~np.isnan(gallery[others, 0])]
    if not len(queries):
        raise UserError(f"the {by} of the query is missing or shorter than a clip; set --by to another modality")
    if not len(others):
        raise UserError(
            f"the {among} of every other video is missing or shorter than a clip; set --among to another modality"
        )
    similarity = (unit(gallery[others]) @ unit(queries).T).max(1)
    found = np.argsort(-similarity, kind="stable")[:k]
    return others[found], similarity[found]


def require_comparable(rows: Features, query: Features, by: str, among: str) -> None:
    """Raise UserError if these features are missing or cannot be compared by cosine."""
    for name, each in ((by, query), (among, rows)):
        if name not in get_args(Modality):
            raise unknown("features", name, get_args(Modality))
        if name not in each.features:
            raise UserError(
                f"there are no {name} features, only {', '.join(each.features)}; set --by and --among to those, or "
                f"embed again with a model that has {'an audio' if name == 'audio' else 'a video'} network, and with "
                f"{name} among --modalities"
            )
    one, other = query.metadata["kind"], rows.metadata["kind"]
    if one != other:
        raise UserError(f"{one} cannot be compared with {other}; embed both with the same --kind")
    if among != by and one != "embeddings":
        raise UserError(
            "features of trunks cannot be compared across modalities; write the file again with 'gdt embed --kind "
            "embeddings'"
        )
    weights = {each.metadata.get("weights") for each in (query, rows)} - {None}  # older files have none
    if len(weights) > 1 or query.features[by].shape[1] != rows.features[among].shape[1]:
        checkpoints = " and ".join(each.metadata["checkpoint"] for each in (query, rows))
        raise UserError(f"the features are of different models, {checkpoints}; embed both with the same checkpoint")


def _embed_query(settings: Nearest, rows: Features) -> Features:
    """Features of a video file, computed like those in the features file."""
    with tempfile.TemporaryDirectory() as folder:
        query = Embed(
            settings.ckpt or Path(rows.metadata["checkpoint"]), (Path(settings.query),), out=Path(folder) / "query.npz",
            modalities=(settings.by,), kind=cast(Kind, rows.metadata["kind"]), per=cast(Per, rows.metadata["per"]),
            clips=int(rows.metadata["clips"]), workers=1,
        )  # fmt: skip
        return features(query)
