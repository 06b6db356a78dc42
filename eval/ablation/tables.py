"""Results of an ablation as a table, with those of earlier calls."""

from __future__ import annotations

from pathlib import Path

from eval import results as tables
from eval.results import RANDOM, Result, Table, from_json
from pipeline import presets


def table_of(results: list[Result]) -> Table:
    """A row for every preset, over its seeds, of results that are of the same videos; with what is to be said of it."""
    groups = {label(preset): group for preset, group in by_preset(results).items()}
    lines = tables.rows(groups, f"% on {results[0].query_split}")
    return Table(groups, lines, _caption(groups) + tables.compared(groups))


def _caption(groups: tables.Groups) -> list[str]:
    """Who was asked and searched, what the runs were, and what the brackets are."""
    every = [result for results in groups.values() for result in results]
    seeds = sorted({result.seed for result in every})
    brackets = "lowest and highest seed" if len(seeds) > 1 else "95 % intervals"
    return [
        f"{every[0].queries} queries against {every[0].gallery} videos, {every[0].classes} classes; "
        f"{_clips(every)} video clips per step, {_steps(every)} steps, seeds {', '.join(map(str, seeds))}; "
        f"in brackets {brackets}"
    ]


def with_earlier(results: list[Result], path: Path) -> tuple[list[Result], list[Result]]:
    """New results with those of the same videos that an earlier call left in a file and that were not made anew, and
    apart from them the results of other videos that it left.
    """
    if not path.is_file():
        return results, []
    made = {(_made(result), _compared_on(result)) for result in results}
    alike = {_compared_on(result) for result in results}
    earlier = [r for r in from_json(path.read_text(), str(path)) if (_made(r), _compared_on(r)) not in made]
    others = [result for result in earlier if _compared_on(result) not in alike]
    if others:
        print(
            f"{len(others)} earlier results in {path} are of other videos or clips; they stay there, and are not in "
            "the table"
        )
    return [result for result in earlier if _compared_on(result) in alike] + results, others


def _made(result: Result) -> tuple[object, ...]:
    return (result.preset, result.seed, result.protocol)


def _compared_on(result: Result) -> tuple[object, ...]:
    return (result.protocol, result.data, result.labels, tables.sentence(result.how))


def _steps(results: list[Result]) -> str:
    """How many steps the runs took; a range where they differ."""
    return tables.span([result.step for result in results if result.preset != RANDOM])


def _clips(results: list[Result]) -> str:
    """Video clips in a batch; a range where runs differ."""
    return tables.span(
        [
            result.pretraining.videos_per_batch * result.pretraining.composition.clips_per_video
            for result in results
            if result.preset != RANDOM
        ]
    )


def label(preset: str) -> str:
    if preset == RANDOM:
        return preset
    return f"{'row ' if preset in presets.TABLE_1 else ''}{preset}: {presets.preset(preset).label}"


def by_preset(results: list[Result]) -> dict[str, list[Result]]:
    groups: dict[str, list[Result]] = {}
    for result in sorted(results, key=lambda result: (result.preset != RANDOM, result.preset)):
        groups.setdefault(result.preset, []).append(result)
    return groups
