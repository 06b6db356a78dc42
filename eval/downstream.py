"""Models by the protocols of the paper: every model, fold and protocol is a result of its own, kept and not done twice.

What could change a result (weights, data, labels, settings) is in the name of its file: a call takes up what is there,
and adds to its table every model that was evaluated in the same way.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from tqdm import tqdm

from gdt.common.errors import UserError, memory_told
from gdt.common.files import write_text
from gdt.eval.finetune import METRICS, STATE
from gdt.eval.processes import places, run_alone, side_by_side
from gdt.eval.protocols import FORMAT, Extracted, Protocols, comparable, matters, recipe, short
from gdt.eval.reports import report
from gdt.eval.results import RANDOM, Result, from_json, to_csv, to_json
from gdt.eval.settings.downstream import LABELLED, PROTOCOLS, Downstream, Protocol
from gdt.eval.subjects import Fold, Model, asked_for, folds, held_out, models, of
from gdt.pipeline.shards.index import fingerprint
from gdt.pipeline.word2vec import WordVectors
from gdt.train.checkpoint import Trained, load_model
from gdt.train.models.gdt import any_device, modalities_of
from gdt.train.provenance import Provenance


def downstream(settings: Downstream) -> str:
    """Evaluate whatever was not evaluated yet; returns the tables.

    Raises UserError where the shards, their labels, a split, a fold or a checkpoint is missing or does not fit.
    """
    if settings.threads:
        torch.set_num_threads(settings.threads)
    extracted: Extracted = {}
    evaluations = [Evaluation(replace(settings, label=label), extracted) for label in settings.labels]
    with memory_told("take a smaller network; what is finished is kept"):
        for evaluation in evaluations:
            evaluation.run()
    return _reported(evaluations) if settings.tables else ""


def _reported(evaluations: Sequence[Evaluation]) -> str:
    """Tables of all models that were evaluated in these ways, also by earlier calls."""
    out = evaluations[0].out
    # recall across modalities asks no labels, and is the same for all of them
    first, others = list(evaluations[0].found()), [evaluation.found() for evaluation in evaluations[1:]]
    text = report([first, *([row for row in found if row.protocol in LABELLED] for found in others)], out)
    every = [result for path in sorted(out.glob("*/*.json")) for result in read(path)]
    write_text(out / "all.csv", to_csv(every))
    return f"{text}\n\ntables (txt, tex, csv) and numbers (json; all.csv has those of other calls, too): {out}/"


class Evaluation:
    """Models by the labels of one column. `extracted` are features that other columns needed, too."""

    def __init__(self, settings: Downstream, extracted: Extracted | None = None) -> None:
        first = load_model(settings.ckpt[0])
        self.dataset, self.index = asked_for(settings.ckpt[0], first, settings.dataset, settings.shards)
        self.settings = settings
        self.extracted = {} if extracted is None else extracted
        self.out = settings.out or Path("runs") / f"eval-{self.dataset}"
        if settings.label:
            self.index = self.index.labelled(settings.label)
        self.data = fingerprint(self.index)
        self.device = any_device()
        self.query_split = settings.query_split or ("test" if (self.index.split == "test").any() else "val")
        if settings.gallery_split == self.query_split:
            raise UserError(
                f"gallery and queries are both the split '{self.query_split}', where every video finds itself; set "
                "--query-split or --gallery-split to another"
            )
        self.provenance = Provenance.of(self.device)
        self.models = list(models(settings, first, self.index))
        self.protocols = self._protocols()
        self.folds = folds(settings, self.index, self.query_split) if set(self.protocols) & set(LABELLED) else []
        for model in self.models:
            self._require_unseen(model)

    def run(self) -> None:
        """Everything that is not there yet: what takes minutes first, then finetuning, several at a time."""
        for model in self.models:
            for protocol in self.protocols:
                if protocol == "cross-modal":
                    if self.settings.protocols or self._has_pairs(model.trained):
                        self._once(model, protocol, self._pairs)
                    else:
                        print(f"{model.name} has no two modalities to compare here, and no part in that table")
                elif protocol != "finetune":
                    for fold in self.folds:
                        self._once(model, protocol, fold)
        if "finetune" in self.protocols:
            self._finetune_all()

    def _protocols(self) -> tuple[Protocol, ...]:
        if asked := self.settings.protocols:
            return tuple(protocol for protocol in PROTOCOLS if protocol in asked)
        labelled = self.index.label != ""
        both = all((labelled & (self.index.split == s)).any() for s in (self.settings.gallery_split, self.query_split))
        pairs = any(self._has_pairs(model.trained) for model in self.models)
        labels = both or self.settings.asks_labels
        chosen = (*(("cross-modal",) if pairs else ()), *(("retrieval", "few-shot") if labels else ()))
        if not chosen:
            raise UserError(
                f"{self.index.folder} has no labels with a train and a test split, and the model has no two modalities "
                "that the videos have; there is nothing to evaluate"
            )
        return chosen

    def _has_pairs(self, trained: Trained) -> bool:
        """Whether a model has two modalities that the videos have."""
        return len(comparable(modalities_of(trained.model.state_dict()), self.index, self.settings)) > 1

    def _require_unseen(self, model: Model) -> None:
        """Raise UserError where a model was finetuned on labels of videos that are evaluated."""
        learned = model.trained.foreign.learned if model.trained.foreign and not model.random else None
        if learned and learned[0] == self.data and (others := [f.number for f in self.folds if f.number != learned[1]]):
            raise UserError(
                f"{model.path} was finetuned on fold {learned[1]} of these videos, and so on labels that fold "
                f"{others[0]} tests; evaluate it with --folds {learned[1]}"
            )

    @cached_property
    def _pairs(self) -> Fold:
        return held_out(self.index, self.query_split)

    @cached_property
    def _protocol(self) -> Protocols:
        return Protocols(
            self.settings, self.index, self.data, self.folds, self.query_split, self.device, self.out, self.words,
            self.extracted,
        )  # fmt: skip

    def _once(self, model: Model, protocol: Protocol, fold: Fold) -> None:
        """Evaluate, unless the result is there."""
        path = self._path(model, protocol, fold)
        if read(path):
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        began = time.perf_counter()
        measures, how, fold = self._protocol.evaluate(model, protocol, fold, path.with_suffix(""))
        trained = model.trained
        clip = recipe(self.settings, trained).clip if protocol == "finetune" else trained.settings.clip
        result = Result(
            protocol=protocol,
            model=model.name,
            weights=model.digest,
            checkpoint=model.path,
            preset=RANDOM if model.random else trained.name,
            step=trained.step,
            seed=trained.settings.seed,
            dataset=self.dataset,
            data=self.data,
            labels=fold.digest,
            fold=fold.number,
            query_split=self.query_split,
            gallery=len(fold.gallery),
            queries=len(fold.queries),
            held=int((self.index.start_counts(clip.frames, clip.stride)[fold.videos] == 0).sum()),
            classes=len(np.unique(fold.gallery_label)),
            measures=measures,
            how=how | {"precision": self._precision},
            evaluation=self.settings,
            pretraining=trained.settings,
            trained_on=self._trained_on(model),
            provenance=self.provenance,
        )
        write_text(path, to_json(result) + "\n")
        (path.with_suffix("") / STATE).unlink(missing_ok=True)
        column, first = next(iter(measures.items()))
        seconds = time.perf_counter() - began
        print(f"[{seconds:4.0f} s] {of(model, fold)}, {protocol}: {column} {first.value:.1f} %", flush=True)

    def _finetune_all(self) -> None:
        """Each in a process of its own, which is this command for one fold; in this one where there is one at a time.

        So the threads, and with them the last digits, do not depend on how many were left to do.
        """
        jobs = [
            (model, fold)
            for model in self.models
            for fold in self.folds
            if not read(self._path(model, "finetune", fold))
        ]
        if not jobs:
            return
        at_once = places(self.settings.side_by_side)
        if at_once == 1:
            for model, fold in jobs:
                self._once(model, "finetune", fold)
            return
        paths = [self._path(model, "finetune", fold) for model, fold in jobs]

        def run(number: int, gpu: str) -> None:
            (model, fold), path = jobs[number], paths[number]
            path.parent.mkdir(parents=True, exist_ok=True)
            run_alone(self._command(model, fold), path.with_suffix(".log"), gpu, f"finetuning {of(model, fold)}")

        print(f"{len(jobs)} finetuning runs, {at_once} at a time; logs beside their results")
        epochs = recipe(self.settings, jobs[0][0].trained).epochs * len(jobs)
        with tqdm(total=epochs, initial=_epochs(paths), unit="epoch", desc="finetune", mininterval=1.0) as bar:
            for number in side_by_side(range(len(jobs)), run, at_once, lambda: bar.update(_epochs(paths) - bar.n)):
                (result,) = read(paths[number])
                column, first = next(iter(result.measures.items()))
                bar.write(f"{of(*jobs[number])}, finetune: {column} {first.value:.1f} %")

    def _command(self, model: Model, fold: Fold) -> list[str]:
        s = self.settings
        paths = {"shards": self.index.folder, "out": self.out}
        values = {
            "dataset": self.dataset, "label": s.label, "gallery-split": s.gallery_split,
            "query-split": self.query_split, "clips": s.clips, "gallery-per-class": s.gallery_per_class,
            "random": "only" if model.random else "no", "recipe": s.recipe, "size": s.size, "epochs": s.epochs,
            "rate": s.rate, "clips-per-epoch": s.clips_per_epoch, "train-samples": s.train_samples, "seed": s.seed,
            "side-by-side": 1, "threads": s.threads or (0 if self.device.type == "cuda" else 1),
        }  # fmt: skip
        command = ["eval", "downstream", "--ckpt", str(model.path), "--protocols", "finetune"]
        command += ["--folds", str(fold.number)] if fold.number else []
        command += ["--no-tables"]
        for name, value in {**paths, **values}.items():
            command += [f"--{name}", str(value)] if value != "" else []
        return command

    def _path(self, model: Model, protocol: Protocol, fold: Fold) -> Path:
        """The file of a result. Its name holds everything that could change it but the weights, as its folder does."""
        details = matters(self.settings, protocol) | {"precision": self._precision}
        if protocol == "cross-modal" and self.words is not None:
            details |= {"words": self.words.checksum(), "captions": self.index.shard_seal.tolist()}
        what = short([FORMAT, self.data, fold.digest, self.query_split, details])
        return self.out / model.folder / f"{protocol}{f'-fold{fold.number}' if fold.number else ''}-{what}.json"

    def found(self) -> Iterator[Result]:
        """Results of all models, of the protocols and folds of this call, that were got in the same way."""
        any_model = self.models[0]
        for protocol in self.protocols:
            for fold in [self._pairs] if protocol == "cross-modal" else self.folds:
                name = self._path(any_model, protocol, fold).name
                for path in sorted(self.out.glob(f"*/{name}")):
                    yield from read(path)

    def _trained_on(self, model: Model) -> Literal["others", "these", "unknown"]:
        """Whether a model has learned, without labels, from the videos that are evaluated."""
        if model.random:
            return "others"
        if model.trained.data != self.data:
            return "unknown"
        return "these" if model.trained.settings.split == self.query_split else "others"

    @property
    def _precision(self) -> str:
        return "bfloat16" if self.device.type == "cuda" else "float32"

    @cached_property
    def words(self) -> WordVectors | None:
        """For recall with words."""
        return WordVectors.of(self.index, self.settings.word2vec) if self.settings.word2vec else None


def read(path: Path) -> list[Result]:
    """The result in a file; none, which is said, where it is damaged or of another version, and where there is none."""
    if not path.is_file():
        return []
    try:
        return from_json(path.read_text(errors="replace"), str(path))
    except UserError as error:
        print(f"warning: {error}", file=sys.stderr)
        return []


def _epochs(results: Sequence[Path]) -> int:
    """How many epochs of finetuning are done, of runs whose results go into these files."""
    logs = (path.with_suffix("") / METRICS for path in results)
    return sum(len(log.read_text().splitlines()) for log in logs if log.is_file())
