"""Nearest neighbours of a video, a sound or a moment of one, within a modality or across the two."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np
from tabulate import tabulate

from gdt.common.errors import Unusable, UserError, unknown
from gdt.common.files import require_new_file
from gdt.common.wording import plural
from gdt.eval.features import Features, is_changed, read, sameness
from gdt.eval.settings import Embed, FeatureModality, Kind, Nearest
from gdt.eval.similarity import unit
from gdt.train.models.network import PAPER_NETWORKS, OwnNetworks
from gdt.train.run import verdict_of

if TYPE_CHECKING:  # slow to import, and only other videos need torch
    from gdt.train.trained import Trained

_BLOCK = 4096
"""Rows that are compared with all moments of the query at a time."""
_EVERY = 0.1
"""Seconds between the moments of a query that is embedded."""
_MOMENT = re.compile(r"(?P<name>.+)#t=(?P<begin>\d+(\.\d+)?)(,(?P<end>\d+(\.\d+)?))?")


class Query(NamedTuple):
    """What is searched for: some rows of features, of which the most similar counts."""

    asked: Features
    rows: np.ndarray
    """bool [rows of asked]."""
    left_out: np.ndarray
    """Rows of the searched features that are the query itself: bool [n]."""


class Found(NamedTuple):
    rows: np.ndarray
    """The most similar rows, without moments that overlap a more similar one: int64 [k]."""
    cosines: np.ndarray
    """Of each, float32 [k]."""
    median: float
    """Cosine of all that were compared."""
    compared: int


def nearest(settings: Nearest) -> str:
    """A table of the nearest neighbours, without the query itself.

    Raises UserError if the file or the query cannot be used.
    """
    if settings.out:
        require_new_file(settings.out, overwrite=True)
    stored = read(settings.features)
    among = settings.among or settings.by
    query = find_query(stored, settings.query, settings.by, settings.own_networks)
    found = most_similar(stored, query, settings.by, among, settings.k)
    table = [
        (f"{cosine:.3f}", address(stored, row), *time_of(stored, row))
        for row, cosine in zip(found.rows, found.cosines, strict=True)
    ]
    if settings.out:
        from gdt.eval.page.found import Shown, shown, write_found  # slow to import
        from gdt.eval.subjects import shards_of

        name, part = split_moment(settings.query)
        asked = Shown(name, part[0] if part else None, "query")
        neighbours = [shown(stored, *each) for each in zip(found.rows.tolist(), found.cosines.tolist(), strict=True)]
        write_found(settings.out, f"Nearest to {settings.query}", [[asked], neighbours], shards_of(stored))
    headers = ["cosine", "video", *["time"] * (stored.start is not None)]
    # cosines across modalities are low even for the best match
    median = f"median cosine of {plural(found.compared, 'candidate')}: {found.median:.3f}"
    lines = [tabulate(table, headers, disable_numparse=True), "", median]
    warnings = [sameness({among: stored.features[among]})]
    silent = np.isnan(query.asked.features[settings.by][query.rows, 0])
    if 2 * silent.sum() > len(silent):
        warnings.append(f"{silent.sum()} of {plural(len(silent), 'moment')} of the query are silent, and do not count")
    name = _row_of(str(query.asked.id[query.rows][0]), stored)
    if is_changed(name, stored):
        warnings.append(f"{name} has changed since {settings.features}, whose features are of its former content")
    lines += [f"warning: {warning}" for warning in warnings if warning]
    lines += verdict_of(stored.metadata["checkpoint"])
    return "\n".join([*lines, *([f"{settings.out} shows them"] if settings.out else [])])


def address(stored: Features, row: int) -> str:
    """The id of a video, or of a moment: as it can be queried, and as a browser opens it."""
    return str(stored.id[row]) if stored.start is None else f"{stored.id[row]}#t={stored.start[row]:g}"


def time_of(stored: Features, row: int) -> list[str]:
    """Where a moment starts, as in 12:34.5; empty for a video."""
    if stored.start is None:
        return []
    minutes, seconds = divmod(round(float(stored.start[row]), 1), 60)
    return [f"{int(minutes)}:{seconds:04.1f}"]


def find_query(
    stored: Features,
    query: Features | str,
    by: FeatureModality,
    networks: OwnNetworks = PAPER_NETWORKS,
    trained: Trained | None = None,
) -> Query:
    """All rows of other features, or what a text names: an id, a file, or a moment, as in a.mp4#t=12.5 or #t=12,15.

    Rows of these features are taken where they are, else the moments of the file are embedded, of all their modalities
    and that of the query: by `trained`, or by the checkpoint of the features. Raises UserError for anything else.
    """
    if isinstance(query, Features):
        return Query(query, np.ones(len(query.id), bool), np.zeros(len(stored.id), bool))
    text = os.path.expanduser(query)  # noqa: PTH111 - an id may be a URL
    name, part = (text, None) if text in stored.id else split_moment(text)
    same = stored.id == _row_of(name, stored)
    if same.any() and (part is None or stored.start is not None):
        rows = same if part is None else same & _within(stored, same, part)
        return Query(stored, rows, same if part is None else same & _overlapping(stored, rows))
    if not Path(name).is_file():
        hint = f"set --query to a file of video or sound, or to an id such as {stored.id[0]}"
        raise unknown("query", name, np.unique(stored.id.astype(str)), hint)
    from gdt.eval.embed import features

    metadata = stored.metadata
    seconds = float(metadata["seconds"])
    modalities = cast(tuple[FeatureModality, ...], (*{**stored.features, by: None},))
    kind = cast(Kind, metadata["kind"])
    settings = Embed(metadata["checkpoint"], (Path(name),), modalities=modalities, kind=kind, every=_EVERY, workers=1)
    settings = replace(settings, own_networks=networks)
    try:
        asked = features(settings, trained, part and (part[0], max(part[1], part[0] + seconds)))
    except Unusable as error:
        raise UserError(f"the query {text} cannot be embedded: {error}") from error
    return Query(asked, np.ones(len(asked.id), bool), same)


def split_moment(text: str) -> tuple[str, tuple[float, float] | None]:
    """A name, and the moment of a query from one second to another; None for the whole. Raises UserError."""
    moment = _MOMENT.fullmatch(text)
    if not moment or Path(text).is_file():
        return text, None
    begin = float(moment["begin"])
    end = float(moment["end"] or begin)
    if end < begin:
        raise UserError(f"the moment of {text} ends before it begins; write #t=begin,end in seconds")
    return moment["name"], (begin, end)


def _within(stored: Features, same: np.ndarray, part: tuple[float, float]) -> np.ndarray:
    """The moments of a video that start in a part of it, at least the nearest one: bool [n].

    Raises UserError if the video ends before.
    """
    assert stored.start is not None
    begin, end = part
    last = stored.start[same].max()
    if begin >= last + float(stored.metadata["every"]) + float(stored.metadata["seconds"]):
        raise UserError(f"{stored.id[same][0]} has nothing at {begin:g} s; its last moment is #t={last:g}")
    distance = np.where(same, np.abs(stored.start - begin), np.inf)
    return ((stored.start >= begin) & (stored.start < end)) | (distance == distance.min())


def _overlapping(stored: Features, rows: np.ndarray) -> np.ndarray:
    """Whether each moment, of whichever video, overlaps one of some that follow each other: bool [n]."""
    assert stored.start is not None
    seconds = float(stored.metadata["seconds"])
    starts = stored.start[rows]
    return (stored.start > starts.min() - seconds) & (stored.start < starts.max() + seconds)


def _row_of(query: str, stored: Features) -> str:
    """The id of the row that is this query, by its id or its file; empty if none is."""
    if query in stored.id:
        return query
    if not Path(query).is_file():
        return ""
    file = Path(query).resolve()
    names = {Path(query).name, file.name}  # of a link, and of the file
    return next((id for id in stored.id if Path(id).name in names and Path(id).resolve() == file), "")


def most_similar(stored: Features, query: Query, by: str, among: str, k: int) -> Found:
    """The k rows with the highest cosine to the query.

    Raises UserError if features are missing or cannot be compared.
    """
    asked = query.asked
    for option, name, searched in (("by", by, asked), ("among", among, stored)):
        if name not in searched.features:
            instead = " or ".join(searched.features)
            raise UserError(f"there are no {name} features of these videos; set --{option} {instead}")
    if any(asked.metadata[name] != stored.metadata[name] for name in ("kind", "weights")):
        sides = [f"{made.metadata['kind']} of {made.metadata['checkpoint']}" for made in (asked, stored)]
        both = " and ".join(sides)
        if sides[0] == sides[1]:
            changed = stored.metadata["checkpoint"]
            raise UserError(
                f"the weights of {changed} have changed since one of the two was embedded; embed both again"
            )
        raise UserError(f"{both} cannot be compared; embed both with the same checkpoint and --kind")
    if among != by and asked.metadata["kind"] != "embeddings":
        raise UserError("features of trunks cannot be compared across modalities; embed again with --kind embeddings")
    queries = asked.features[by][query.rows]
    queries = queries[~np.isnan(queries[:, 0])]
    if query.left_out.all():
        raise UserError(f"{asked.id[0]} is the only video of these features; embed more videos to compare it with")
    gallery = stored.features[among]
    others = np.flatnonzero(~query.left_out & ~np.isnan(gallery[:, 0]))
    for option, name, kept, whose in (("by", by, queries, "the query"), ("among", among, others, "every other video")):
        if not len(kept):
            instead = " or ".join(modality for modality in stored.features if modality != name) or "another modality"
            raise UserError(
                f"the {name} of {whose} is missing, silent or shorter than a clip; set --{option} {instead}"
            )
    cosines = np.full(len(stored.id), -np.inf, np.float32)
    queries = unit(queries)
    for block in np.array_split(others, len(others) // _BLOCK + 1):
        cosines[block] = (unit(gallery[block]) @ queries.T).max(1)
    rows = _apart(stored, others[np.argsort(-cosines[others], kind="stable")], k)
    return Found(rows, cosines[rows], float(np.median(cosines[others])), len(others))


def _apart(stored: Features, ordered: np.ndarray, k: int) -> np.ndarray:
    """The first k rows, without moments that overlap one before them."""
    if stored.start is None:
        return ordered[:k]
    seconds = float(stored.metadata["seconds"])
    taken: dict[str, list[float]] = {}
    rows = []
    for row in ordered.tolist():
        before = taken.setdefault(stored.id[row], [])
        if all(abs(stored.start[row] - start) >= seconds for start in before):
            before.append(stored.start[row])
            rows.append(row)
        if len(rows) == k:
            break
    return np.array(rows, np.int64)
