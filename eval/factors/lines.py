"""Records of factors, one for each factor and network of a model, as tables, and what is to be said of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from gdt.eval.factors.promises import MOVES, MOVES_RANDOM, RULES, TOLD, TOLD_RANDOM, Seen
from gdt.eval.metrics import Metric
from gdt.eval.record import Factor, Record
from gdt.eval.tables import Lines, format_range, layout

TRUNK, EMBEDDING = "trunk", "embedding"
PLACES = (TRUNK, EMBEDDING)
"""Where features are taken: after the trunk, pooled, or after the head, at length 1."""
WORDS = {"video": "picture", "audio": "sound"}
"""Modalities by names that nobody takes for a factor's."""


def metrics(places: dict[str, Seen]) -> dict[str, Metric]:
    """What was seen in each place, as a record holds it."""
    return {f"{place} {name}": metric for place, seen in places.items() for name, metric in seen.items()}


def seen_in(place: str, record: Record) -> Seen:
    """What was seen in a place; nothing where features of it have nothing in common, or there is no such place."""
    start = f"{place} "
    return {name.removeprefix(start): found for name, found in record.metrics.items() if name.startswith(start)}


def factor_of(record: Record) -> Factor:
    """The factor that a record is of."""
    assert record.factor is not None, record.protocol
    return record.factor


def name_of(record: Record) -> str:
    """Of a row, in words: the factor, and the network."""
    return f"{factor_of(record).name}, {_network(record)}"


def _network(record: Record) -> str:
    return WORDS.get(factor_of(record).network, "both")


def by_model(records: Iterable[Record]) -> dict[str, list[Record]]:
    """The rows of each model, in order."""
    models: dict[str, list[Record]] = {}
    for record in records:
        models.setdefault(record.model, []).append(record)
    return models


def over_seeds(records: Sequence[Record]) -> list[Record]:
    """One record per model's name and factor: means over seeds, between the lowest and the highest bound.

    A promise is kept where every seed keeps it. What else is of one seed is of the first.
    """
    groups: dict[tuple[str, str], list[Record]] = {}
    for model, own in by_model(records).items():
        for record in own:
            groups.setdefault((model, name_of(record)), []).append(record)
    found = []
    for group in groups.values():
        factor = factor_of(group[0])
        kept = None if factor.kept is None else all(factor_of(record).kept for record in group)
        names = dict.fromkeys(name for record in group for name in record.metrics)
        means = {name: _mean([r.metrics[name] for r in group if name in r.metrics]) for name in names}
        found.append(replace(group[0], factor=replace(factor, kept=kept), metrics=means))
    return found


def _mean(metrics: Sequence[Metric]) -> Metric:
    mean = metrics[0]._replace(value=float(np.mean([each.value for each in metrics])), spread=0.0)
    if mean.bounds is None:
        return mean
    return mean._replace(bounds=(min(each.low for each in metrics), max(each.high for each in metrics)))


def embedding_lines(records: Sequence[Record]) -> Lines:
    """The table of a model's embeddings, beside what is promised of them; the heads first, which may be all."""
    lines = [["factor", "of", "promised", "moves", "random", "told %", "random", "chance"]]
    for record in records:
        if seen := seen_in(EMBEDDING, record):
            factor = factor_of(record)
            promise = {"not varied": "·", "not known": "?"}.get(factor.promise, str(factor.promise))
            promise += " !" if factor.kept is False else ""
            lines.append([factor.name, _network(record), promise, *_cells(seen)])
    return lines


def trunk_lines(records: Sequence[Record]) -> Lines:
    """The table of the trunks' features, of which nothing is promised; the heads first."""
    lines = [["factor", "of", "moves", "random", "told %", "random", "chance"]]
    for record in records:
        seen = seen_in(TRUNK, record)
        lines.append([factor_of(record).name, _network(record), *(_cells(seen) if seen else ["—"] * 5)])
    return lines


def _cells(seen: Seen) -> list[str]:
    moved = [f"{m.value:.2f} ({m.low:.2f}-{m.high:.2f})" if (m := seen.get(x)) else "—" for x in (MOVES, MOVES_RANDOM)]
    told = [f"{m.value:.1f} ({m.low:.1f}-{m.high:.1f})" for m in (seen[TOLD], seen[TOLD_RANDOM])]
    return [*moved, *told, f"{seen[TOLD].chance:.1f}"]


def told_of(records: Sequence[Record]) -> list[str]:
    """The tables of a model, and what a reader needs to trust them, line by line."""
    first = records[0]
    counts = format_range(record.queries for record in records)
    trained = {"others": "", "these": ", which it has learned from", "unknown": ""}[first.trained_on]
    lines = [f"{first.model}: {first.preset}, {first.step} steps, {first.checkpoint}"]
    lines += [f"{name}: {how}" for name, how in first.how.items()]
    if len(embeddings := embedding_lines(records)) > 1:
        lines += ["", "Embeddings, which the loss compares:", "", layout(embeddings)]
    lines += ["", "Features of the trunk:", "", layout(trunk_lines(records)), ""]
    lines += [
        f"{first.dataset}, {first.query_split}: {counts} videos{trained}, {first.settings['starts']} clips each; in "
        "brackets 95 % intervals over videos",
        "moves: distance between values of the factor, all else the same, as a multiple of that between videos; of "
        "features at length 1",
        f"told: by a linear probe, in videos that it has not seen ({first.settings['folds']} folds); of time_shift the "
        "third of the video; of video, how often the nearest clip of another time is of the same video",
        "random: random weights of the same network; · not varied, which promises nothing",
    ]
    factors = [(factor_of(record), _network(record)) for record in records]
    if any(factor.name == "modality" for factor, _ in factors):
        lines.append("modality: the two trunks have no feature in common, so that only embeddings can be compared")
    lines += first.notes
    if any(factor.kept is not None for factor, _ in factors):
        lines += RULES
        broken = [(factor, of) for factor, of in factors if factor.kept is False]
        lines += [f"not kept: {factor.name} of {of} is {factor.promise}, but {factor.against}" for factor, of in broken]
        lines += [] if broken else ["every promise is kept"]
    return lines
