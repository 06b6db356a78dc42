"""`gdt report`: one HTML file without scripts that needs no network."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import jinja2
import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from tqdm import tqdm

from gdt.common.commandline import gdt_command
from gdt.common.errors import plural
from gdt.common.files import write_text
from gdt.eval.ablation.compare import table_of
from gdt.eval.drawing import Key, data_uri, keys, svg
from gdt.eval.page.collect import Result, Run, Subject, attempt, choose, collect, subjects
from gdt.eval.page.models import eval_command, figures_of, short_commit
from gdt.eval.page.settings import Report
from gdt.eval.plots import bars
from gdt.eval.record import RANDOM, Record, budget, conditions, format_details
from gdt.eval.tables import Lines, Table, build_tables
from gdt.train.provenance import git_commit
from gdt.train.run import SETTINGS

_POINTS = 1000
"""Maximum drawn of a curve."""
_CURVES_MOST = 20
"""Maximum runs per plot, without --figures-of."""
_MISSING_MOST = 50
"""Maximum lines of missing results."""
_SMOOTHING = 21
"""Steps over which curves are averaged."""
_CURVES = {
    "loss": "training loss",
    "clips_per_second": "video clips per second",
    "data_wait": "waiting for data, %",
}
_TRAINED = {"others": "other videos", "these": "these videos", "unknown": "unknown"}


def command(settings: Report) -> str:
    """Write the page; returns where it is."""
    return f"report: {report(settings)}"


def report(settings: Report) -> Path:
    """Write the page; returns its path. Raises UserError if there are no runs, or for an unknown model."""
    collected = collect(settings.runs)
    unread, models = collected.unread, subjects(collected)
    shown = choose(models, settings.figures_of, settings.models)
    best = {result.features for result in shown[0].results} if shown else set()
    evaluations = sorted(  # those of the first model shown come first
        collected.evaluations.items(), key=lambda item: best.isdisjoint(result.features for result in item[1])
    )
    datasets = sorted({run.dataset for run in collected.runs})
    shared, runs = runs_table(collected.runs) if collected.runs else ([], [])
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("gdt.eval.page", ""), autoescape=True, trim_blocks=True, lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )  # fmt: skip
    text = environment.get_template("page.html.j2").render(
        settings=settings,
        smoothing=_SMOOTHING,
        runs=runs,
        of_all_runs=shared,
        evaluations=[
            (folder, *(attempt(str(folder), unread, partial(compare, folder, results)) or ([], "")))
            for folder, results in evaluations
        ],
        curves=[
            (name, *curves([run for run in collected.runs if run.dataset == name], f"d{k}", shown))
            for k, name in enumerate(datasets)
        ],
        models=[figures_of(model, settings, f"m{k}") for k, model in enumerate(tqdm(shown, "report", unit="model"))],
        unread=unread,
        missing=_missing(settings, models, shown),
        missing_most=_MISSING_MOST,
        commit=short_commit(commit) if (commit := git_commit()) else "",
    )
    write_text(settings.path, text)
    return settings.path


class Comparison(NamedTuple):
    """A table of comparable records."""

    lines: Lines
    brief: list[str]
    details: list[str]
    shared: list[tuple[str, str]]
    """Names and values of conditions that all records share."""
    conditions: Lines
    """The other conditions, a line per record."""
    caption: str


def compare(folder: Path, results: Sequence[Result]) -> tuple[list[Comparison], str]:
    """The tables of an evaluation, and the picture of an ablation as a data URI, else empty.

    If the models are runs in this folder, tables are by preset, averaged over seeds.
    """
    records = [result.record for result in results]
    trained = [row for row in records if row.model != RANDOM]
    is_ablation = trained and all(
        (folder / row.model / "eval").is_dir() and row.pretraining.factors_from is None for row in trained
    )
    groups = _comparable(records)
    if is_ablation:
        tables = [*map(table_of, _of_one_label(part for group in groups for part in _by_budget(group)))]
    else:
        tables = [table for group in groups for table in build_tables(group)]
    picture = data_uri(bars(records)) if is_ablation and len({row.equal for row in trained}) == 1 else ""
    return [
        Comparison(table.lines, table.brief, table.details, *_conditions(table), _caption(folder, table))
        for table in tables
    ], picture


def _caption(folder: Path, table: Table) -> str:
    """The data set, the label column, the folder and, of an ablation, what its rows share."""
    first = next(iter(table.groups.values()))[0]
    column = f", label {first.label}" if first.label not in ("", "label") else ""
    return "; ".join(filter(None, [f"Percent on {first.dataset}{column}", str(folder), table.title]))


def _of_one_label(groups: Iterable[list[Record]]) -> list[list[Record]]:
    """Groups of an ablation, in which all protocols of a label column and a budget are together."""
    merged: list[list[Record]] = []
    for group in groups:
        of, protocols = _table(group[-1]), {row.protocol for row in group}
        home = next(
            (own for own in merged if _table(own[-1]) == of and not protocols & {r.protocol for r in own}), None
        )
        if home is None:
            merged.append(home := [])
        home += group
    return merged


def _table(row: Record) -> tuple[Any, ...]:
    return row.label, row.protocol == "cross-modal", row.data, row.query_split, row.words, row.clips, budget(row)


def _comparable(records: Sequence[Record]) -> list[list[Record]]:
    """Groups of records of the same videos, labels and settings."""
    groups: dict[tuple[Any, ...], list[Record]] = {}
    for row in records:
        groups.setdefault(_settings(row), []).append(row)
    comparable = []
    for group in groups.values():
        labels: dict[tuple[str, int], set[str]] = {}
        for row in group:
            labels.setdefault((row.protocol, row.fold), set()).add(row.labels)
        if max(map(len, labels.values())) == 1:
            comparable.append(group)
        else:  # labels changed between evaluations
            comparable += [[row for row in group if row.labels == one] for one in sorted({row.labels for row in group})]
    return comparable


def _by_budget(records: Sequence[Record]) -> list[list[Record]]:
    """Groups of records that may be seeds and rows of one table; random weights are in all that they fit."""
    random = [row for row in records if row.model == RANDOM]
    groups: list[tuple[dict[str, Any], list[Record]]] = []
    for row in records:
        if row.model != RANDOM:
            own = budget(row)
            group = next((rows for shared, rows in groups if shared == own), None)
            if group is None:
                group = [each for each in random if budget(each).items() <= own.items()]
                groups.append((own, group))
            group.append(row)
    return [group for _, group in groups] or [random]


def _settings(row: Record) -> tuple[Any, ...]:
    values = conditions(row).items()
    return (
        row.protocol == "cross-modal",
        *(value for name, value in values if name not in ("protocol", "fold", "labels")),
    )


def _conditions(table: Table) -> tuple[list[tuple[str, str]], Lines]:
    heads = ["row", "protocol", "fold", "seed", "steps", "weights checksum", "data set", "data checksum",
             "labels checksum", "split", "queries", "gallery", "equal", "details", "trained on", "device", "versions",
             "commit", "evaluated"]  # fmt: skip
    lines = [heads]
    for name, records in table.groups.items():
        for row in records:
            versions = ", ".join(f"{package} {version}" for package, version in row.provenance["versions"].items())
            lines.append([
                name, row.protocol, str(row.fold or "-"), str(row.seed), str(row.step), row.weights[:8], row.dataset,
                row.data[:8], row.labels[:8], row.query_split, str(row.queries), str(row.gallery or row.queries),
                row.equal or "-", format_details(row.details),
                "-" if row.model == RANDOM else _TRAINED[row.trained_on], row.provenance["device"], versions,
                short_commit(row.provenance["commit"]), row.provenance["started"],
            ])  # fmt: skip
    shared, kept = _split_common(lines)
    return shared, kept if len(kept[0]) > 1 else []


def _split_common(lines: Lines, always: Iterable[str] = ()) -> tuple[list[tuple[str, str]], Lines]:
    """Names and values that all lines share, without empty ones, and the other columns, with the first and `always`."""
    names = {lines[0][0], *always}
    columns = list(zip(*lines, strict=True))
    kept = [column for column in columns if column[0] in names or len(set(column[1:])) > 1]
    shared = [
        (name, cells[0]) for name, *cells in columns if name not in names and set(cells) == {cells[0]} - {"-", ""}
    ]
    return shared, [list(line) for line in zip(*kept, strict=True)]


def runs_table(runs: Sequence[Run]) -> tuple[list[tuple[str, str]], Lines]:
    """Names and values that all runs share, and a table with a line per run; with one run, all is in the table."""
    lines = [["run", "data set", "composition", "steps", "seed", "final loss", "clips/s", "data wait", "device",
              "commit", "started"]]  # fmt: skip
    for run in runs:
        settings, metrics = run.settings, run.metrics
        composition, seed, planned = "", "", ""
        if settings:
            composition, seed = settings.factors or settings.preset, str(settings.seed)
            epochs = settings.planned_epochs
            planned = f"; {epochs} epochs" if epochs else f" of {settings.schedule(1).steps}"
        steps, loss, speed, waiting = "", "", "", ""
        if len(metrics["step"]):
            steps = f"{metrics['step'][-1] + 1:.0f}{planned}"
            loss = f"{smooth(metrics['loss'], _SMOOTHING)[-1]:.3f}"
            speed = f"{median(metrics['clips_per_second']):.0f}"
            waiting = f"{100 * median(metrics['data_wait']):.0f} %"
        start = run.start or dict.fromkeys(("device", "commit", "started"), "")
        lines.append([
            run.name, run.dataset, composition, steps, seed, loss, speed, waiting, start["device"],
            short_commit(start["commit"]), start["started"],
        ])  # fmt: skip
    return _split_common(lines, ["final loss", "clips/s", "data wait", "started"]) if len(runs) > 1 else ([], lines)


def curves(
    runs: Sequence[Run], key: str, models: Sequence[Subject] = ()
) -> tuple[list[tuple[str, Markup]], list[Key], str]:
    """Learning curves of runs on a data set: titles and plots, their legend, and which runs are left out.

    The runs of `models` are drawn, then the last started.
    """
    logged = [run for run in runs if len(run.metrics["step"])]
    if not logged:
        return [], [], ""
    chosen = {model.run.name for model in models if model.run}

    def rank(run: Run) -> tuple[bool, str]:
        return run.name in chosen, run.start.get("started", "")

    most = max(_CURVES_MOST, sum(run.name in chosen for run in logged))
    drawn = {run.name for run in sorted(logged, key=rank, reverse=True)[:most]}
    shown = [run for run in logged if run.name in drawn]
    left_out = f"{len(shown)} of {len(logged)} runs are drawn" if len(shown) < len(logged) else ""
    legend = keys([run.name for run in shown])
    both = list(zip(shown, legend, strict=True))
    plots = []
    for name, title in _CURVES.items():
        scale = 100 if name == "data_wait" else 1
        series = [
            (*_thin(run.metrics["step"], smooth(scale * run.metrics[name], _SMOOTHING)), mark) for run, mark in both
        ]
        plots.append((title, _curve(f"{key}-{name}", title, series)))
    for name in dict.fromkeys(name for run in shown for name in run.probes if name.endswith(" R@1")):
        series = [(run.probes["step"], run.probes[name], mark) for run, mark in both if name in run.probes]
        title = f"probe: {name}, %"
        plots.append((title, _curve(f"{key}-{len(plots)}", title, series)))
    return plots, legend, left_out


def smooth(values: np.ndarray, width: int) -> np.ndarray:
    """Centred moving mean over `width` steps, fewer at both ends, ignoring NaN: float64 [n]."""
    half, n = width // 2, len(values)
    known = np.isfinite(values)
    sums, counts = (np.concatenate([[0], np.cumsum(x)]) for x in (np.where(known, values, 0.0), known.astype(float)))
    low, high = np.maximum(np.arange(n) - half, 0), np.minimum(np.arange(n) + half + 1, n)
    with np.errstate(invalid="ignore"):
        mean: np.ndarray = (sums[high] - sums[low]) / (counts[high] - counts[low])
    return mean


def _thin(steps: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    chosen = np.unique(np.linspace(0, len(steps) - 1, min(len(steps), _POINTS)).round().astype(int))
    return steps[chosen], values[chosen]


def _curve(key: str, title: str, series: Sequence[tuple[np.ndarray, np.ndarray, Key]]) -> Markup:
    def draw(axes: Axes) -> None:
        for k, (steps, values, mark) in enumerate(series):
            every = max(1, len(steps) // 6)
            axes.plot(steps, values, color=mark.colour, linewidth=1.4, marker=mark.marker, markersize=4,
                      markevery=(k % every, every))  # fmt: skip
        axes.set_xlabel("step")
        axes.set_ylabel(title)
        if title != _CURVES["loss"]:
            axes.set_ylim(bottom=0)
        axes.grid(alpha=0.25, linewidth=0.6)

    last = "; ".join(f"{mark.name}: {values[-1]:.3g} at step {steps[-1]:.0f}" for steps, values, mark in series)
    return svg(key, f"{title} by step. At the end {last}.", draw)


def _missing(settings: Report, models: Sequence[Subject], shown: Sequence[Subject]) -> list[tuple[str, str]]:
    """What the page lacks, each with the command that adds it."""
    missing: list[tuple[str, str]] = []

    for model in models:
        run = model.run
        if model.checkpoint is None and run is not None:
            earlier = ["--config", run.folder / SETTINGS] if run.settings else []
            again = gdt_command("pretrain", *earlier, "--out", run.folder)
            missing.append((f"{model.name} has no checkpoint", again))
        elif not model.results and model.checkpoint:
            missing.append(
                (f"{model.name} is not evaluated", eval_command(model.checkpoint, model.dataset, model.shards))
            )
    if hidden := sum(model.checkpoint is not None and model not in shown for model in models):
        more = gdt_command("report", "--runs", settings.runs, "--models", len(models))
        missing.append((f"Figures of {plural(hidden, 'model')}", more))
    return missing
