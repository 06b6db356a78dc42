"""Rows of the paper's table 1 side by side: pretrain each, evaluate its frozen features, and compare.

A run that is done is not touched again: what it was asked to do, on which shards, lies beside its results.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

import numpy as np

from gdt.common.errors import UserError
from gdt.common.files import write_text
from gdt.eval.ablation.picture import plot
from gdt.eval.ablation.tables import REVEALING, Compared, compared_rows, label, to_csv, with_earlier
from gdt.eval.factors import results as factor_results
from gdt.eval.factors.picture import matrix
from gdt.eval.factors.results import over_seeds
from gdt.eval.processes import places, run_alone, side_by_side
from gdt.eval.progress import Progress
from gdt.eval.protocols import FORMAT, short
from gdt.eval.results import RANDOM, Result, from_json, to_json
from gdt.eval.results import to_csv as results_to_csv
from gdt.eval.search.settings import RECALL
from gdt.eval.settings.ablation import Ablation, is_written_out
from gdt.pipeline.shards.index import Index, fingerprint
from gdt.pipeline.shards.layout import shard_folder
from gdt.train.settings import SIZES, Pretrain

_DONE = "done.json"
"""In the folder of a run: what it was asked to do."""
_PROTOCOLS = ("retrieval", "few-shot")
"""By labels."""
_FACTORS = Path("factors", "factors.json")


@dataclass(frozen=True)
class Run:
    """One row with one seed."""

    row: str
    seed: int
    folder: Path


def ablation(settings: Ablation) -> str:
    """Run everything that is not there yet; returns the tables. Raises UserError if a run fails, naming its log."""
    return _Ablation(settings).run()


class _Ablation:
    """One call of the command."""

    def __init__(self, settings: Ablation) -> None:
        self.settings = settings
        self.shards = shard_folder(settings.dataset, settings.shards)
        self.index = Index.open(self.shards)  # or it says what is wrong, before hours of training
        self.data = fingerprint(self.index)
        self.out = settings.out or Path("runs") / f"ablation-{settings.dataset}"
        self.runs = [
            Run(row, seed, self.out / f"{_name(row)}-{seed}") for seed in settings.seeds for row in settings.rows
        ]
        self._require_sound()
        if not self.labels and settings.factors == "no" and not any(map(self._is_cross_modal, settings.rows)):
            none = f"{self.shards} has no labels with a train and a {settings.query_split} split"
            raise UserError(
                f"{'recall takes two modalities' if settings.labels else none}, and none of the rows "
                f"{' '.join(settings.rows)} has two modalities: nothing is left to compare but what they know of each "
                "factor; leave --factors no out"
            )

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """Columns of labels that are asked for, `label` for the classes; empty for recall across modalities."""
        if not self.settings.labels:
            return telling(self.index, self.settings.query_split)
        if self.settings.labels == (RECALL,):
            return ()
        for name in self.settings.labels:
            self.index.labelled(name)  # or it says which there are
        return tuple(dict.fromkeys(self.settings.labels))

    def run(self) -> str:
        at_once = places(self.settings.side_by_side)
        self.out.mkdir(parents=True, exist_ok=True)
        todo = [run for run in self.runs if not self._is_done(run)]
        there = f", {len(self.runs) - len(todo)} of them are there" if len(todo) < len(self.runs) else ""
        print(
            f"{len(self.runs)} run{'s' if len(self.runs) > 1 else ''}{there}, {at_once} at a time, "
            f"{self.settings.clips_per_step} video clips per step each; logs in {self.out}/<row>-<seed>/log.txt",
            flush=True,
        )
        began = time.monotonic()
        with Progress({run.folder: self._pretraining(run) for run in self.runs}) as bar:
            for run in side_by_side(todo, partial(self._run, bar), at_once, bar.look):
                seconds = time.monotonic() - began
                bar.finished(run.folder, f"[{seconds:4.0f} s] {label(run.row)}, seed {run.seed}{self._said(run)}")
        return self._reported()

    def _run(self, bar: Progress, run: Run, gpu: str) -> None:
        run.folder.mkdir(parents=True, exist_ok=True)
        commands, done = self._commands(run), self._done(run)
        for command in commands:
            if command in done:
                continue
            bar.doing(run.folder, command[1] if command[0] == "eval" else "train")
            one_thread = [] if gpu or command[1] == "factors" else ["--threads", "1"]
            run_alone([*command, *one_thread], run.folder / "log.txt", gpu, f"run {run.folder.name}")
            done = [other for other in done if other[:2] != command[:2]] + [command]  # whose results lie there now
            write_text(run.folder / _DONE, json.dumps({"data": self.data, "format": FORMAT, "done": done}) + "\n")

    def _is_done(self, run: Run) -> bool:
        done = self._done(run)
        return all(command in done for command in self._commands(run))

    def _done(self, run: Run) -> list[list[str]]:
        """Commands of a run that need not be run again: none where the shards or the training are others now."""
        try:
            record = json.loads((run.folder / _DONE).read_text())
            alike = record["data"] == self.data and record["format"] == FORMAT
            done: list[list[str]] = record["done"] if alike and self._commands(run)[0] in record["done"] else []
        except (OSError, ValueError, KeyError, TypeError):
            return []
        return done

    def _commands(self, run: Run) -> list[list[str]]:
        """Training, evaluation by labels or across modalities, and by factors; arguments of `python -m`."""
        settings, pretraining = self.settings, self._pretraining(run)
        train = [
            "pretrain", settings.size, "--dataset", settings.dataset, "--shards", str(self.shards),
            "--factors" if is_written_out(run.row) else "--preset", run.row, "--seed", str(run.seed),
            "--out", str(run.folder), "--videos-per-batch", str(pretraining.videos_per_batch),
        ]  # fmt: skip
        if settings.factors_from and is_written_out(run.row):
            train += ["--factors-from", str(settings.factors_from)]
        if settings.norm_leaves is not None:
            train += ["--norm-leaves", str(settings.norm_leaves)]
        if settings.steps:
            train += ["--steps", str(settings.steps)]
        words = ["--word2vec", str(settings.word2vec)] if settings.word2vec and self._has(run.row, "text") else []
        data = ["--ckpt", str(run.folder), "--shards", str(self.shards), "--dataset", settings.dataset]
        evaluate = [
            "eval", "downstream", *data, "--query-split", settings.query_split, "--clips", str(settings.clips),
            "--random", "also" if run.row == settings.rows[0] else "no", "--out", str(run.folder / "eval"),
        ]  # fmt: skip
        if self.labels:
            evaluate += ["--protocols", *_PROTOCOLS, "--label", ",".join(self.labels)]
            evaluate += ["--gallery-per-class", str(settings.gallery_per_class)]
        else:
            evaluate += ["--protocols", "cross-modal", *words]
        into = str(run.folder / _FACTORS.parent)
        factors = ["eval", "factors", *data, "--split", settings.query_split, "--out", into]
        return [
            [*train, *words],
            *([evaluate] if self.labels or self._is_cross_modal(run.row) else []),
            *([factors] if self._looks_at_factors(run) else []),
        ]

    def _looks_at_factors(self, run: Run) -> bool:
        of = self.settings.factors
        return of == "all" or (of == "first" and run.seed == self.settings.seeds[0])

    def _pretraining(self, run: Run) -> Pretrain:
        settings = self.settings
        videos = settings.clips_per_step // settings.composition(run.row).clips_per_video
        base = SIZES[settings.size][1]
        base = replace(base, steps=settings.steps, epochs=0) if settings.steps else base
        base = replace(
            base, dataset=settings.dataset, shards=self.shards, seed=run.seed, videos_per_batch=videos,
            norm_leaves=settings.norm_leaves,
        )  # fmt: skip
        if is_written_out(run.row):
            return replace(base, factors=run.row, factors_from=settings.factors_from)
        return replace(base, preset=run.row)

    def _has(self, row: str, modality: str) -> bool:
        return modality in self.settings.composition(row).modalities

    def _is_cross_modal(self, row: str) -> bool:
        return len(self.settings.composition(row).modalities) > 1

    def _require_sound(self) -> None:
        if self.index.mel_count.any():
            return
        rows = self.settings.rows
        if asking := [row for row in rows if self._has(row, "audio")]:
            others = [row for row in rows if row not in asking]
            raise UserError(
                f"the videos in {self.shards} have no sound, which these rows learn from: {' '.join(asking)}; take "
                f"--rows {' '.join(others) or 'a b c d'}"
            )

    def _found(self, run: Run) -> list[Result]:
        path = run.folder / "eval" / "results.json"
        if not path.is_file():
            return []  # a row of one modality, without labels
        asked = _PROTOCOLS if self.labels else ("cross-modal",)  # an earlier call may have compared otherwise
        found = [result for result in from_json(path.read_text(), str(path)) if result.protocol in asked]
        found.sort(key=lambda result: result.provenance.started)
        # where the run was made anew, its earlier weights are there, too
        return list({(result.preset, result.protocol, result.evaluation.label): result for result in found}.values())

    def _said(self, run: Run) -> str:
        found = [result for result in self._found(run) if result.preset != RANDOM]
        if not found:
            return ""
        name, measure = next(iter(found[0].measures.items()))
        return f": {name} {measure.value:.1f} %"

    def _reported(self) -> str:
        out = self.out
        results = [result for run in self.runs for result in self._found(run)]
        parts, files = [], []
        if results:
            results, others = with_earlier(results, out / "results.json")
            write_text(out / "results.json", to_json(results + others) + "\n")
            write_text(out / "results.csv", results_to_csv(results))
            compared: Compared = compared_rows(results, self.labels)
            write_text(out / "table.tex", compared.latex + "\n")
            write_text(out / "differences.csv", to_csv(compared.differences))
            plot(results, out / "table.png")
            parts.append(compared.text)
            files.append("tables (txt, tex, csv), differences.csv, plot, numbers and checkpoints")
        if looked := [run for run in self.runs if self._looks_at_factors(run)]:
            found = [
                replace(result, model=_name(run.row))
                for run in looked
                for result in factor_results.from_json((run.folder / _FACTORS).read_text(), str(run.folder / _FACTORS))
            ]
            write_text(out / "factors.json", factor_results.to_json(found) + "\n")
            matrix(over_seeds(found)).savefig(out / "factors.png", dpi=150)
            parts.append(_factors_said(found))
            files.append("what features know of each factor, factors.png and factors.json")
        text = "\n\n".join(parts)
        write_text(out / "table.txt", text + "\n")
        return f"\n{text}\n\n{'; '.join(files)}: {out}/"


def telling(index: Index, query_split: str) -> tuple[str, ...]:
    """Columns of labels that part the videos in a way of their own, `label` (the classes) first.

    A column counts where videos to search and to ask have two values or more, and values are shared by several videos:
    an id is no label.
    """
    found: dict[tuple[int, ...], str] = {}
    for name in ("label", *index.columns):
        values = index.labelled(name).label.astype(str)
        known = [values[(index.split == split) & (values != "")] for split in ("train", query_split)]
        shared = np.intersect1d(*known)
        if len(shared) > 1 and len(np.unique(known[0])) <= len(known[0]) / REVEALING:
            found.setdefault(tuple(np.unique(values, return_inverse=True)[1].tolist()), name)
    return tuple(found.values())


def _name(row: str) -> str:
    """Of a row, for files and plots."""
    return f"own-{short(row)[:6]}" if is_written_out(row) else row


def _factors_said(found: Sequence[factor_results.Result]) -> str:
    """Which promises were not kept, row by row."""
    lines = ["Promises of the compositions that are not kept (runs of all runs that make them), see factors.png:"]
    rows = [(result.preset, row) for result in found for row in result.rows if row.kept is not None]
    for name in dict.fromkeys((preset, row.name, row.promise) for preset, row in rows):
        kept = [row.kept for preset, row in rows if (preset, row.name, row.promise) == name]
        if not all(kept):
            preset, factor, promise = name
            lines.append(f"{label(preset)}: {factor} is {promise}, {kept.count(False)} of {len(kept)}")
    return "\n".join(lines if len(lines) > 1 else ["Every promise of the compositions is kept."])
