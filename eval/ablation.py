"""Rows of the paper's table 1 side by side: pretrain each, evaluate its frozen features, one table and one plot."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from eval import results as tables
from eval.processes import places, run_alone, side_by_side
from eval.progress import Progress
from eval.results import RANDOM, Result, Table, from_json, measured, to_json
from eval.settings.ablation import Ablation, composition
from pipeline import presets
from pipeline.files import write_text
from pipeline.shards.index import Index
from pipeline.shards.layout import shard_folder
from train.settings import SIZES, Pretrain


def ablation(settings: Ablation) -> str:
    """Run everything that is not there yet; returns the table. Raises UserError if a run fails, naming its log."""
    shards = shard_folder(settings.dataset, settings.shards)
    Index.open(shards)  # or it says what is wrong, before hours of training
    out = settings.out or Path("runs") / f"ablation-{settings.dataset}"
    at_once = places(settings.side_by_side)
    out.mkdir(parents=True, exist_ok=True)
    jobs = [(name, seed) for seed in settings.seeds for name in settings.rows]
    print(
        f"{len(jobs)} run{'s' if len(jobs) > 1 else ''}, {at_once} at a time, "
        f"{settings.clips_per_step} video clips per step each; logs in {out}/<row>-<seed>/log.txt"
    )
    began = time.monotonic()

    found: dict[tuple[str, int], list[Result]] = {}

    def run(job: tuple[str, int], gpu: str) -> None:
        name, seed = job
        found[job] = _run(settings, shards, out / f"{name}-{seed}", name, seed, gpu, name == settings.rows[0])

    with Progress({out / f"{name}-{seed}": _pretraining(settings, shards, name, seed) for name, seed in jobs}) as bar:
        for name, seed in side_by_side(jobs, run, at_once, bar.look):
            (r1,) = measured([result for result in found[name, seed] if result.preset != RANDOM], "R@1")
            seconds = time.monotonic() - began
            said = f"[{seconds:4.0f} s] {_label(name)}, seed {seed}: R@1 {r1.value:.1f} %"
            bar.finished(out / f"{name}-{seed}", said)
    results = [result for job in jobs for result in found[job]]
    results, others = with_earlier(results, out / "results.json")
    write_text(out / "results.json", to_json(results + others) + "\n")
    table = table_of(results)
    text = "\n".join([tables.layout(table.lines), "", *table.said])
    write_text(out / "table.txt", text + "\n")
    write_text(out / "table.tex", tables.to_latex(table.lines) + "\n")
    write_text(out / "results.csv", tables.to_csv(results))
    plot(results, out / "table.png")
    return f"\n{text}\n\ntable (txt, tex, csv), plot, numbers and checkpoints: {out}/"


def table_of(results: list[Result]) -> Table:
    """A row for every preset, over its seeds, of results that are of the same videos; with what is to be said of it."""
    groups = {_label(preset): group for preset, group in _by_preset(results).items()}
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


def _run(
    settings: Ablation, shards: Path, folder: Path, name: str, seed: int, gpu: str, with_random: bool
) -> list[Result]:
    folder.mkdir(parents=True, exist_ok=True)
    pretraining = _pretraining(settings, shards, name, seed)
    train = [
        "train", settings.size, "--dataset", settings.dataset, "--shards", str(shards), "--preset", name,
        "--seed", str(seed), "--out", str(folder), "--videos-per-batch", str(pretraining.videos_per_batch),
    ]  # fmt: skip
    if settings.norm_leaves is not None:
        train += ["--norm-leaves", str(settings.norm_leaves)]
    if settings.steps:
        train += ["--steps", str(settings.steps)]
    if settings.word2vec and "text" in presets.modalities(name):
        train += ["--word2vec", str(settings.word2vec)]
    evaluate = [
        "eval", "downstream", "--ckpt", str(folder), "--shards", str(shards), "--dataset", settings.dataset,
        "--protocols", "retrieval", "few-shot", "--query-split", settings.query_split,
        "--gallery-per-class", str(settings.gallery_per_class), "--clips", str(settings.clips),
        "--random", "also" if with_random else "no",
        "--out", str(folder / "eval"),
    ]  # fmt: skip
    for command in (train, evaluate):
        one_thread = [] if gpu else ["--threads", "1"]
        run_alone([*command, *one_thread], folder / "log.txt", gpu, f"run {folder.name}")
    path = folder / "eval" / "results.json"
    found = sorted(from_json(path.read_text(), str(path)), key=lambda result: result.provenance.started)
    # where the run was made anew, its earlier weights are there, too
    return list({(result.preset, result.protocol): result for result in found}.values())


def _pretraining(settings: Ablation, shards: Path, name: str, seed: int) -> Pretrain:
    """Of one run."""
    base = SIZES[settings.size][1]
    videos = settings.clips_per_step // composition(name).clips_per_video
    base = replace(base, steps=settings.steps, epochs=0) if settings.steps else base
    return replace(
        base, dataset=settings.dataset, shards=shards, preset=name, seed=seed, videos_per_batch=videos,
        norm_leaves=settings.norm_leaves,
    )  # fmt: skip


def _label(preset: str) -> str:
    if preset == RANDOM:
        return preset
    return f"{'row ' if preset in presets.TABLE_1 else ''}{preset}: {presets.preset(preset).label}"


def _by_preset(results: list[Result]) -> dict[str, list[Result]]:
    groups: dict[str, list[Result]] = {}
    for result in sorted(results, key=lambda result: (result.preset != RANDOM, result.preset)):
        groups.setdefault(result.preset, []).append(result)
    return groups


def plot(results: list[Result], path: Path) -> None:
    """R@1 of every run as a dot, their mean as a bar, chance as a line."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    groups = _by_preset(results)
    figure, axes = pyplot.subplots(figsize=(1.5 + 1.2 * len(groups), 3.2), layout="constrained")
    for x, group in enumerate(groups.values()):
        values = [measure.value for measure in measured(group, "R@1")]
        axes.bar(x, np.mean(values), 0.6, color="#8fb8de")
        axes.plot([x] * len(values), values, "o", color="#1f4e79", markersize=4)
    axes.axhline(measured(results, "R@1")[0].chance, color="grey", linestyle="--", linewidth=1)
    axes.set_xticks(
        range(len(groups)), [_label(preset).replace(": ", "\n").replace(", ", " ") for preset in groups], fontsize=7
    )
    axes.set_ylabel("retrieval R@1, %")
    axes.set_ylim(0, 100)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
