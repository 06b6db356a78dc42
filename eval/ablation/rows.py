"""The runs of an ablation: rows x seeds, with equal videos, equal compute, or both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from gdt.common.commandline import arguments_of
from gdt.common.errors import UserError
from gdt.common.folders import Folder
from gdt.eval.ablation.settings import Ablation
from gdt.eval.folds import held_out
from gdt.eval.jobs import choose
from gdt.eval.protocols import PROTOCOLS
from gdt.eval.settings import Downstream
from gdt.eval.subjects import EvalSet
from gdt.pipeline.composition import Composition
from gdt.pipeline.leaves import Clip
from gdt.pipeline.notation import Transformations, read_transformations
from gdt.pipeline.shards.index import Index
from gdt.pipeline.shards.naming import shard_folder
from gdt.train.experiment import Experiment, architecture, compose, resolve
from gdt.train.flops import step_flops
from gdt.train.gpu import default_size
from gdt.train.models.gdt import GDT, any_device
from gdt.train.models.network import Architecture
from gdt.train.models.own import Maker, Makers, makers
from gdt.train.options import command_of
from gdt.train.settings import SIZES, Pretrain

REFERENCE = "l"
"""The row whose FLOPs every row gets with --equal compute: the paper's best."""


class Row(NamedTuple):
    """A row of the table."""

    name: str
    settings: Pretrain
    """The settings of its runs, but for seed and folder."""
    experiment: Experiment
    """What these settings give with the same videos as the other rows, without word vectors."""

    @property
    def steps(self) -> int:
        return self.experiment.record.steps

    def of_steps(self, steps: int) -> Row:
        """The row with another length."""
        experiment = replace(self.experiment, record=replace(self.experiment.record, steps=steps))
        return Row(self.name, replace(self.settings, steps=steps, epochs=0), experiment)

    @property
    def modalities(self) -> tuple[str, ...]:
        return self.experiment.composition.modalities


@dataclass(frozen=True)
class RowRun:
    """One row with one seed: its `gdt pretrain`, then its `gdt evaluate`."""

    row: Row
    pretraining: Pretrain
    evaluation: Downstream
    equal: str
    """What all rows share, as text."""

    @property
    def folder(self) -> Path:
        return self.pretraining.run_folder

    @property
    def commands(self) -> list[list[str]]:
        """Arguments of `gdt`. A row without the modalities of any protocol is not evaluated."""
        evaluate = ["evaluate", *arguments_of(self.evaluation, Downstream())]
        return [command_of(self.pretraining), *([evaluate] if self.evaluation.protocols else [])]


def runs_of(settings: Ablation) -> list[RowRun]:
    """The runs of an ablation, seed by seed. Raises UserError if the videos do not fit the rows or protocols."""
    shards = shard_folder(settings.dataset_name, settings.shards)
    index = Index.open(shards)
    held_out(index, settings.query_split)  # raises UserError if there are none
    known, _ = read_transformations(settings.factors_from)
    named = {name: _pretraining(settings, shards, name, known) for name in settings.rows}
    rows, equal = equalise(settings, named, index)
    evaluation = _evaluation(settings, shards, index)
    choose(evaluation, EvalSet.of(evaluation.dataset, index, evaluation.query_split))  # raises UserError without labels
    # whose untrained networks are evaluated, too
    baseline = max(rows, key=lambda row: len(row.modalities))

    runs = []
    for seed in dict.fromkeys(settings.seeds):
        for row in rows:
            adjusted = f"-{row.steps}steps" if row.settings.steps != named[row.name].steps else ""
            folder = settings.folder / f"{row.settings.short_name}{adjusted}-{seed}"
            kept = settings.kept_factors if row.settings.factors_from else None
            seeded = replace(row.settings, seed=seed, out=folder, factors_from=kept)
            paired = len(row.modalities) > 1
            protocols = tuple(name for name in evaluation.protocols if paired or not PROTOCOLS[name].pairs)
            takes_words = any("word2vec" in PROTOCOLS[name].settings for name in protocols)
            of_row = replace(
                evaluation,
                ckpt=(str(folder),),
                out=settings.folder,
                tables=False,
                protocols=protocols,
                word2vec=seeded.word2vec if takes_words else None,
                random_weights="include" if row is baseline else "exclude",
            )
            runs.append(RowRun(row, seeded, of_row, equal))
    if not any(run.evaluation.protocols for run in runs):
        raise UserError(
            f"nothing can compare the rows {' '.join(named)}: recall between modalities needs a row of two; add one, "
            "or labels (labels.csv)"
        )
    return runs


def equalise(settings: Ablation, named: Mapping[str, Pretrain], index: Index) -> tuple[list[Row], str]:
    """Give every row the same videos per step, and the same steps, the same FLOPs, or first one and then the other.

    Returns the rows, each once, and what they share. Raises UserError if a row has too few videos.
    """
    given = makers(settings.own_networks.given)
    asked = [
        _row(name, replace(run, batch_size=settings.batch_size or run.batch_size), index, given)
        for name, run in named.items()
    ]
    videos = min(row.experiment.composition.batch_size for row in asked)
    sized = []
    for row in asked:
        run = replace(row.settings, batch_size=videos)
        same = row.experiment.composition.batch_size == videos
        sized.append(Row(row.name, run, row.experiment) if same else _row(row.name, run, index, given))
    first = sized[0].settings
    steps = sized[0].steps
    rows: list[Row] = []
    shared: list[str] = []
    if "videos" in settings.equal:
        rows += sized
        shared.append(f"{first.planned_epochs} epochs" if first.planned_epochs else f"{steps} steps")
    if "compute" in settings.equal:
        # only its cost counts, so the videos may lack a modality
        best = compose(replace(first, preset=REFERENCE, factors="", factors_from=None))
        network, checked = architecture(first.network, given, best, first.clip, any_device())
        spent = steps * _step_flops(best, network, checked, first.clip)
        for row in sized:
            made = row.experiment
            flops = _step_flops(made.composition, made.settings.network, made.makers, first.clip)
            as_costly = max(1, round(spent / flops))
            if as_costly != row.steps:
                rows.append(row.of_steps(as_costly))
            elif "videos" not in settings.equal:
                rows.append(row)
        shared.append(f"the FLOPs of {steps} steps of row {REFERENCE}")
    return rows, f"{' and '.join(settings.equal)}: {videos} videos per step, {' or '.join(shared)}"


def _row(name: str, run: Pretrain, index: Index, given: Makers) -> Row:
    """A row with this run; `given` are networks of the user's own. Raises UserError if it does not fit the videos."""
    of_row = {modality: given[modality] for modality in run.own_networks.given}
    experiment = resolve(run, index, any_device(), given=of_row)
    return Row(name, run, replace(experiment, words=None))  # word vectors may take 1.8 GB


def _step_flops(composition: Composition, network: Architecture, own: Mapping[str, Maker], clip: Clip) -> float:
    """FLOPs of a step. Raises UserError if those of a network of the user's own cannot be counted."""
    flops = step_flops(GDT(network, composition.modalities, own), composition, clip)
    if not flops:
        networks = " and ".join(own.name for own in network.own.values())
        raise UserError(f"the FLOPs of {networks} cannot be counted; compare rows with --equal videos")
    return flops


def _pretraining(settings: Ablation, shards: Folder, row: str, known: Transformations) -> Pretrain:
    """The run of a row, without its batch size and seed."""
    options: dict[str, Any] = {"steps": settings.steps, "epochs": 0} if settings.steps else {}
    if settings.group_size is not None:
        options["group_size"] = settings.group_size
    options["own_networks"] = settings.own_networks
    if ":" in row:
        options |= {"factors": row, "factors_from": settings.factors_from}
    else:
        options["preset"] = row
    sized = SIZES[settings.size or default_size()]
    if settings.lr:
        options["optimization"] = replace(sized.optimization, lr=settings.lr)
    run = replace(sized, dataset=settings.dataset_name, shards=shards, **options)
    modalities = compose(run, known).modalities
    own = run.own_networks.among(modalities)
    return replace(run, word2vec=settings.word2vec if "text" in modalities else None, own_networks=own)


def _evaluation(settings: Ablation, shards: Folder, index: Index) -> Downstream:
    """The evaluation of every run.

    Of official folds it takes the first, whose splits are those of pretraining; the other folds test videos that
    pretraining has used.
    """
    labelled = bool(settings.label) or (index.label != "").any()
    default = ("retrieval", "few-shot") if labelled else ("cross-modal",)
    protocols: tuple[str, ...] = settings.protocols or default
    of_labels: dict[str, Any] = {}
    if any(PROTOCOLS[name].labels for name in protocols):
        of_labels["folds"] = (1,) if index.official_folds else ()
    return Downstream(
        dataset=settings.dataset_name,
        shards=shards,
        protocols=protocols,
        label=settings.label,
        query_split=settings.query_split,
        clips=settings.clips,
        own_networks=settings.own_networks,
        **of_labels,
    )
