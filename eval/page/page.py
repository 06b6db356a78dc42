"""`gdt report`: one HTML file without scripts that needs no network."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tqdm import tqdm

from gdt.common.errors import UserError, explain_out_of_memory, first_line
from gdt.common.files import DAMAGE, write_text
from gdt.eval import results
from gdt.eval.drawing import data_uri
from gdt.eval.page import runs
from gdt.eval.page.deviation import deviation
from gdt.eval.page.neighbours import by_features, by_sound
from gdt.eval.page.runs import CURVES, LoggedRun, curves
from gdt.eval.results import RANDOM, RESULTS, Result, current
from gdt.eval.settings import Report
from gdt.eval.subjects import local_shards, pretraining_shards
from gdt.eval.tables import pivot
from gdt.eval.templates import filled
from gdt.pipeline.shards.index import Index
from gdt.train.checkpoint import load_model
from gdt.train.models.own import Makers, makers
from gdt.train.published import located
from gdt.train.run import CHECKPOINT, METRICS, home_of


class EvaluatedRun(NamedTuple):
    """A checkpoint with its results."""

    name: str
    checkpoint: Path
    results: list[Result]

    @property
    def score(self) -> float:
        """R@1 of retrieval, which ranks models; -1 without it."""
        scores = (row.metrics["R@1"].value for row in reversed(self.results) if row.protocol == "retrieval")
        return next(scores, -1.0)


def report(settings: Report) -> str:
    """Write the page; returns where it is. Raises UserError if there are no runs and results."""
    root = settings.runs
    page = root / "report.html"
    unread: list[str] = []
    logged: list[LoggedRun] = []
    for path in sorted(root.rglob(METRICS)):
        with noting(str(path.parent), unread, *DAMAGE):
            logged.append(runs.read(path.parent, root))
    logged.sort(key=lambda run: run.started, reverse=True)
    every = {path.parent: current(results.read(path)) for path in sorted(root.rglob(RESULTS))}
    evaluated = {folder: rows for folder, rows in every.items() if rows}
    if not (logged or evaluated or unread):
        raise UserError(
            f"{root} has no runs or evaluations; set --runs to the folder of your runs, or start one with 'gdt "
            "pretrain'"
        )
    bars = {folder: folder / "table.png" for folder in evaluated if (folder / "table.png").is_file()}  # of ablations
    ranked = ranked_runs(logged, evaluated)
    given = makers(settings.own_networks.given)
    tables = {}
    for folder, rows in evaluated.items():
        ablation = folder in bars
        tables[folder] = pivot(rows, by_row=ablation, answers={} if ablation else results.all_answers(folder, rows))
    datasets = sorted({run.settings.dataset for run in logged})
    text = filled(
        "page/page.html.j2",
        root=root,
        results=tables,
        bars={folder: data_uri(path.read_bytes(), "png") for folder, path in bars.items()},
        models=[examples(model, page, given) for model in tqdm(ranked[: settings.models], "report", unit="model")],
        others=len(ranked[settings.models :]),
        verdicts={run.name: run.verdict for run in logged if run.verdict},
        curves={name: curves([run for run in logged if run.settings.dataset == name][:CURVES]) for name in datasets},
        most=CURVES,
        unread=unread,
    )
    write_text(page, text)
    return f"report: {page}"


@contextmanager
def noting(what: str, unread: list[str], *others: type[Exception]) -> Iterator[None]:
    """Note what the user can mend of what is read or computed inside, and go on: the page shows the rest.

    So UserError, OSError, no memory and `others`: faults of this program end it.
    """
    caught: tuple[type[Exception], ...] = (UserError, OSError, *others)
    try:
        with explain_out_of_memory("use a machine with more memory"):
            yield
    except caught as error:
        unread.append(f"{what}: {first_line(error)}")


def ranked_runs(logged: Sequence[LoggedRun], evaluated: Mapping[Path, Sequence[Result]]) -> list[EvaluatedRun]:
    """All models whose checkpoint is there, the best first."""
    by_home = {run.folder.resolve(): EvaluatedRun(run.name, run.folder / CHECKPOINT, []) for run in logged}
    for row in (row for rows in evaluated.values() for row in rows if row.preset != RANDOM):
        file = located(row.checkpoint)
        if file is None:
            continue
        path = file.resolve()
        home = home_of(path)
        by_home.setdefault(home, EvaluatedRun(row.model, path, [])).results.append(row)
    there = (model for model in by_home.values() if model.checkpoint.exists())
    return sorted(there, key=lambda model: (-model.score, model.name))


def examples(model: EvaluatedRun, page: Path, given: Makers) -> dict[str, Any]:
    """The figures of a model, maybe with one of the given networks, and the reasons for missing ones."""
    missing: list[str] = []
    parts: dict[str, Any] = {"name": model.name, "missing": missing, "neighbours": None, "deviation": ""}
    asked = {tuple(row.settings["modalities"]): row for row in model.results if row.protocol == "retrieval"}
    row = asked.get(("video",)) or asked.get(("audio",))
    with noting("examples", missing):
        trained = load_model(model.checkpoint, given)
        evaluated = local_shards(row.shards, f"{model.name} was evaluated on") if row else None
        index = Index.open(evaluated or pretraining_shards(trained, model.checkpoint))
        held_out = "test" if "test" in index.split else "val"
        split = row.query_split if row else held_out
        with noting("nearest neighbours", missing):
            found = by_features(row, index, page) if row else by_sound(trained, index, page, split)
            parts["neighbours"] = found
        with noting("deviation", missing):
            sound = row is not None and list(row.settings["modalities"]) == ["audio"]
            parts["deviation"] = deviation(trained, index, split, ["audio"] if sound else trained.model.modalities)
    return parts
