"""`gdt report`: one HTML file without scripts that needs no network."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import jinja2
from tqdm import tqdm

from gdt.common.files import write_text
from gdt.eval import runs
from gdt.eval.deviation import deviation
from gdt.eval.drawing import data_uri
from gdt.eval.examples import by_features, by_sound
from gdt.eval.page.collect import Model, attempt, collect
from gdt.eval.page.figures import CURVES, curves, histograms, maps, thumbnails
from gdt.eval.page.settings import Report
from gdt.eval.results import Result
from gdt.eval.tables import pivot
from gdt.pipeline.shards.index import Index
from gdt.train.checkpoint import load_model


def command(settings: Report) -> str:
    """Write the page; returns where it is."""
    return f"report: {report(settings)}"


def report(settings: Report) -> Path:
    """Write the page; returns its path. Raises UserError if there are no runs and results."""
    found = collect(settings.runs)
    unread, shown = found.unread, found.models[: settings.models]
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("gdt.eval.page", ""), autoescape=True, trim_blocks=True, lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )  # fmt: skip
    text = environment.get_template("page.html.j2").render(
        root=settings.runs,
        results=[
            (folder, attempt(str(folder), unread, partial(pivot, rows, bool(bars(folder)))) or [], bars(folder))
            for folder, rows in found.results.items()
        ],
        models=[examples(model, settings.runs) for model in tqdm(shown, "report", unit="model")],
        others=len(found.models) - len(shown),
        pretraining=runs.table(found.runs),
        curves={
            name: curves([run for run in found.runs if run.settings.dataset == name][:CURVES])
            for name in sorted({run.settings.dataset for run in found.runs})
        },
        most=CURVES,
        unread=unread,
    )
    write_text(settings.path, text)
    return settings.path


def bars(folder: Path) -> str:
    """The picture of an ablation, if the folder has one."""
    path = folder / "table.png"
    return data_uri(path.read_bytes(), "png") if path.is_file() else ""


def examples(model: Model, root: Path) -> dict[str, Any]:
    """All figures of a model, and the reasons for missing ones."""
    missing: list[str] = []
    parts = dict.fromkeys(("found", "neighbours", "maps", "deviation")) | {"name": model.name, "missing": missing}
    if (trained := attempt("examples", missing, lambda: load_model(model.checkpoint))) is None:
        return parts
    row = next((row for row in reversed(model.results) if row.protocol == "retrieval" and _of_video(row)), None)
    index = attempt("videos", missing, lambda: Index.open(row.shards if row else trained.settings.shard_folder))
    if index is None:
        return parts
    split = row.query_split if row else "test" if "test" in index.split else "val"
    found = attempt(
        "nearest neighbours", missing, lambda: by_features(row, root) if row else by_sound(trained, index, split)
    )
    if found:
        parts |= {"found": found, "neighbours": attempt("pictures", missing, lambda: thumbnails(found))}
        parts["maps"] = attempt("PCA and t-SNE", missing, lambda: maps(found))
    parts["deviation"] = attempt("deviation", missing, lambda: histograms(deviation(trained, index, split)))
    return parts


def _of_video(row: Result) -> bool:
    return row.settings["modalities"] == ["video"]
