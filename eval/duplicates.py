"""`gdt duplicates`: videos, or moments of videos, that are nearly the same."""

import numpy as np
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

from gdt.common.errors import UserError
from gdt.common.files import require_new_file, write_text
from gdt.common.wording import plural
from gdt.eval.features import Features, read, sameness
from gdt.eval.nearest import address
from gdt.eval.settings import Duplicates
from gdt.eval.similarity import unit
from gdt.eval.subjects import shards_of
from gdt.eval.tables import csv_text
from gdt.train.run import verdict_of

_BLOCK = 256
"""Rows that are compared with all others at a time."""
_SHOWN = 6
"""Most groups that are printed and shown, and most rows of each."""


def duplicates(settings: Duplicates) -> str:
    """Write the groups as csv; returns a summary, with those that cross splits first.

    Raises UserError if the features cannot be used, or do not tell videos apart.
    """
    from gdt.eval.page.found import shown, write_found  # slow to import

    page = settings.out.with_suffix(".html")
    for path in (settings.out, page):
        require_new_file(path, settings.overwrite)
    stored = read(settings.features)
    warning = sameness(stored.features)
    if warning:
        raise UserError(warning)
    index = shards_of(stored)
    splits = {} if index is None else dict(zip(index.id, index.split, strict=True))
    split = np.array([splits.get(id, "") for id in stored.id], object)
    group, cosine = groups(stored, settings.above)
    members = [np.flatnonzero(group == number) for number in range(group.max(initial=-1) + 1)]
    crossing = [rows for rows in members if len({*split[rows]}) > 1]
    ordered = crossing + [rows for rows in members if len({*split[rows]}) < 2]
    start = [""] * len(split) if stored.start is None else stored.start.tolist()
    columns = [stored.id, start, split, map(float, cosine)]
    cells = list(zip(*columns, strict=True))
    table = [[number, *cells[row]] for number, rows in enumerate(ordered) for row in rows]
    write_text(settings.out, csv_text([["group", "id", "start", "split", "cosine"], *table]))
    first = [rows[:_SHOWN].tolist() for rows in ordered[:_SHOWN]]
    title = f"Duplicates: the first {_SHOWN} of each group, and the first {_SHOWN} groups"
    write_found(page, title, [[shown(stored, row, cosine[row]) for row in rows] for rows in first], index)
    many = sum(len(np.unique(stored.id[rows])) for rows in members)
    videos = plural(len(np.unique(stored.id)), "video")
    lines = [f"{plural(len(members), 'group')} of {many} of {videos}, nearer than {settings.above}: {settings.out}"]
    if splits:
        lines.append(f"{plural(len(crossing), 'group')} {'crosses' if len(crossing) == 1 else 'cross'} splits")
    lines += verdict_of(stored.metadata["checkpoint"])
    for rows in ordered[:_SHOWN]:
        lines.append("")
        lines += [f"  {cosine[row]:.3f}  {address(stored, row)}  {split[row]}".rstrip() for row in rows[:_SHOWN]]
        if len(rows) > _SHOWN:
            lines.append(f"  and {len(rows) - _SHOWN} more")
    if len(ordered) > _SHOWN:
        lines += ["", f"and {plural(len(ordered) - _SHOWN, 'more group')}"]
    return "\n".join(lines)


def groups(features: Features, above: float) -> tuple[np.ndarray, np.ndarray]:
    """Groups of rows of different videos that are nearer than `above` in every modality that both have.

    Returns the number of each row's group, int64 [n], -1 for none, and its highest cosine to another row of it, of the
    modality in which they are farther apart: float32 [n]. Rows that are linked by others are one group. Memory is that
    of a block of rows against all.
    """
    n = len(features.id)
    video = np.unique(features.id.astype(str), return_inverse=True)[1]
    present = {name: np.isfinite(values[:, 0]) for name, values in features.features.items()}
    rows = {name: unit(np.nan_to_num(values)) for name, values in features.features.items()}
    label = np.arange(n)
    highest = np.full(n, -np.inf, np.float32)
    for first in range(0, n, _BLOCK):
        block = slice(first, first + _BLOCK)
        cosine = np.full((len(video[block]), n - first), np.inf, np.float32)  # where no modality is in both
        for name, values in rows.items():
            both = present[name][block, None] & present[name][first:]
            np.minimum(cosine, values[block] @ values[first:].T, where=both, out=cosine)
        near = (cosine > above) & np.isfinite(cosine) & (video[block, None] != video[first:])
        cosine[~near] = -np.inf
        np.maximum(highest[block], cosine.max(1), out=highest[block])
        np.maximum(highest[first:], cosine.max(0), out=highest[first:])
        here, there = np.nonzero(near)
        links = coo_matrix((np.ones(len(here), bool), (label[first + here], label[first + there])), (n, n))
        label = connected_components(links, directed=False)[1][label]
    found = np.isfinite(highest)
    group = np.full(n, -1, np.int64)
    group[found] = np.unique(label[found], return_inverse=True)[1]
    return group, highest
