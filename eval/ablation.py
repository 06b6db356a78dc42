"""Rows of the paper's table 1 side by side: pretrain each, evaluate its frozen features, one table and one plot."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from eval.results import RANDOM, Result, from_json, table, to_json
from pipeline import presets
from pipeline.composition import Composition
from pipeline.errors import UserError
from pipeline.files import write_text
from pipeline.shards.index import Index
from pipeline.shards.layout import shard_folder


@dataclass(frozen=True)
class Ablation:
    """Pretrain rows of table 1 at equal clips per step, evaluate them frozen, and compare."""

    dataset: str = "synthetic"
    """Preprocessed data set with labels, a train and a test split."""
    shards: Path | None = None
    """Folder of its shards; default data/shards/<dataset>."""
    rows: tuple[str, ...] = ("a", "e", "l")
    """Rows of the paper's table 1, or other names of --preset help."""
    word2vec: Path | None = None
    """For rows with words: the file of word vectors with which the shards were made."""
    seeds: tuple[int, ...] = (0,)
    """One run of every row for each seed."""
    size: Literal["tiny", "paper"] = "tiny"
    """Size of networks, clips and schedule."""
    clips_per_step: int = 64
    """Video clips in a batch, the same for every row: rows with more leaves per video take fewer videos."""
    steps: int = 0
    """Training steps of every run; 0 takes the size's own."""
    query_split: str = "test"
    """Videos that are evaluated; use val while choosing settings."""
    gallery_per_class: int = 0
    """Search only the first so many training videos of each class; 0 for all."""
    side_by_side: int = field(default_factory=lambda: torch.cuda.device_count() or len(os.sched_getaffinity(0)))
    """Runs at a time; one per GPU, or one single-threaded run per core."""
    out: Path | None = None
    """Folder of the runs and the table; default runs/ablation-<dataset>."""

    def __post_init__(self) -> None:
        if torch.cuda.is_available() and self.side_by_side > torch.cuda.device_count():
            raise UserError(f"--side-by-side is {self.side_by_side} but there are {torch.cuda.device_count()} GPUs")
        if self.word2vec and not any("text" in _composition(name).modalities for name in self.rows):
            raise UserError(f"--word2vec has no effect: words are no modality of the rows {' '.join(self.rows)}")
        for name in self.rows:
            clips = _composition(name).clips_per_video
            if self.clips_per_step % clips:
                raise UserError(
                    f"--clips-per-step {self.clips_per_step} is no multiple of the {clips} clips that row {name} takes "
                    "of a video"
                )


def ablation(settings: Ablation) -> str:
    """Run everything that is not there yet; returns the table. Raises UserError if a run fails, naming its log."""
    shards = shard_folder(settings.dataset, settings.shards)
    index = Index.open(shards)
    out = settings.out or Path("runs") / f"ablation-{settings.dataset}"
    out.mkdir(parents=True, exist_ok=True)
    jobs = [(name, seed) for seed in settings.seeds for name in settings.rows]
    print(
        f"{len(jobs)} run{'s' if len(jobs) > 1 else ''}, {settings.side_by_side} at a time, "
        f"{settings.clips_per_step} video clips per step each; logs in {out}/<row>-<seed>/log.txt"
    )
    began = time.monotonic()

    gpus: queue.Queue[str] = queue.Queue()
    for gpu in _gpus():
        gpus.put(gpu)

    def job(number: int) -> list[Result]:
        name, seed = jobs[number]
        folder = out / f"{name}-{seed}"
        gpu = gpus.get() if torch.cuda.is_available() else None
        try:
            results = _run(settings, shards, folder, name, seed, gpu, with_random=name == settings.rows[0])
        finally:
            if gpu is not None:
                gpus.put(gpu)
        print(f"[{time.monotonic() - began:4.0f} s] {_label(name)}, seed {seed}: R@1 {results[0].recall[1]:.1f} %")
        return results

    with ThreadPoolExecutor(settings.side_by_side) as pool:
        results = [result for found in pool.map(job, range(len(jobs))) for result in found]
    results = with_earlier(results, out / "results.json")
    write_text(out / "results.json", to_json(results) + "\n")
    rows = {_label(preset): group for preset, group in _by_preset(results).items()}
    text = table(rows, f"% on {settings.query_split}")
    write_text(out / "table.txt", text + "\n")
    plot(results, out / "table.png")
    seeds = ", ".join(map(str, sorted({result.seed for result in results})))
    searched = f"{results[0].queries} queries against {results[0].gallery} gallery videos"
    return (
        f"\n{text}\n\n{len(index)} videos, {searched}, "
        f"{settings.clips_per_step} video clips per step, {_steps(results)} steps, seeds {seeds}\n"
        f"table, plot, numbers and checkpoints: {out}/"
    )


def with_earlier(results: list[Result], path: Path) -> list[Result]:
    """New results and, of the same videos, those that an earlier call left in a file and that were not made anew."""
    if not path.is_file():
        return results
    earlier = from_json(path.read_text(), str(path))
    made = {(result.preset, result.seed) for result in results}
    comparable = [result for result in earlier if _compared_on(result) == _compared_on(results[0])]
    if other := len(earlier) - len(comparable):
        print(f"{other} earlier results in {path} are of other videos or clips, and are not in the table")
    return [result for result in comparable if (result.preset, result.seed) not in made] + results


def _compared_on(result: Result) -> tuple[object, ...]:
    return (result.data, result.gallery_split, result.query_split, result.gallery, result.queries, result.clips)


def _steps(results: list[Result]) -> str:
    """How many steps the runs took; a range where they differ."""
    steps = [result.step for result in results if not result.random_weights]
    return "-".join(map(str, sorted({min(steps), max(steps)})))


def _run(
    settings: Ablation, shards: Path, folder: Path, name: str, seed: int, gpu: str | None, with_random: bool
) -> list[Result]:
    folder.mkdir(parents=True, exist_ok=True)
    train = [
        "train", settings.size, "--dataset", settings.dataset, "--shards", str(shards), "--preset", name,
        "--seed", str(seed), "--out", str(folder),
        "--videos-per-batch", str(settings.clips_per_step // _composition(name).clips_per_video),
    ]  # fmt: skip
    if settings.steps:
        train += ["--steps", str(settings.steps)]
    if settings.word2vec and "text" in _composition(name).modalities:
        train += ["--word2vec", str(settings.word2vec)]
    evaluate = [
        "eval", "frozen", "--ckpt", str(folder / "checkpoint.pt"), "--shards", str(shards), "--dataset",
        settings.dataset, "--query-split", settings.query_split, "--gallery-per-class", str(settings.gallery_per_class),
    ]  # fmt: skip
    environment = dict(os.environ)
    if gpu is not None:
        environment["CUDA_VISIBLE_DEVICES"] = gpu
    else:
        train += ["--threads", "1"]
        evaluate += ["--threads", "1"]
        environment["OMP_NUM_THREADS"] = "1"
    commands = [(train, None), (evaluate, folder / "frozen.json")]
    if with_random:
        commands.append(([*evaluate, "--random-weights"], folder / "frozen-random.json"))
    results: list[Result] = []
    with (folder / "log.txt").open("a") as log:
        for command, output in commands:
            arguments = [*command, "--out", str(output)] if output else command
            done = subprocess.run(
                [sys.executable, "-m", *arguments], stdout=log, stderr=subprocess.STDOUT, env=environment, check=False
            )
            if done.returncode:
                lines = (folder / "log.txt").read_text().strip().splitlines()
                raise UserError(f"run {folder.name} failed ({lines[-1]}); see {folder / 'log.txt'}")
            if output:
                results += from_json(output.read_text(), str(output))
    return results


def _gpus() -> list[str]:
    """The GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return visible.split(",") if visible else [str(gpu) for gpu in range(torch.cuda.device_count())]


def _label(preset: str) -> str:
    if preset == RANDOM:
        return preset
    return f"{'row ' if preset in presets.TABLE_1 else ''}{preset}: {presets.preset(preset).label}"


def _composition(preset: str) -> Composition:
    """What holds for any number of videos per batch."""
    return presets.composition(preset, videos_per_batch=2)


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
        values = [result.recall[1] for result in group]
        axes.bar(x, np.mean(values), 0.6, color="#8fb8de")
        axes.plot([x] * len(values), values, "o", color="#1f4e79", markersize=4)
    axes.axhline(results[0].chance[1], color="grey", linestyle="--", linewidth=1)
    axes.set_xticks(
        range(len(groups)), [_label(preset).replace(": ", "\n").replace(", ", " ") for preset in groups], fontsize=7
    )
    axes.set_ylabel("retrieval R@1, %")
    axes.set_ylim(0, 100)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
