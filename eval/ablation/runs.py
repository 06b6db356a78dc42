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
from gdt.eval import record
from gdt.eval.ablation.compare import compared_rows, label, with_earlier
from gdt.eval.factors.evaluate import NAME
from gdt.eval.factors.lines import factor_of, name_of, over_seeds
from gdt.eval.plots import bars, matrix
from gdt.eval.processes import options, places, run_alone, side_by_side
from gdt.eval.progress import Progress
from gdt.eval.protocols import FORMAT, short
from gdt.eval.record import RANDOM, Record
from gdt.eval.settings.ablation import Ablation, is_written_out
from gdt.eval.settings.downstream import Downstream, Protocol
from gdt.eval.settings.factors import Factors
from gdt.eval.settings.search import RECALL
from gdt.eval.tables import to_csv
from gdt.pipeline.shards.index import Index, fingerprint
from gdt.pipeline.shards.layout import shard_folder
from gdt.train.settings import SIZES, Pretrain

_DONE = "done.json"
"""In the folder of a run: what it was asked to do."""
_REVEALING = 2
"""A column whose values are shared by fewer videos on average than so many names videos and is no label."""


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

    @property
    def protocols(self) -> tuple[Protocol, ...]:
        return ("retrieval", "few-shot") if self.labels else ("cross-modal",)

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
        """Training, evaluation by labels or across modalities, and by factors; arguments of `gdt`."""
        settings, pretraining = self.settings, self._pretraining(run)
        size = SIZES[settings.size][1]
        commands = [["pretrain", settings.size, *options(pretraining, size)]]
        if self.labels or self._is_cross_modal(run.row):
            evaluation = Downstream(
                (run.folder,), settings.dataset, self.shards, self.protocols, query_split=settings.query_split,
                label=",".join(self.labels), gallery_per_class=settings.gallery_per_class if self.labels else 0,
                clips=settings.clips, random="also" if run.row == settings.rows[0] else "no", out=run.folder / "eval",
                word2vec=None if self.labels else pretraining.word2vec,
            )  # fmt: skip
            commands.append(["eval", "downstream", *options(evaluation, Downstream(()))])
        if self._looks_at_factors(run):
            looked = Factors(
                (run.folder,), settings.dataset, self.shards, settings.query_split, out=self._factors(run).parent
            )
            commands.append(["eval", "factors", *options(looked, Factors((Path(),)))])
        return commands

    def _factors(self, run: Run) -> Path:
        return run.folder / "factors" / NAME

    def _looks_at_factors(self, run: Run) -> bool:
        of = self.settings.factors
        return of == "all" or (of == "first" and run.seed == self.settings.seeds[0])

    def _pretraining(self, run: Run) -> Pretrain:
        settings = self.settings
        videos = settings.clips_per_step // settings.composition(run.row).clips_per_video
        base = SIZES[settings.size][1]
        base = replace(base, steps=settings.steps, epochs=0) if settings.steps else base
        base = replace(
            base, dataset=settings.dataset, shards=self.shards, seed=run.seed, out=run.folder, videos_per_batch=videos,
            norm_leaves=settings.norm_leaves, word2vec=settings.word2vec if self._has(run.row, "text") else None,
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

    def _found(self, run: Run) -> list[Record]:
        path = run.folder / "eval" / "results.json"
        if not path.is_file():
            return []  # a row of one modality, without labels
        # an earlier call may have compared otherwise
        found = [each for each in record.read(path) if each.protocol in self.protocols]
        found.sort(key=lambda each: each.provenance.started)
        # where the run was made anew, its earlier weights are there, too
        return list({(each.preset, each.protocol, each.label): each for each in found}.values())

    def _said(self, run: Run) -> str:
        found = [each for each in self._found(run) if each.preset != RANDOM]
        if not found:
            return ""
        name, measure = next(iter(found[0].measures.items()))
        return f": {name} {measure.value:.1f} %"

    def _reported(self) -> str:
        out = self.out
        records = [found for run in self.runs for found in self._found(run)]
        parts, files = [], []
        if records:
            records, others = with_earlier(records, out / "results.json")
            record.write(out / "results.json", records + others)
            write_text(out / "results.csv", to_csv(records))
            compared = compared_rows(records, self.labels)
            write_text(out / "table.tex", compared.latex + "\n")
            write_text(out / "differences.csv", compared.to_csv())
            bars(records).savefig(out / "table.png", dpi=150)
            parts.append(compared.text)
            files.append("tables (txt, tex, csv), differences.csv, plot, numbers and checkpoints")
        if looked := [run for run in self.runs if self._looks_at_factors(run)]:
            found = [replace(row, model=_name(run.row)) for run in looked for row in record.read(self._factors(run))]
            record.write(out / NAME, found)
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
        if len(shared) > 1 and len(np.unique(known[0])) <= len(known[0]) / _REVEALING:
            found.setdefault(tuple(np.unique(values, return_inverse=True)[1].tolist()), name)
    return tuple(found.values())


def _name(row: str) -> str:
    """Of a row, for files and plots."""
    return f"own-{short(row)[:6]}" if is_written_out(row) else row


def _factors_said(records: Sequence[Record]) -> str:
    """Which promises were not kept, row by row."""
    lines = ["Promises of the compositions that are not kept (runs of all runs that make them), see factors.png:"]
    promises: dict[tuple[str, str, str], list[bool]] = {}
    for found in records:
        factor = factor_of(found)
        if factor.kept is not None:
            promises.setdefault((found.preset, name_of(found), factor.promise), []).append(factor.kept)
    for (preset, name, promise), kept in promises.items():
        if not all(kept):
            lines.append(f"{label(preset)}: {name} is {promise}, {kept.count(False)} of {len(kept)}")
    return "\n".join(lines if len(lines) > 1 else ["Every promise of the compositions is kept."])
