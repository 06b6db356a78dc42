"""The page: everything that was collected and drawn, in one HTML file that needs no network and runs no script."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import jinja2
from tqdm import tqdm

from gdt.common.errors import UserError, first_line
from gdt.common.files import write_text
from gdt.eval.page.collect import Collected, Found, Run, Unread, collect
from gdt.eval.page.curves import curves
from gdt.eval.page.deviations import deviations
from gdt.eval.page.features import Looked, look
from gdt.eval.page.models import Heard, Leaves, batch_of, listen, loaded, told
from gdt.eval.page.settings import Report
from gdt.eval.page.subjects import Subject, chosen, subjects
from gdt.eval.page.tables import compared, confusion_shade, data_tables, runs_table
from gdt.eval.settings.downstream import LABELLED
from gdt.pipeline.shards.index import Index
from gdt.pipeline.shards.layout import shard_folder
from gdt.train.provenance import git_commit

T = TypeVar("T")


@dataclass
class Drawn:
    """A model on the page."""

    name: str
    told: str = ""
    leaves: Leaves | None = None
    looked: Looked | None = None
    heard: Heard | None = None
    missing: list[Unread] = field(default_factory=list)


def report(settings: Report) -> Path:
    """Write the page, and give its path. Raises UserError where there is nothing to show, or no such model."""
    collected = collect(settings.runs)
    everyone = subjects(collected)
    drawn = chosen(everyone, settings.figures_of, settings.models)
    groups = sorted({run.dataset for run in collected.runs})
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("gdt.eval.page", ""), autoescape=True, trim_blocks=True, lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )  # fmt: skip
    tables = []
    for evaluation in collected.evaluations:
        with_tables = _attempt(str(evaluation.folder), collected.unread, lambda e=evaluation: compared(e))  # type: ignore[misc]
        tables.append((evaluation.folder, with_tables or []))
    text = environment.get_template("page.html.j2").render(
        settings=settings,
        runs=runs_table(collected.runs, settings.smoothing) if collected.runs else [],
        evaluations=tables,
        curves=[
            (name, *curves([run for run in collected.runs if run.dataset == name], f"d{k}", settings.smoothing))
            for k, name in enumerate(groups)
        ],
        models=[_drawn(subject, settings, f"m{k}") for k, subject in enumerate(tqdm(drawn, "report", unit="model"))],
        figures=[
            (folder, *shown)
            for k, (folder, found) in enumerate(collected.figures)
            if (shown := _attempt(str(folder), collected.unread, partial(deviations, found, f"v{k}"))) is not None
        ],
        data=[(data, *data_tables(data)) for data in collected.data],
        unread=collected.unread,
        missing=_missing(settings, collected, everyone, drawn),
        shade=confusion_shade,
        commit=git_commit(),
    )
    settings.path.parent.mkdir(parents=True, exist_ok=True)
    write_text(settings.path, text)
    return settings.path


def _drawn(subject: Subject, settings: Report, key: str) -> Drawn:
    """Everything there is to draw of a model; what cannot be drawn is said."""
    drawn = Drawn(subject.name)

    def attempt(what: str, make: Callable[[], T]) -> T | None:
        return _attempt(what, drawn.missing, make)

    index = attempt("pictures of videos", lambda: _index(subject))
    trained = attempt("the model", lambda: loaded(subject))
    labelled = _with_features(subject)
    if trained is not None and subject.checkpoint is not None:
        digest, drawn.told = told(subject.checkpoint, subject, trained)
        if labelled is not None and labelled.result.weights != digest:
            why = f"the evaluation is of weights {labelled.result.weights[:8]}; 'make eval' evaluates these"
            drawn.missing.append(Unread("neighbours by the weights in the checkpoint", why))
        drawn.leaves = attempt("a training batch", lambda: batch_of(trained, settings, key))
    if index is not None and labelled is not None:
        drawn.looked = attempt("nearest neighbours, confusion, PCA and t-SNE",
                               lambda: look(labelled, index, settings, key))  # fmt: skip
    elif index is not None and trained is not None:
        split = subject.found[0].result.query_split if subject.found else "test" if "test" in index.split else "val"
        drawn.heard = attempt("sound that finds pictures", lambda: listen(trained, index, split, settings, key))
    return drawn


def _index(subject: Subject) -> Index:
    if subject.shards is None:
        raise UserError(f"it is not known of which shards {subject.name} is")
    return Index.open(subject.shards)


def _with_features(subject: Subject) -> Found | None:
    """The latest result whose features are stored, by retrieval if that was done."""
    some = [
        found for found in subject.found if found.result.protocol in LABELLED and found.result.protocol != "finetune"
    ]
    return min(some, key=lambda found: found.result.protocol != "retrieval", default=None)


def _attempt(what: str, missing: list[Unread], make: Callable[[], T]) -> T | None:
    try:
        return make()
    except Exception as error:  # whatever is wrong with one figure, the page has the others
        kind = "" if isinstance(error, UserError | OSError) else f"{type(error).__name__}: "
        missing.append(Unread(what, f"{kind}{first_line(error)}"))
        return None


def _missing(
    settings: Report, collected: Collected, everyone: list[Subject], drawn: list[Subject]
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
            arguments = {"ARGS": f"--shards {shlex.quote(str(subject.shards))}"} if elsewhere else {}
            add(f"{subject.name} is not evaluated yet", "make eval", DATASET=subject.dataset, CKPT=subject.checkpoint,
                **arguments)  # fmt: skip
        if subject not in drawn:
            add(f"{subject.name} is not drawn", "make report", RUNS=settings.runs,
                ARGS=f"--figures-of {shlex.quote(subject.name)}")  # fmt: skip
    blind = [run.name for run in collected.runs if not run.probes and _is_cross_modal(run)]
    if blind:
        add(f"no probes of recall across modalities while {', '.join(blind)} learned", "make pretrain",
            ARGS="--probe-every 500")  # fmt: skip
    for data in collected.data:
        if data.counted is None:
            add(f"{data.folder} has no summary of {data.dataset}", "make preprocess", DATASET=data.dataset)
    return said


def _is_cross_modal(run: Run) -> bool:
    return run.settings is not None and not run.settings.factors_from and len(run.settings.composition.modalities) > 1
