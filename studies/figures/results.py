"""What was found of all models of a call: typed, written as JSON, read again, and laid out as a table."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gdt.common import serialization
from gdt.common.errors import UserError
from gdt.eval import results as tables
from gdt.eval.factors.measures import Interval
from gdt.eval.measures import Measure
from gdt.studies.figures.settings import Figures
from gdt.train.provenance import Provenance

NAME = "figures.json"


@dataclass(frozen=True)
class Seen:
    """One model."""

    model: str
    """Name of the model: of its run's folder, or of its file."""
    weights: str
    """Digest of the weights."""
    checkpoint: Path
    """Of the network, where the weights are random."""
    preset: str
    """Row of table 1 and the like, one's own factors, or the kind of weights."""
    step: int
    seed: int
    """Of the pretraining, or of the random weights."""
    random: bool
    trained_on: Literal["others", "these", "unknown"]
    """Whether the weights have learned from these videos."""
    dim: int
    """Numbers in a feature."""
    deviation: tuple[float, ...]
    """Of each video, as the paper has it; see `measures.deviations`."""
    relative: tuple[float, ...]
    """Of each video, distance between its clips as a multiple of that between videos; see `measures.Apart`."""
    median: Interval
    """Of `deviation`."""
    ratio: Interval
    """Of all videos; see `measures.ratio`."""
    more: Interval | None
    """Difference of `ratio` to random weights; None of these, and where there are none of the same network."""
    nearest: Measure
    """Of the videos on the planes, how often the nearest other clip is of the same video."""
    note: str
    """What else is to be known, a sentence; empty where there is nothing."""


@dataclass(frozen=True)
class Findings:
    """All that one call found."""

    dataset: str
    data: str
    """Fingerprint of the shards."""
    split: str
    too_short: int
    """Videos of the split that offer fewer starts than there are clips."""
    apart: float
    """Seconds from the start of a clip to that of the next one, median over videos."""
    lasts: float
    """Seconds of a clip; the longest, where models take different ones."""
    videos: tuple[str, ...]
    """Ids, in the order of `deviation` and `relative`."""
    shown: tuple[str, ...]
    """Ids of those on the planes."""
    of_class: str
    """Their class; empty where they are drawn from all videos."""
    labelled: bool
    """Whether any of the videos has a label."""
    models: tuple[Seen, ...]
    settings: Figures
    provenance: Provenance


def to_json(found: Findings) -> str:
    return serialization.to_json(found, indent=1)


def from_json(text: str, source: str = "this text") -> Findings:
    """What `to_json` wrote. Raises UserError naming `source` where it is something else."""
    try:
        return serialization.rebuilt(Findings, json.loads(text))
    except (ValueError, TypeError, UserError) as error:
        raise UserError(
            f"{source} holds no figures, or those of another version of this program ({error}); make them again with "
            "gdt study figures"
        ) from error


def lines(found: Findings) -> list[list[str]]:
    """The table, the heads first."""
    compared = any(seen.more is not None for seen in found.models)
    rows = [["", "deviation", "ratio", *(["minus random"] if compared else []), "nearest %"]]
    for seen in found.models:
        low, high = seen.nearest.interval
        more = "" if seen.more is None else _interval(seen.more, "{:+.2f}", " to ")
        rows.append(
            [seen.model, _interval(seen.median, "{:.4f}"), _interval(seen.ratio), *([more] if compared else []),
             f"{seen.nearest.value:.1f} ({low:.1f}-{high:.1f})"]
        )  # fmt: skip
    return [*rows, ["chance", "", "", *([""] if compared else []), f"{found.models[0].nearest.chance:.1f}"]]


def _interval(interval: Interval, form: str = "{:.2f}", between: str = "-") -> str:
    value, low, high = map(form.format, interval)
    return f"{value} ({low}{between}{high})"


def told(found: Findings) -> list[str]:
    """The table, and what a reader needs to trust it, line by line."""
    settings, videos = found.settings, len(found.videos)
    kind = "features of the trunk" if settings.kind == "features" else "embeddings"
    dims = tables.span(seen.dim for seen in found.models)
    said = [
        tables.layout(lines(found)), "",
        f"{found.dataset}, {found.split}: {videos} videos, {settings.clips} clips each; {kind} of the picture, {dims} "
        "numbers, at length 1; in brackets 95 % intervals over videos",
        f"deviation: standard deviation over the clips of a video, mean over the {dims} numbers, as in the paper; "
        "median over videos",
        "ratio: distance between clips of a video as a multiple of that between clips of two videos, root mean square; "
        "models can be compared by it, and not by deviations, which are small where all videos lie close together",
        f"nearest: {shown_as(found)}; how often the nearest other clip, by cosine, is of the same video",
        f"clips last {found.lasts:.2g} s and start {found.apart:.2g} s after one another (median over videos)"
        + (", so that neighbours show partly the same" if found.apart < found.lasts else ""),
    ]  # fmt: skip
    if found.too_short:
        said.append(f"{found.too_short} videos are left out: they offer fewer than {settings.clips} different starts")
    if learned := [seen.model for seen in found.models if seen.trained_on == "these"]:
        said.append(f"{', '.join(learned)}: learned from these videos")
    return [*said, *dict.fromkeys(seen.note for seen in found.models if seen.note)]


def shown_as(found: Findings) -> str:
    """The videos on the planes in words."""
    if found.of_class:
        return f"{len(found.shown)} videos of the class '{found.of_class}'"
    why = "no class has two of the videos" if found.labelled else "the videos have no labels"
    return f"{len(found.shown)} videos drawn from all, as {why}"
