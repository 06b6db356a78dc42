"""Records of factors, one per factor and network of a model, as tables and as a summary."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from gdt.common.errors import UserError, format_range
from gdt.eval.factors.promises import ACCURACY, ACCURACY_RANDOM, DISTANCE, DISTANCE_RANDOM, RULES, Metrics
from gdt.eval.metrics import Metric, difference
from gdt.eval.record import FactorResult, Record
from gdt.eval.tables import Lines, layout, wrap

TRUNK, EMBEDDING = "trunk", "embedding"
LAYERS = (TRUNK, EMBEDDING)
"""Where features are taken: pooled trunk, and output of the head."""


def flatten(layers: dict[str, Metrics]) -> dict[str, Metric]:
    """Metrics of all layers, by their names in records."""
    return {f"{layer} {name}": metric for layer, metrics in layers.items() for name, metric in metrics.items()}


def metrics_at(layer: str, record: Record) -> Metrics:
    """The metrics at a layer; empty if it was not measured. Raises UserError for records of an earlier version."""
    if not any(name.endswith(f" {ACCURACY}") for name in record.metrics):
        raise UserError(
            f"the factors of {record.model} were measured by an earlier version; run 'gdt factors --ckpt "
            f"{record.checkpoint}' again"
        )
    start = f"{layer} "
    return {name.removeprefix(start): metric for name, metric in record.metrics.items() if name.startswith(start)}


def factor_of(record: Record) -> FactorResult:
    assert record.factor is not None, record.protocol
    return record.factor


def row_name(record: Record) -> str:
    """The factor and the network."""
    return f"{factor_of(record).name} ({_network(record)})"


def _network(record: Record) -> str:
    network = factor_of(record).network
    return "both" if " and " in network else network


def by_model(records: Iterable[Record]) -> dict[str, list[Record]]:
    """The records of each model, in order."""
    models: dict[str, list[Record]] = {}
    for record in records:
        models.setdefault(record.model, []).append(record)
    return models


def mean_over_seeds(records: Sequence[Record]) -> list[Record]:
    """One record per model and factor: means over seeds, with the lowest and the highest bound.

    A promise is kept if every seed keeps it, and broken if one breaks it. Other fields are those of the first seed.
    """
    groups: dict[tuple[str, str], list[Record]] = {}
    for model, own in by_model(records).items():
        for record in own:
            groups.setdefault((model, row_name(record)), []).append(record)
    averaged = []
    for group in groups.values():
        factor = factor_of(group[0])
        every, needed = {factor_of(record).kept for record in group}, max(factor_of(record).needed for record in group)
        kept = next((one for one in (False, None) if one in every), True) if is_promised(factor) else None
        names = dict.fromkeys(name for record in group for name in record.metrics)
        means = {name: _mean([r.metrics[name] for r in group if name in r.metrics]) for name in names}
        averaged.append(replace(group[0], factor=replace(factor, kept=kept, needed=needed), metrics=means))
    return averaged


def _mean(metrics: Sequence[Metric]) -> Metric:
    mean = metrics[0]._replace(value=float(np.mean([each.value for each in metrics])), spread=0.0)
    if mean.bounds is None:
        return mean
    return mean._replace(bounds=(min(each.low for each in metrics), max(each.high for each in metrics)))


def table_of(layer: str, records: Sequence[Record]) -> Lines:
    """The table of a layer, headings first, with promises for embeddings; without rows if it was not measured."""
    promised = ["promised"] if layer == EMBEDDING else []
    lines = [["factor", "network", *promised, "distance", "random", "accuracy %", "random", "chance"]]
    for record in records:
        factor, metrics = factor_of(record), metrics_at(layer, record)
        if layer == EMBEDDING:
            if not metrics:
                continue
            promise = {"not varied": "·", "not known": "unknown"}.get(factor.promise, str(factor.promise))
            promised = [f"{promise} {verdict_sign(factor)}".rstrip()]
        lines.append([factor.name, _network(record), *promised, *(_cells(metrics) if metrics else ["—"] * 5)])
    return lines


def _cells(metrics: Metrics) -> list[str]:
    distances = [m.text("{:.2f}") if (m := metrics.get(name)) else "—" for name in (DISTANCE, DISTANCE_RANDOM)]
    accuracies = [metrics[name].text() for name in (ACCURACY, ACCURACY_RANDOM)]
    return [*distances, *accuracies, f"{metrics[ACCURACY].chance:.1f}"]


def describe_model(records: Sequence[Record]) -> list[str]:
    """The tables of a model with notes on how they were measured, at most 100 columns wide."""
    first = records[0]
    seen = {"others": "", "these": ", which the model was trained on", "unknown": ""}[first.trained_on]
    lines = [_heading(first), *(f"{name}: {text}" for name, text in first.details.items())]
    if len(embeddings := table_of(EMBEDDING, records)) > 1:
        lines += ["", "Embeddings, which the loss compares:", "", _in_two(embeddings)]
    lines += ["", "Features of the trunk:", "", _in_two(table_of(TRUNK, records)), ""]
    lines += [
        f"{_videos(records)}{seen}, {first.settings['starts']} clips each; in brackets 95 % intervals over videos",
        "distance: between features of a clip at two values of the factor, divided by the distance between videos",
        f"accuracy: of a linear probe for the factor's value on held-out videos ({first.settings['cv_folds']} folds); "
        "for time_shift, of the third of the video; for video, share of clips whose nearest clip at another time is of "
        "the same video",
        "random: the same network with random weights; · the factor is not varied, so nothing is promised",
    ]
    if any(factor_of(record).name == "modality" for record in records):
        lines.append("modality: only embeddings are comparable between networks")
    lines += first.notes
    if checked := [record for record in records if is_promised(factor_of(record))]:
        lines += RULES
        for record in checked:
            factor = factor_of(record)
            promise = f"{row_name(record)} is {factor.promise}"
            if factor.kept is False:
                lines.append(f"broken: {promise}, but {factor.against}")
            elif factor.kept is None:
                lines.append(f"{_too_few([record], factor.needed)}: {promise}; {factor.against}")
        if all(factor_of(record).kept for record in checked):
            lines.append("every promise is kept")
    return [line if "\n" in line else wrap(line) for line in lines]  # tables have several lines


def _in_two(lines: Lines) -> str:
    """A table of distances above one of accuracies, since both together exceed 100 columns."""
    return "\n\n".join(
        layout(part) for part in ([line[:-3] for line in lines], [line[:2] + line[-3:] for line in lines])
    )


def is_promised(factor: FactorResult) -> bool:
    """Whether the composition promises something about the factor that was tested."""
    return factor.kept is not None or factor.needed > 0


def verdict_sign(factor: FactorResult) -> str:
    """! for a broken promise, ? if there are too few videos to tell."""
    return "!" if factor.kept is False else "?" if factor.kept is None and factor.needed else ""


def _too_few(records: Sequence[Record], needed: int) -> str:
    """How many videos there are and are needed. Raising --videos is no use if the split has fewer than that."""
    queries = [record.queries for record in records]
    split_is_used_up = min(queries) < records[0].settings["videos"]
    advice = "raise --videos"
    if split_is_used_up:
        advice = "use --split train" if records[0].query_split != "train" else "add videos"
    return f"too few videos to tell ({format_range(queries)}; about {needed:,} are needed: {advice})"


def summarise_model(records: Sequence[Record]) -> str:
    """What a model encodes compared with random weights, and which promises are broken, in a few lines."""
    better: list[str] = []
    worse: list[str] = []
    broken: list[str] = []
    unclear: list[str] = []
    shift: list[str] = []
    for record in records:
        factor, metrics = factor_of(record), metrics_at(EMBEDDING, record) or metrics_at(TRUNK, record)
        accuracy, random = metrics[ACCURACY], metrics[ACCURACY_RANDOM]
        if factor.name == "time_shift":
            distance, untrained = metrics[DISTANCE].value, metrics[DISTANCE_RANDOM].value
            shift.append(f"{_network(record)} {distance:.2f} (random {untrained:.2f})")
        _, low, high = difference([accuracy], [random])
        if low > 0 or high < 0:
            numbers = f"{row_name(record)} {accuracy.value:.1f} % (random {random.value:.1f} %)"
            (better if low > 0 else worse).append(numbers)
        if sign := verdict_sign(factor):
            (broken if sign == "!" else unclear).append(f"{row_name(record)} {factor.promise}")
    lines = [
        ("classified better than with random weights", better),
        ("classified worse (the aim if invariant)", worse),
        ("distance of the time shift (1: as far as another video; low: features encode what stays)", shift),
    ]
    if any(is_promised(factor_of(record)) for record in records):
        lines.append(("broken promises", broken))
        shifts = [f for f in map(factor_of, records) if f.name == "time_shift" and f.promise == "distinctive"]
        if any(factor.kept is False for factor in shifts) and records[0].query_split != "train":
            lines.append(("time_shift", ["the videos of this split may change too little; try --split train"]))
    if unclear:
        lines.append((_too_few(records, max(factor_of(r).needed for r in records)), unclear))
    text = [f"{_heading(records[0])}; {_videos(records)}"]
    text += [f"  {title}: {', '.join(names) or 'none'}" for title, names in lines]
    return "\n".join(wrap(line, "    ") for line in text)


def _heading(first: Record) -> str:
    return f"{first.model}: {first.preset}, {first.step} steps, {first.checkpoint}"


def _videos(records: Sequence[Record]) -> str:
    n = format_range(record.queries for record in records)
    return f"{n} {records[0].query_split} videos of {records[0].dataset}"
