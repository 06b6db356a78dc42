"""Rows of the paper's table 1 side by side: pretrain each, evaluate its frozen features, one table and one plot."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from eval import results as tables
from eval.ablation.picture import plot
from eval.ablation.tables import label, table_of, with_earlier
from eval.processes import places, run_alone, side_by_side
from eval.progress import Progress
from eval.results import RANDOM, Result, from_json, measured, to_json
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
            said = f"[{seconds:4.0f} s] {label(name)}, seed {seed}: R@1 {r1.value:.1f} %"
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
