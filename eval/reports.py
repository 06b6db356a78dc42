"""The tables of an evaluation, with all that a reader needs to trust them: who, against whom, how, and how sure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gdt.common.files import write_text
from gdt.eval import results as tables
from gdt.eval.paper import reported
from gdt.eval.results import RANDOM, Result, Table, sentence, to_json
from gdt.eval.settings.downstream import Protocol

_TABLES: tuple[tuple[Protocol, ...], ...] = (("cross-modal",), ("retrieval", "few-shot"), ("linear", "finetune"))
"""Which protocols share a table."""


def report(labels: Sequence[Sequence[Result]], out: Path) -> str:
    """Tables of results, each sequence of which was got in the same way, as text; in `out` also as LaTeX, CSV, JSON."""
    found_tables = [table for found in labels for table in tables_of(found)]
    found = [result for found in labels for result in _in_order(found)]
    parts = ["\n".join([tables.layout(table.lines), "", *table.said]) for table in found_tables]
    latex = [tables.to_latex(table.lines) for table in found_tables]
    text = "\n\n".join(parts)
    out.mkdir(parents=True, exist_ok=True)
    write_text(out / "table.txt", text + "\n")
    write_text(out / "table.tex", "\n\n".join(latex) + "\n")
    write_text(out / "results.csv", tables.to_csv(found))
    write_text(out / "results.json", to_json(list(found)) + "\n")
    return text


def tables_of(found: Sequence[Result]) -> list[Table]:
    """Tables of results that were got in the same way, beside what others report, with what is to be said of them."""
    made = []
    for protocols in _TABLES:
        groups = _rows([result for result in _in_order(found) if result.protocol in protocols])
        if not groups:
            continue
        first = next(iter(groups.values()))[0]
        others = {} if first.evaluation.label else reported(first.dataset, protocols, _samples(groups))
        said = _caption(groups) + tables.compared(groups)
        if any(column in values for values in others.values() for column in tables.columns(groups)):
            said.append("what others report is of their networks, clips and all classes of the data set")
        made.append(Table(groups, tables.rows(groups, f"% on {first.query_split}", others), said))
    return made


def _in_order(found: Sequence[Result]) -> list[Result]:
    return sorted(found, key=lambda result: (result.model != RANDOM, result.fold))


def _rows(found: Sequence[Result]) -> dict[str, list[Result]]:
    """Results by the name of their row: with the digest where several models have one name, and with the folds where a
    model lacks some that others have.
    """
    folds = {result.fold for result in found}
    rows: dict[str, list[Result]] = {}
    for result in found:
        digests = {other.weights for other in found if other.model == result.model}
        own = sorted({other.fold for other in found if other.weights == result.weights and other.model == result.model})
        name = result.model if len(digests) == 1 else f"{result.model} ({result.weights[:8]})"
        if set(own) != folds:
            name += f", fold{'s' if len(own) > 1 else ''} {' '.join(map(str, own))}"
        rows.setdefault(name, []).append(result)
    return rows


def _samples(groups: tables.Groups) -> int:
    return max(result.evaluation.train_samples for results in groups.values() for result in results)


def _caption(groups: tables.Groups) -> list[str]:
    """Who was asked and searched, what the brackets are, what the models are, and how it all came about."""
    every = [result for results in groups.values() for result in results]
    first = every[0]
    folds = sorted({result.fold for result in every} - {0})
    where = f"{first.dataset}, folds {' '.join(map(str, folds))}" if len(folds) > 1 else first.dataset
    where += f", fold {folds[0]}" if len(folds) == 1 else ""
    where += f", labels of the column {first.evaluation.label}" if first.evaluation.label else ""
    queries, galleries, short = ({getattr(r, name) for r in every} for name in ("queries", "gallery", "held"))
    against = f" against {tables.span(galleries)} videos" if max(galleries) else ""
    held = f"; {tables.span(short)} shorter than a clip, last frame held" if any(short) else ""
    classes = f", {tables.span({r.classes for r in every})} classes" if first.classes else ""
    brackets = "lowest and highest fold, of one fold the 95 % interval" if len(folds) > 1 else "95 % intervals"
    lines = [f"{where}: {tables.span(queries)} queries{against}{classes}; in brackets {brackets}{held}"]
    for name, results in groups.items():
        if results[0].model != RANDOM:
            lines.append(f"{name}: {results[0].preset}, {results[0].step} steps, {results[0].checkpoint}")
    for protocol in dict.fromkeys(result.protocol for result in every):
        ways = {name: _ways(results, protocol) for name, results in groups.items()}
        if len(set(ways.values()) - {""}) == 1:
            lines.append(f"{protocol}: {max(ways.values())}")
        else:
            lines += [f"{protocol} of {name}: {way}" for name, way in ways.items() if way]
    if first.protocol == "cross-modal":
        lines += [f"{name}: {_said(results[0])}" for name, results in groups.items()]
    return lines


def _ways(results: Sequence[Result], protocol: Protocol) -> str:
    return sentence(next((result.how for result in results if result.protocol == protocol), {}))


def _said(result: Result) -> str:
    """The first figure across modalities in a line that anybody understands."""
    column, measure = next(iter(result.measures.items()))
    one, _, other, _ = column.split()
    words = {"video": "picture", "audio": "sound", "text": "words"}
    seen = {
        "others": "videos it never saw", "these": "videos that it was trained on",
        "unknown": "videos (it is not known whether it was trained on them)",
    }[result.trained_on]  # fmt: skip
    return (
        f"asked with the {words[one]} of one of {result.queries} {seen}, it finds that video's own {words[other]} "
        f"first in {measure.value:.1f} % (chance {measure.chance:.1f} %)"
    )
