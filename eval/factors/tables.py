"""Records of factors, one per factor and network of a model, as tables and as a summary."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from gdt.common.errors import UserError
from gdt.eval.factors.promises import ACCURACY, ACCURACY_RANDOM, DISTANCE, DISTANCE_RANDOM, RULES, Metrics
from gdt.eval.metrics import Metric, difference
from gdt.eval.record import Factor, Record
from gdt.eval.tables import Lines, format_range, layout, wrap

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
            f"the factors of {record.model} were measured by an earlier version; run 'gdt eval factors --ckpt "
            f"{record.checkpoint}' again"
        )
    start = f"{layer} "
    return {name.removeprefix(start): metric for name, metric in record.metrics.items() if name.startswith(start)}


def factor_of(record: Record) -> Factor:
    assert record.factor is not None, record.protocol
    return record.factor


def row_name(record: Record) -> str:
    """The factor and the network."""
    return f"{factor_of(record).name}, {_network(record)}"


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

    A promise is kept if every seed keeps it. Other fields are those of the first seed.
    """
    groups: dict[tuple[str, str], list[Record]] = {}
    for model, own in by_model(records).items():
        for record in own:
            groups.setdefault((model, row_name(record)), []).append(record)
    averaged = []
    for group in groups.values():
        factor = factor_of(group[0])
        kept = None if factor.kept is None else all(factor_of(record).kept for record in group)
        names = dict.fromkeys(name for record in group for name in record.metrics)
        means = {name: _mean([r.metrics[name] for r in group if name in r.metrics]) for name in names}
        averaged.append(replace(group[0], factor=replace(factor, kept=kept), metrics=means))
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
            promise = {"not varied": "·", "not known": "?"}.get(factor.promise, str(factor.promise))
            promised = [promise + (" !" if factor.kept is False else "")]
        lines.append([factor.name, _network(record), *promised, *(_cells(metrics) if metrics else ["—"] * 5)])
    return lines


def _cells(metrics: Metrics) -> list[str]:
    distances = [m.text("{:.2f}") if (m := metrics.get(name)) else "—" for name in (DISTANCE, DISTANCE_RANDOM)]
    accuracies = [metrics[name].text() for name in (ACCURACY, ACCURACY_RANDOM)]
    return [*distances, *accuracies, f"{metrics[ACCURACY].chance:.1f}"]


def describe_model(records: Sequence[Record]) -> list[str]:
    """The tables of a model, and notes on how they were measured, as lines."""
    first = records[0]
    seen = {"others": "", "these": ", which the model was trained on", "unknown": ""}[first.trained_on]
    lines = [_heading(first), *(f"{name}: {how}" for name, how in first.how.items())]
    if len(embeddings := table_of(EMBEDDING, records)) > 1:
        lines += ["", "Embeddings, which the loss compares:", "", layout(embeddings, keys=2)]
    lines += ["", "Features of the trunk:", "", layout(table_of(TRUNK, records), keys=2), ""]
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
    if any(factor_of(record).kept is not None for record in records):
        lines += RULES
        broken = [record for record in records if factor_of(record).kept is False]
        for record in broken:
            factor = factor_of(record)
            lines.append(f"broken: {factor.name} ({_network(record)}) is {factor.promise}, but {factor.against}")
        lines += [] if broken else ["every promise is kept"]
    return lines


def summarise_model(records: Sequence[Record]) -> str:
    """What a model encodes compared with random weights, and which promises are broken, in a few lines."""
    better: list[str] = []
    worse: list[str] = []
    broken: list[str] = []
    for record in records:
        factor, metrics = factor_of(record), metrics_at(EMBEDDING, record) or metrics_at(TRUNK, record)
        accuracy, random = metrics[ACCURACY], metrics[ACCURACY_RANDOM]
        _, low, high = difference([accuracy], [random])
        if low > 0 or high < 0:
            numbers = f"{_short(record)} {accuracy.value:.1f} % (random {random.value:.1f} %)"
            (better if low > 0 else worse).append(numbers)
        if factor.kept is False:
            broken.append(f"{_short(record)} {factor.promise}")
    lines = [("classified better than with random weights", better), ("worse", worse)]
    if any(factor_of(record).kept is not None for record in records):
        lines.append(("broken promises", broken))
    text = [f"{_heading(records[0])}; {_videos(records)}"]
    text += [f"  {title}: {', '.join(names) or 'none'}" for title, names in lines]
    return "\n".join(wrap(line, "    ") for line in text)


def _short(record: Record) -> str:
    return f"{factor_of(record).name} ({_network(record)})"


def _heading(first: Record) -> str:
    return f"{first.model}: {first.preset}, {first.step} steps, {first.checkpoint}"


def _videos(records: Sequence[Record]) -> str:
    n = format_range(record.queries for record in records)
    return f"{n} videos of {records[0].dataset}, {records[0].query_split}"
