"""The runs of an ablation: rows x seeds, with equal videos, equal compute, or both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from gdt.common.commandline import arguments_of
from gdt.common.errors import UserError
from gdt.common.serialization import to_json
from gdt.common.stores import Place
from gdt.eval.ablation.settings import Ablation
from gdt.eval.conditions import conditions
from gdt.eval.protocols import PROTOCOLS
from gdt.eval.results import RANDOM, Result
from gdt.eval.settings import Downstream
from gdt.eval.subjects import Data, folds, gallery_split, held_out, official_folds
from gdt.pipeline.composition import Composition
from gdt.pipeline.notation import Transformations, read_transformations
from gdt.pipeline.shards.index import Index, fingerprint
from gdt.pipeline.shards.naming import shard_folder
from gdt.pipeline.word2vec import WordVectors
from gdt.train.experiment import compose, schedule_of, tree_of, with_batch_size, with_own_networks
from gdt.train.flops import step_flops
from gdt.train.gpu import default_size
from gdt.train.models.gdt import GDT, any_device
from gdt.train.models.given import makers
from gdt.train.models.network import Own, Theirs
from gdt.train.run import command_of
from gdt.train.settings import SIZES, Pretrain

REFERENCE = "l"
"""The row whose FLOPs every row gets with --equal compute: the paper's best."""


@dataclass(frozen=True)
class PlannedRun:
    """One row with one seed: its `gdt pretrain`, then its `gdt evaluate`."""

    row: str
    pretraining: Pretrain
    steps: int
    evaluation: Downstream
    conditions: frozenset[str]
    """Conditions of the results of its evaluation."""
    equal: str
    """What all rows share, as text."""
    factors_checksum: str
    """Checksum of the Python file of its factors; empty without."""

    @property
    def folder(self) -> Path:
        return self.pretraining.run_folder

    @property
    def commands(self) -> list[list[str]]:
        """Arguments of `gdt`. A row without the modalities of any protocol is not evaluated."""
        evaluate = ["evaluate", *arguments_of(self.evaluation, Downstream())]
        return [command_of(self.pretraining), *([evaluate] if self.evaluation.protocols else [])]

    @property
    def marker(self) -> Path:
        """A file that holds `marked` once it is finished."""
        return self.folder / "done.json"

    @property
    def marked(self) -> str:
        """What decides its pretraining: the settings, and the text of their Python file."""
        return to_json(self.pretraining) + self.factors_checksum

    def is_done(self, results: Sequence[Result]) -> bool:
        """Whether it was trained with the same settings, and evaluated after its last step."""
        if self.pretraining.networks.given:  # only the commands notice another text of their files
            return False
        if not self.marker.is_file() or self.marker.read_text() != self.marked:
            return False
        name = self.folder.name
        done = {result.conditions for result in results if result.model == name and result.step == self.steps}
        if self.evaluation.random_weights == "include":
            seed = self.pretraining.seed
            done &= {result.conditions for result in results if result.preset == RANDOM and result.seed == seed}
        return done >= self.conditions


def plan(settings: Ablation) -> list[PlannedRun]:
    """The runs of an ablation, seed by seed. Raises UserError if the videos do not fit the rows or protocols."""
    shards = shard_folder(settings.dataset, settings.shards)
    index = Index.open(shards)
    held_out(index, settings.query_split)  # raises UserError if there are none
    known, checksum = read_transformations(settings.factors_from)
    rows = {row: _pretraining(settings, shards, row, known) for row in settings.rows}
    trained, equal = equalise(settings, rows, index, known)
    evaluation = _evaluation(settings, shards, index)
    modalities = {row: compose(run, known).modalities for row, run in rows.items()}
    baseline = max(rows, key=lambda row: len(modalities[row]))  # whose untrained networks are evaluated, too
    first = next(run for row, run in trained if row == baseline)

    @cache
    def evaluated(protocols: tuple[Any, ...], word2vec: Path | None) -> tuple[Downstream, frozenset[str]]:
        """An evaluation with the conditions of its results, which are the same for all seeds."""
        same = replace(evaluation, out=settings.folder, tables=False, protocols=protocols, word2vec=word2vec)
        return same, _conditions(same, index)

    runs = []
    for seed in dict.fromkeys(settings.seeds):
        for row, run in trained:
            steps = _steps(run, index, known)
            adjusted = f"-{steps}steps" if run.steps != rows[row].steps else ""
            seeded = replace(run, seed=seed, out=settings.folder / f"{run.short_name}{adjusted}-{seed}")
            paired = len(modalities[row]) > 1
            protocols = tuple(name for name in evaluation.protocols if paired or not PROTOCOLS[name].pairs)
            shared, keys = evaluated(protocols, run.word2vec if "cross-modal" in protocols else None)
            of_row = replace(shared, ckpt=(seeded.run_folder,), random_weights="include" if run == first else "exclude")
            runs.append(PlannedRun(row, seeded, steps, of_row, keys, equal, checksum if seeded.factors_from else ""))
    if not any(run.evaluation.protocols for run in runs):
        raise UserError(
            f"nothing can compare the rows {' '.join(rows)}: recall between modalities needs a row of two; add one, "
            "or labels (labels.csv)"
        )
    return runs


def _conditions(evaluation: Downstream, index: Index) -> frozenset[str]:
    """The conditions of an evaluation's results. Raises UserError if a split has no labels."""
    device = any_device().type
    words = WordVectors.of(index, evaluation.word2vec) if evaluation.word2vec else None
    data = Data(evaluation.dataset, index, fingerprint(index), evaluation.query_split)
    keys = set()
    for label in evaluation.labels:
        of_column = replace(evaluation, label=label)
        of_label = replace(data, index=index.labelled(label))
        for name in evaluation.protocols:
            parts = folds(of_column, name, of_label.index, data.split)
            keys |= {conditions(of_column, name, of_label, part, device, words) for part in parts}
    return frozenset(keys)


def equalise(
    settings: Ablation, rows: Mapping[str, Pretrain], index: Index, known: Transformations
) -> tuple[list[tuple[str, Pretrain]], str]:
    """Give every row the same videos per step, and the same steps, the same FLOPs, or first one and then the other.

    Returns rows with their runs, each once, and what they share. Raises UserError if a row has too few videos.
    """
    videos = settings.batch_size or min(with_batch_size(run, index, known).batch_size or 0 for run in rows.values())
    sized = {row: replace(run, batch_size=videos) for row, run in rows.items()}
    first = next(iter(sized.values()))
    steps = _steps(first, index, known)
    trained: list[tuple[str, Pretrain]] = []
    shared: list[str] = []
    if "videos" in settings.equal:
        trained += sized.items()
        shared.append(f"{first.planned_epochs} epochs" if first.planned_epochs else f"{steps} steps")
    if "compute" in settings.equal:
        reference = replace(
            first, preset=REFERENCE, factors="", factors_from=None, word2vec=None, networks=settings.networks
        )
        spent = steps * _flops(reference, compose(reference), index)
        for row, run in sized.items():
            as_costly = max(1, round(spent / _flops(run, compose(run, known), index)))
            same = as_costly == _steps(run, index, known)
            longer = run if same else replace(run, steps=as_costly, epochs=0)
            if (row, longer) not in trained:
                trained.append((row, longer))
        shared.append(f"the FLOPs of {steps} steps of row {REFERENCE}")
    return trained, f"{' and '.join(settings.equal)}: {videos} videos per step, {' or '.join(shared)}"


def _steps(run: Pretrain, index: Index, known: Transformations) -> int:
    """Steps of a run. Raises UserError if it has too few videos."""
    return schedule_of(run, tree_of(run, compose(run, known), index).batches_per_epoch).steps


def _pretraining(settings: Ablation, shards: Place, row: str, known: Transformations) -> Pretrain:
    """The run of a row, without its batch size and seed."""
    options: dict[str, Any] = {"steps": settings.steps, "epochs": 0} if settings.steps else {}
    options["networks"] = settings.networks
    if ":" in row:
        options |= {"factors": row, "factors_from": settings.kept_factors}
    else:
        options["preset"] = row
    sized = SIZES[settings.size or default_size()]
    if settings.lr:
        options["optimization"] = replace(sized.optimization, lr=settings.lr)
    run = replace(sized, dataset=settings.dataset, shards=shards, group_size=settings.group_size, **options)
    modalities = compose(run, known).modalities
    networks = Own(
        run.networks.video_network if "video" in modalities else "",
        run.networks.audio_network if "audio" in modalities else "",
    )
    return replace(run, word2vec=settings.word2vec if "text" in modalities else None, networks=networks)


def _flops(run: Pretrain, composition: Composition, index: Index) -> float:
    given = makers(run.networks.given)
    network, builders = with_own_networks(run.network, given, composition, run.clip, any_device())
    return step_flops(GDT(network, composition.modalities, builders), composition, run.clip, index.bands)


def _evaluation(settings: Ablation, shards: Place, index: Index) -> Downstream:
    """The evaluation of every run.

    Of official folds it takes the first, whose splits are those of pretraining; the other folds test videos that
    pretraining has used.
    """
    labelled = bool(settings.label) or (index.label != "").any()
    default = ("retrieval", "few-shot") if labelled else ("cross-modal",)
    protocols: tuple[str, ...] = settings.protocols or default
    of_labels: dict[str, Any] = {}
    given = settings.networks.given
    theirs = Theirs(given.get("video", ()), given.get("audio", ()))
    if any(PROTOCOLS[name].labels for name in protocols):
        of_labels["gallery_split"] = gallery_split("", index, settings.query_split)
        of_labels["folds"] = (1,) if official_folds(index) else ()
    return Downstream(
        dataset=settings.dataset,
        shards=shards,
        protocols=protocols,
        label=settings.label,
        query_split=settings.query_split,
        clips=settings.clips,
        networks=theirs,
        **of_labels,
    )
