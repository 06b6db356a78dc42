"""Nearest neighbours of a video, within a modality or across the two."""

from pathlib import Path
from typing import cast

import numpy as np
from tabulate import tabulate

from gdt.common.errors import UserError, unknown
from gdt.common.wording import plural
from gdt.eval.features import Features, read, sameness
from gdt.eval.settings import Embed, FeatureModality, Kind, Nearest
from gdt.eval.similarity import unit
from gdt.train.run import verdict_of


def nearest(settings: Nearest) -> str:
    """A table of the nearest neighbours, without the query itself.

    Raises UserError if the file or the query cannot be used.
    """
    stored = read(settings.features)
    among = settings.among or settings.by
    query: str | Features = settings.query
    same = _row_of(settings.query, stored)
    if same:
        query = same
    else:
        if not Path(settings.query).is_file():
            hint = f"set --query to a video file, or to an id such as {stored.id[0]}"
            raise unknown("query", settings.query, stored.id, hint)
        from gdt.eval.embed import features  # torch is slow to import, and only other videos need it

        embed = Embed(
            stored.metadata["checkpoint"],
            (Path(settings.query),),
            modalities=cast(tuple[FeatureModality, ...], tuple(stored.features)),
            kind=cast(Kind, stored.metadata["kind"]),
            clips=int(stored.metadata["clips"]),
            every=float(stored.metadata["every"]),
            workers=1,
            own_networks=settings.own_networks,
        )
        query = features(embed)
    order, cosines = most_similar(stored, query, settings.by, among)
    names = stored.id.tolist()
    if stored.start is not None:
        names = [f"{name} at {start:.1f} s" for name, start in zip(names, stored.start, strict=True)]
    lines = [(f"{cosine:.3f}", names[k]) for k, cosine in zip(order[: settings.k], cosines, strict=False)]
    # cosines across modalities are low even for the best match
    median = f"median cosine of {plural(len(cosines), 'candidate')}: {np.median(cosines):.3f}"
    lines_of_text = [tabulate(lines, ["cosine", "video"], disable_numparse=True), "", median]
    warnings = [sameness({among: stored.features[among]})]
    if same and Path(same).is_file() and Path(same).stat().st_mtime > settings.features.stat().st_mtime:
        warnings.append(f"{same} is newer than {settings.features}, whose features are those of its former content")
    lines_of_text += [f"warning: {warning}" for warning in warnings if warning]
    lines_of_text += verdict_of(stored.metadata["checkpoint"])
    return "\n".join(lines_of_text)


def _row_of(query: str, stored: Features) -> str:
    """The id of the row that is this query, by its id or its file; empty if none is."""
    if query in stored.id:
        return query
    if not Path(query).is_file():
        return ""
    file = Path(query).resolve()
    names = {Path(query).name, file.name}  # of a link, and of the file
    return next((id for id in stored.id if Path(id).name in names and Path(id).resolve() == file), "")


def most_similar(stored: Features, query: str | Features, by: str, among: str) -> tuple[np.ndarray, np.ndarray]:
    """Rows by their highest cosine to the query, and the cosines, the highest first.

    The query is the id of a row, which is left out, or features of other videos. Raises UserError if features are
    missing or cannot be compared.
    """
    if isinstance(query, Features):
        asked = query
        is_query = np.zeros(len(stored.id), bool)
    else:
        asked = stored
        is_query = stored.id == query
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
    queries = asked.features[by] if asked is query else stored.features[by][is_query]
    queries = queries[~np.isnan(queries[:, 0])]
    if is_query.all():
        raise UserError(f"{query} is the only video of these features; embed more videos to compare it with")
    gallery = stored.features[among]
    others = np.flatnonzero(~is_query & ~np.isnan(gallery[:, 0]))
    for option, name, kept, whose in (("by", by, queries, "the query"), ("among", among, others, "every other video")):
        if not len(kept):
            instead = " or ".join(modality for modality in stored.features if modality != name) or "another modality"
            raise UserError(f"the {name} of {whose} is missing or shorter than a clip; set --{option} {instead}")
    similarity = (unit(gallery[others]) @ unit(queries).T).max(1)
    order = np.argsort(-similarity, kind="stable")
    return others[order], similarity[order]
