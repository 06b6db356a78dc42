"""The page: everything that was collected and drawn, in one HTML file that needs no network and runs no script."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import jinja2
import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from tqdm import tqdm

from gdt.common.files import write_text
from gdt.eval.ablation.compare import table_of
from gdt.eval.drawing import Key, keys, svg
from gdt.eval.page.collect import Collected, Found, Run, Subject, attempt, chosen, collect, subjects
from gdt.eval.page.models import Plot, drawn, short_commit
from gdt.eval.page.settings import Report
from gdt.eval.protocols import PROTOCOLS
from gdt.eval.record import RANDOM, Record, format_details
from gdt.eval.tables import Lines, Table, build_tables
from gdt.pipeline.shards.layout import shard_folder
from gdt.studies.figures.pictures import TITLES, histogram, marks
from gdt.studies.figures.pictures import lines as figure_lines
from gdt.train.provenance import git_commit

_POINTS = 1000
"""At most so many of a curve are drawn; more cannot be seen."""
_CURVES = {
    "loss": "loss (equation 1)",
    "clips_per_second": "video clips per second",
    "data_wait": "waiting for data, %",
}
_TRAINED = {"others": "other videos", "these": "these very videos", "unknown": "not known"}


def report(settings: Report) -> Path:
    """Write the page, and give its path. Raises UserError where there is nothing to show, or no such model."""
    found = collect(settings.runs)
    unread, everyone = found.unread, subjects(found)
    shown = chosen(everyone, settings.figures_of, settings.models)
    groups = sorted({run.dataset for run in found.runs})
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("gdt.eval.page", ""), autoescape=True, trim_blocks=True, lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )  # fmt: skip
    text = environment.get_template("page.html.j2").render(
        settings=settings,
        runs=runs_table(found.runs, settings.smoothing) if found.runs else [],
        evaluations=[
            (folder, attempt(str(folder), unread, partial(compared, folder, rows)) or [])
            for folder, rows in found.evaluations.items()
        ],
        curves=[
            (name, *curves([run for run in found.runs if run.dataset == name], f"d{k}", settings.smoothing))
            for k, name in enumerate(groups)
        ],
        models=[drawn(subject, settings, f"m{k}") for k, subject in enumerate(tqdm(shown, "report", unit="model"))],
        figures=[
            (folder, *plots)
            for k, (folder, records) in enumerate(found.figures.items())
            if (plots := attempt(str(folder), unread, partial(deviations, records, f"v{k}"))) is not None
        ],
        data=[(dataset, folder, *(counted or ([], []))) for (dataset, folder), counted in found.data.items()],
        unread=unread,
        missing=_missing(settings, found, everyone, shown),
        commit=git_commit(),
    )
    settings.path.parent.mkdir(parents=True, exist_ok=True)
    write_text(settings.path, text)
    return settings.path


class Compared(NamedTuple):
    """Records that were got in the same way, side by side."""

    lines: Lines
    said: list[str]
    alike: list[tuple[str, str]]
    """What could change the numbers and is the same for all of them: its name and value."""
    sources: Lines
    """What could change them and is not, a line for every record."""


def compared(folder: Path, found: Sequence[Found]) -> list[Compared]:
    """The tables of an evaluation.

    Where its models are runs in this very folder, rows are told by their presets, and are over their seeds.
    """
    rows = [row.record for row in found if row.record.model != RANDOM]
    own = all((folder / row.model / "eval").is_dir() and row.pretraining.factors_from is None for row in rows)
    made: list[Table] = []
    for records in _alike([row.record for row in found]):
        made += [table_of(records)] if rows and own else build_tables(records)
    return [Compared(table.lines, table.notes, *_sources(table)) for table in made]


def _alike(records: Sequence[Record]) -> list[list[Record]]:
    """Records that may stand in one table: of the same videos, labels and settings."""
    groups: dict[tuple[Any, ...], list[Record]] = {}
    for row in records:
        groups.setdefault(_settings(row), []).append(row)
    found = []
    for group in groups.values():
        labels: dict[tuple[str, int], set[str]] = {}
        for row in group:
            labels.setdefault((row.protocol, row.fold), set()).add(row.labels)
        if max(map(len, labels.values())) == 1:
            found.append(group)
        else:  # labels have changed in between
            found += [[row for row in group if row.labels == one] for one in sorted({row.labels for row in group})]
    return found


def _settings(row: Record) -> tuple[Any, ...]:
    of_all = ("gallery_split", "gallery_per_class", "seed")
    names = [
        *of_all,
        *(name for name in PROTOCOLS[row.protocol].settings if name not in ("label", "folds", *of_all)),
    ]
    return (
        row.dataset, row.data, row.query_split, row.label, row.clips, row.how.get("precision"),
        row.protocol == "cross-modal", *(row.settings[name] for name in names),
    )  # fmt: skip


def _sources(table: Table) -> tuple[list[tuple[str, str]], Lines]:
    heads = ["row", "protocol", "fold", "seed", "steps", "weights", "data set", "data", "labels", "split", "asked",
             "searched", "how", "learned from", "device", "versions", "commit", "evaluated"]  # fmt: skip
    lines = [heads]
    for name, records in table.groups.items():
        for row in records:
            versions = ", ".join(f"{package} {version}" for package, version in row.provenance.versions.items())
            lines.append([
                name, row.protocol, str(row.fold or "-"), str(row.seed), str(row.step), row.weights[:8], row.dataset,
                row.data[:8], row.labels[:8], row.query_split, str(row.queries), str(row.gallery or row.queries),
                format_details(row.how), _TRAINED[row.trained_on], row.provenance.device, versions,
                short_commit(row.provenance.commit), row.provenance.started,
            ])  # fmt: skip
    columns = list(zip(*lines, strict=True))
    alike = [(head, cells[0]) for head, *cells in columns[1:] if set(cells) == {cells[0]} - {"-"}]
    kept = [columns[0], *(column for column in columns[1:] if len(set(column[1:])) > 1)]
    return alike, [list(line) for line in zip(*kept, strict=True)] if len(kept) > 1 else []


def runs_table(runs: Sequence[Run], smoothing: int) -> Lines:
    """A line for every run."""
    lines = [["run", "data set", "composition", "steps", "seed", "loss at the end", "clips/s", "data wait", "device",
              "commit", "started"]]  # fmt: skip
    for run in runs:
        settings, metrics = run.settings, run.metrics
        last = run.starts[-1].provenance if run.starts else None
        composition, seed, planned = "", "", ""
        if settings:
            composition, seed = settings.factors or settings.preset, str(settings.seed)
            planned = f" of {settings.steps}" if settings.steps else f"; {settings.epochs} epochs"
        steps, loss, speed, waiting = "", "", "", ""
        if len(metrics["step"]):
            steps = f"{metrics['step'][-1] + 1:.0f}{planned}"
            loss = f"{smooth(metrics['loss'], smoothing)[-1]:.3f}"
            speed = f"{median(metrics['clips_per_second']):.0f}"
            waiting = f"{100 * median(metrics['data_wait']):.0f} %"
        made = [last.device, short_commit(last.commit), last.started] if last else ["", "", ""]
        lines.append([run.name, run.dataset, composition, steps, seed, loss, speed, waiting, *made])
    return lines


def curves(runs: Sequence[Run], key: str, smoothing: int) -> tuple[list[tuple[str, Markup]], list[Key]]:
    """How runs of a data set learned: titles and plots of loss, speed, waiting and probes, and the legend of all."""
    shown = [run for run in runs if len(run.metrics["step"])]
    if not shown:
        return [], []
    legend = keys([run.name for run in shown])
    both = list(zip(shown, legend, strict=True))
    plots = []
    for name, title in _CURVES.items():
        scale = 100 if name == "data_wait" else 1
        series = [
            (*_thin(run.metrics["step"], smooth(scale * run.metrics[name], smoothing)), mark) for run, mark in both
        ]
        plots.append((title, _curve(f"{key}-{name}", title, series)))
    for name in dict.fromkeys(name for run in shown for name in run.probes if name.endswith(" R@1")):
        series = [(run.probes["step"], run.probes[name], mark) for run, mark in both if name in run.probes]
        title = f"probe: {name}, %"
        plots.append((title, _curve(f"{key}-{len(plots)}", title, series)))
    return plots, legend


def smooth(values: np.ndarray, width: int) -> np.ndarray:
    """Centred moving mean over `width` steps, over fewer at both ends: float64 [n]; of steps that are no numbers the
    mean of the others.
    """
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


def deviations(found: Sequence[Record], key: str) -> tuple[Lines, list[Plot]]:
    """How far time-shifted clips of a video lie apart, as `gdt study figures` has found it.

    A table, and two plots: the paper's histogram, and what can be compared between models.
    """
    of, plots = marks(found), []
    for name, title in TITLES.items():

        def draw(axes: Axes, name: str = name, title: str = title) -> None:
            histogram(axes, [record.per_video[name] for record in found], of)
            axes.set_xlabel(title)

        said = f"{found[0].queries} videos, {found[0].clips} clips each; dotted: medians"
        plots.append(Plot(title, svg(f"{key}-{name}", f"{title}: {said}", draw), said, of))
    return figure_lines(found), plots


def _missing(
    settings: Report, found: Collected, everyone: Sequence[Subject], shown: Sequence[Subject]
) -> list[tuple[str, str]]:
    """What is not on the page, and the command that puts it there."""
    said: list[tuple[str, str]] = []

    def add(what: str, command: str, **variables: Any) -> None:
        # what a shell takes as it stands, make would expand
        given = (f"{name}={shlex.quote(str(value).replace('$', '$$'))}" for name, value in variables.items())
        said.append((what, " ".join([command, *given])))

    for subject in everyone:
        run = subject.run
        if subject.checkpoint is None and run is not None:
            made = {"PRESET": run.settings.preset} if run.settings and not run.settings.factors else {}
            add(f"{subject.name} has no checkpoint", "make pretrain", DATASET=run.dataset, **made)
        elif not subject.found:
            elsewhere = subject.shards and subject.shards != shard_folder(subject.dataset)
            more = {"ARGS": f"--shards {shlex.quote(str(subject.shards))}"} if elsewhere else {}
            known = {"DATASET": subject.dataset, "CKPT": subject.checkpoint}
            add(f"{subject.name} is not evaluated yet", "make eval", **known, **more)
        if subject not in shown:
            drawing = f"--figures-of {shlex.quote(subject.name)}"
            add(f"{subject.name} is not drawn", "make report", RUNS=settings.runs, ARGS=drawing)
    if blind := [run.name for run in found.runs if not run.probes and _is_cross_modal(run)]:
        what = f"no probes of recall across modalities while {', '.join(blind)} learned"
        add(what, "make pretrain", ARGS="--probe-every 500")
    for (dataset, folder), counted in found.data.items():
        if counted is None:
            add(f"{folder} has no summary of {dataset}", "make preprocess", DATASET=dataset)
    return said


def _is_cross_modal(run: Run) -> bool:
    return run.settings is not None and not run.settings.factors_from and len(run.settings.composition.modalities) > 1
