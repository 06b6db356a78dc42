"""Nearest neighbours of a video, within a modality or across the two."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, cast

import numpy as np
import tyro
from tabulate import tabulate

from gdt.common.errors import UserError, plural, require_positive, unknown
from gdt.eval.embed import Embed, Features, Kind, Modality, features, read, sameness
from gdt.train.models.network import NONE, Theirs


@dataclass(frozen=True)
class Nearest:
    """Find the videos most similar to a query video."""

    query: str
    """Id of a video in the features file, or a video file."""
    features: Path = Path("features.h5")
    """File written by `gdt embed`, .h5, .npz or .parquet."""
    by: Modality = "video"
    """Modality of the query."""
    among: Annotated[Modality | None, tyro.conf.arg(metavar="{video,audio}")] = None
    """Modality to search (other than --by: needs embeddings); default: --by."""
    k: int = 5
    """Number of neighbours."""
    networks: Annotated[Theirs, tyro.conf.arg(name="")] = NONE
    """Those that the checkpoint was trained with."""

    def __post_init__(self) -> None:
        require_positive(self, "", "k")


def nearest(settings: Nearest) -> str:
    """A table of the nearest neighbours, without the query itself.

    Raises UserError if the file or the query cannot be used.
    """
    rows, among = read(settings.features), settings.among or settings.by
    query: str | Features = settings.query
    same = _row_of(settings.query, rows)
    if same:
        query = same
    else:
        if not Path(settings.query).is_file():
            hint = f"set --query to a video file, or to an id such as {rows.id[0]}"
            raise unknown("query", settings.query, rows.id, hint)
        made = rows.metadata  # of features that are computed like those in the file
        query = features(Embed(
            Path(made["checkpoint"]), (Path(settings.query),), modalities=_modalities(rows), workers=1,
            kind=cast(Kind, made["kind"]), clips=int(made["clips"]), networks=settings.networks,
        ))  # fmt: skip
    found, cosines = most_similar(rows, query, settings.by, among)
    begun = rows.start.get(among, ())
    places = [f"{a} at {b:.1f} s" for a, b in zip(rows.id, begun, strict=True)] if len(begun) else rows.id
    lines = [(f"{cosine:.3f}", places[k]) for k, cosine in zip(found[: settings.k], cosines, strict=False)]
    # cosines across modalities are low even for the best match
    median = f"median cosine of {plural(len(cosines), 'candidate')}: {np.median(cosines):.3f}"
    lines_of_text = [tabulate(lines, ["cosine", "video"], disable_numparse=True), "", median]
    if said := sameness({among: rows.features[among]}):
        lines_of_text.append(f"warning: {said}")
    return "\n".join(lines_of_text)


def _row_of(query: str, rows: Features) -> str:
    """The id of the row that is this query, by its id or its file; empty if none is."""
    if query in rows.id:
        return query
    if not Path(query).is_file():
        return ""
    file = Path(query).resolve()
    return next((name for name in rows.id if Path(name).name == file.name and Path(name).resolve() == file), "")


def _modalities(rows: Features) -> tuple[Modality, ...]:
    return tuple(cast(Modality, name) for name in rows.features)


def most_similar(rows: Features, query: str | Features, by: str, among: str) -> tuple[np.ndarray, np.ndarray]:
    """Rows by their highest cosine to the query, and the cosines, the highest first.

    The query is the id of a row, which is left out, or features of other videos. Raises UserError if features are
    missing or cannot be compared.
    """
    from gdt.eval.similarity import unit  # scikit-learn is slow to import

    asked, own = (query, np.zeros(len(rows.id), bool)) if isinstance(query, Features) else (rows, rows.id == query)
    for option, name, each in (("by", by, asked), ("among", among, rows)):
        if name not in each.features:
            instead = " or ".join(each.features)
            raise UserError(f"there are no {name} features of these videos; set --{option} {instead}")
    one, other = asked.metadata, rows.metadata
    if any(one[name] != other[name] for name in ("kind", "weights")):
        both = " and ".join(f"{made['kind']} of {made['checkpoint']}" for made in (one, other))
        raise UserError(f"{both} cannot be compared; embed both with the same checkpoint and --kind")
    if among != by and one["kind"] != "embeddings":
        raise UserError("features of trunks cannot be compared across modalities; embed again with --kind embeddings")
    queries, gallery = asked.features[by][... if asked is query else own], rows.features[among]
    queries = queries[~np.isnan(queries[:, 0])]
    if not (~own).any():
        raise UserError(f"{query} is the only video of these features; embed more videos to compare it with")
    others = np.flatnonzero(~own & ~np.isnan(gallery[:, 0]))
    for option, name, kept, whose in (("by", by, queries, "the query"), ("among", among, others, "every other video")):
        if not len(kept):
            instead = " or ".join(other for other in rows.features if other != name) or "another modality"
            raise UserError(f"the {name} of {whose} is missing or shorter than a clip; set --{option} {instead}")
    similarity = (unit(gallery[others]) @ unit(queries).T).max(1)
    order = np.argsort(-similarity, kind="stable")
    return others[order], similarity[order]
