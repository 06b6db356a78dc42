"""GDT from Python: the commands, similarity search, and batches for your own training loop.

    import gdt

    made = gdt.make_shards("/my/videos", "data/shards/mine", test=0.1)
    run = gdt.pretrain(made.shards, size="tiny", preset="l", steps=500, out="runs/mine")
    print(run.loss, gdt.evaluate(run.checkpoint, made.shards).rows)

    model = gdt.load(run.checkpoint)  # or "gdt-k400", published weights, or an exported file
    found = model.embed(["a.mp4", "b.mp4"])  # files, folders, or a folder of shards
    found.id, found.features["video"], found.features["audio"], found.skipped
    gdt.nearest(found, "a.mp4", by="audio", among="video")  # videos that go with its sound

Settings have the names of the commands' options (see `gdt pretrain --help`), and their types are checked; paths may be
strings, and ~ is expanded. Errors in files and settings raise `gdt.UserError`, whose message says what to do.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from gdt.arguments import Paths, separate_networks, weights_of, with_changes
from gdt.common.errors import UserError
from gdt.common.folders import Folder
from gdt.eval.embed import features as features_of
from gdt.eval.embed import write_features
from gdt.eval.features import Features
from gdt.eval.features import read as read_features
from gdt.eval.nearest import address, find_query, most_similar
from gdt.eval.settings import Downstream, Embed, FeatureModality, Kind
from gdt.loop import Batches, composition, tree
from gdt.pipeline.composition import Composition
from gdt.pipeline.loader import Batch
from gdt.pipeline.shards.index import Index
from gdt.pipeline.shards.layout import INDEX
from gdt.pipeline.tree import Tree
from gdt.train.checkpoint import load_trained
from gdt.train.distributed import require_gpus
from gdt.train.experiment import resolve
from gdt.train.gpu import Size
from gdt.train.loss import gdt_loss
from gdt.train.models.gdt import GDT, any_device
from gdt.train.models.own import NetworkLike, makers
from gdt.train.options import defaults
from gdt.train.run import METRICS, logged
from gdt.train.settings import Pretrain
from gdt.train.trained import Trained

__all__ = ["GDT", "Batch", "Batches", "Composition", "Evaluated", "Features", "Index", "Model", "Preprocessed"]
__all__ += ["Pretrained", "Tree", "UserError", "batches", "composition", "evaluate", "gdt_loss", "load", "make_shards"]
__all__ += ["mteb", "nearest", "pretrain", "read_features", "tree"]

# a forked process, as of a Pool, lacks the threads of OpenMP, and would wait for them; torch's loader does the same
os.register_at_fork(after_in_child=partial(torch.set_num_threads, 1))


@dataclass(frozen=True)
class Preprocessed:
    """The shards of a data set."""

    shards: Folder | Path
    """Their folder."""
    videos: int
    """Number of videos, including those listed without a file."""
    kept: int
    """Number of videos in the shards."""
    skipped: dict[str, int]
    """Number of the other videos by reason; rejected.jsonl in the folder of the shards lists each."""


def make_shards(
    source: str | Path, destination: str | Path | None = None, dataset: str = "folder", **settings: Any
) -> Preprocessed:
    """Turn the videos below a folder into shards; call it again to resume.

    `destination` defaults to `data/shards/<dataset>`. `settings` are fields of `gdt.preprocess.settings.Preprocess`.
    Raises UserError if there are no usable videos, or the settings do not fit.
    """
    from gdt.preprocess.settings import Preprocess
    from gdt.preprocess.stage import run

    folder = None if destination is None else Folder(destination)
    preprocessing = with_changes(Preprocess(dataset, Folder(source), folder), settings)
    if preprocessing.dry_run:
        raise UserError("dry_run is for the command only; use 'gdt preprocess --dry-run' to count the videos")
    summary = run(preprocessing)
    shards = preprocessing.absolute_shards
    return Preprocessed(shards if shards.remote else shards.root, summary.videos, summary.kept, summary.reasons)


@dataclass(frozen=True)
class Pretrained:
    """A finished run."""

    checkpoint: Path
    """The trained model, for `load` and `evaluate`."""
    steps: int
    """Number of steps, with those before the run was resumed."""
    loss: float
    """Loss of the last step."""
    top1: float
    """Share of leaves whose most similar leaf is a positive, in the last step."""


def pretrain(shards: str | Path, size: Size | None = None, **settings: Any) -> Pretrained:
    """Pretrain on shards, on the first GPU or on the CPU; call it again to resume.

    `settings` are fields of `gdt.train.settings.Pretrain`, groups as mappings of what to change:
    `optimization={"lr": 1e-3}`. `size` sets the others: by default paper with a GPU, else small. The data set is by
    default named after the folder of its shards.

    `video_network` and `audio_network` may be a torch.nn.Module, of which a copy is trained, a callable that makes one,
    or text as in the command's options. The same are needed by `load` and `evaluate`.

    Raises UserError if the shards or the settings do not fit, or the loss is not finite.
    """
    from gdt.train.pretrain import pretrain as train

    changes, networks = separate_networks({"shards": shards} | settings)
    on_cpu = settings.get("device") == "cpu"
    checkpoint = train(with_changes(defaults(size or "", on_cpu), changes), networks)
    log = logged(checkpoint.parent / METRICS)
    if not log:
        raise UserError(f"the run has no log {checkpoint.parent / METRICS}; use gdt.load('{checkpoint}')")
    last = log[-1]
    return Pretrained(checkpoint, last["step"] + 1, last["loss"], last["top1"])


@dataclass(frozen=True)
class Evaluated:
    """The results of an evaluation."""

    rows: tuple[dict[str, Any], ...]
    """A row per metric of these models and of random weights, for pandas.DataFrame: model, protocol, metric, value,
    95 % CI (low, high), chance, settings."""
    text: str
    """The tables as printed, with the models of earlier calls."""


def evaluate(checkpoints: Paths, shards: str | Path | None = None, **settings: Any) -> Evaluated:
    """Evaluate models by the paper's protocols; call it again to resume.

    `settings` are fields of `gdt.eval.settings.Downstream`, and `video_network` and `audio_network` as in `pretrain`,
    or lists of them for models with different networks. `shards` default to those of the first model's pretraining; if
    given, the data set is named after their folder. `out` defaults to `runs/eval-<dataset>`. Raises UserError if a
    checkpoint, the shards or their labels do not fit the protocols.
    """
    from gdt.eval import downstream
    from gdt.eval.results import rows

    paths = weights_of(checkpoints)
    if not paths:
        raise UserError("checkpoints is empty; give one or more")
    if "ckpt" in settings:
        raise UserError("ckpt is the first argument, checkpoints; leave it out")
    folder = Folder(shards) if shards else None
    dataset = settings.get("dataset") or (folder.name if folder else "")
    changes, networks = separate_networks(settings)
    evaluated = downstream.evaluate(with_changes(Downstream(paths, dataset, folder), changes), networks)
    # the folder of the evaluation may also hold results of models of earlier calls
    asked = {job.key for job in evaluated.jobs}
    results = [result for result in evaluated.results if result.key in asked]
    return Evaluated(tuple(rows(results)), evaluated.text)


def load(
    path: str | Path, *, video_network: NetworkLike | None = None, audio_network: NetworkLike | None = None
) -> Model:
    """Load a checkpoint, an exported file or folder, a model in a hub, or published weights.

    hf://owner/name, maybe with @revision, is downloaded from the Hugging Face hub, as `gdt export --to` wrote it. Names
    of `gdt.train.published.PUBLISHED`, such as gdt-k400, are downloaded into the cache of torch.hub.

    If the checkpoint was trained with networks of your own, give them again (see `pretrain`). Raises UserError for any
    other file. No code in a file is run.
    """
    path = str(path)
    networks = {"video": video_network, "audio": audio_network}
    given = {modality: (network,) for modality, network in networks.items() if network is not None}
    return Model(path, load_trained(path, makers(given)))


class Model:
    """A trained model."""

    def __init__(self, path: str, trained: Trained) -> None:
        self._path = path
        self._trained = trained

    def __repr__(self) -> str:
        modalities = ", ".join(self._trained.model.modalities)
        clip = self._trained.settings.clip
        return f"<gdt.Model {Folder(self._path)}: {self._trained.name}; {modalities}; clips of {clip}>"

    @property
    def network(self) -> GDT:
        """The torch module, from inputs by modality (those of `batches` with this model) to embeddings [n, d] of
        length 1.
        """
        return self._trained.model

    @property
    def settings(self) -> Pretrain:
        """The settings of its pretraining."""
        return self._trained.settings

    def embed(
        self,
        videos: Paths,
        *,
        modalities: FeatureModality | Sequence[FeatureModality] = (),
        kind: Kind = "embeddings",
        clips: int = 10,
        every: float = 0.0,
        workers: int = 0,
        out: str | Path | None = None,
    ) -> Features:
        """Features of video files and folders of videos, or of one folder of shards.

        `modalities`: "video", "audio" or both; by default all that the model has networks for. `kind`: "embeddings" of
        length 1, which can be compared across modalities, or "features" of the trunks, both the mean over `clips`
        uniform clips, or a row for a clip each `every` seconds. `workers`: videos decoded at once, 0 for one per core.
        `out`: a file to write, as `gdt embed` does: repeated, it resumes and adds videos.

        Unusable files are in `skipped` with their reasons. Frames, about 2 GB at most, are decoded into the folder of
        temporary files (TMPDIR). Raises UserError if no video can be used or an argument is invalid.
        """
        paths = tuple(map(Folder, [videos] if isinstance(videos, str | Path) else videos))
        if not paths:
            raise UserError("videos is empty; give one or more")
        shards = paths[0] if len(paths) == 1 and paths[0].exists(INDEX) else None
        names = (modalities,) if isinstance(modalities, str) else tuple(modalities)
        changes = {"modalities": names, "kind": kind, "clips": clips, "every": every, "workers": workers}
        settings = with_changes(Embed(self._path, () if shards else paths, shards=shards), changes)
        if out is not None:
            return write_features(replace(settings, out=Path(out).expanduser()), self._trained)[0]
        return features_of(settings, self._trained)


def nearest(
    features: Features | str | Path,
    query: str | Path | Features,
    *,
    by: FeatureModality = "video",
    among: FeatureModality | None = None,
    k: int = 5,
    model: Model | None = None,
) -> list[tuple[str, float]]:
    """The k videos, or moments of videos, most similar to a query: ids and cosines, nearest first.

    `features` may be a file of `gdt embed`. `query` is an id among them, features of another video, or a file of video
    or sound, or a moment, as in "a.mp4#t=12.5" or "a.mp4#t=12,15"; other files are embedded with `model`, by default
    the one that made the features. Its modality `by` is compared with the modality `among` of the others, by default
    the same; across modalities, features must be embeddings. Of several moments of a query, the most similar counts.
    """
    if k < 1:
        raise UserError(f"k is {k}; it must be 1 or more")
    stored = features if isinstance(features, Features) else read_features(features)
    trained = model._trained if model else None
    asked = find_query(stored, query if isinstance(query, Features) else str(query), by, trained=trained)
    found = most_similar(stored, asked, by, among or by, k)
    return [(address(stored, row), float(cosine)) for row, cosine in zip(found.rows, found.cosines, strict=True)]


def mteb(
    checkpoint: str | Path,
    *,
    kind: Kind = "embeddings",
    clips: int = 10,
    video_network: NetworkLike | None = None,
    audio_network: NetworkLike | None = None,
) -> Any:
    """A model for MTEB's tasks on video and sound: `mteb.evaluate(gdt.mteb(checkpoint), tasks)`.

    `checkpoint` and networks as in `load`; `kind` and `clips` as in `Model.embed`. Of tasks with both modalities,
    embeddings are summed and features joined. Raises UserError without the package mteb.
    """
    if importlib.util.find_spec("mteb") is None:
        raise UserError("gdt.mteb needs the package mteb; run pip install mteb")
    from gdt.eval.mteb import Encoder

    path = str(checkpoint)
    model = load(path, video_network=video_network, audio_network=audio_network)
    return Encoder(path, model._trained, kind, clips)


def batches(
    shards: str | Path,
    preset: str = "",
    *,
    factors: str = "",
    batch_size: int = 16,
    epochs: int = 1,
    size: Size | None = None,
    split: str = "train",
    seed: int = 0,
    word2vec: str | Path | None = None,
    device: str | torch.device | None = None,
    model: Model | None = None,
) -> Batches:
    """Batches of a composition for your own training loop, the same in every run.

    `preset` (default: l) or `factors` name the composition, as in pretraining; `size` is the size of clips: paper
    (30 frames of 112x112; default with a GPU), small (16 of 48x48) or tiny (8 of 32x32). Inputs are normalised by the
    statistics of the shards. With a `model`, clips and normalisation are what its network was trained with. Raises
    UserError if shards, composition and split do not match.
    """
    if model is not None and size is not None:
        raise UserError("size has no effect beside a model, whose clips are taken; leave one of them out")
    changes: dict[str, Any] = {"shards": shards, "split": split, "factors": factors}
    if preset or not factors:
        changes["preset"] = preset or "l"
    changes |= {"word2vec": word2vec, "batch_size": batch_size, "group_size": 0, "epochs": epochs, "seed": seed}
    device = any_device() if device is None else torch.device(device)
    settings = with_changes(defaults(size or (model.settings.size if model else ""), device.type == "cpu"), changes)
    if model is not None:
        pretraining = model.settings
        sizes = {name: getattr(pretraining, name) for name in ("clip", "augmentation", "network")}
        settings = replace(settings, **sizes)
    index = Index.open(settings.shard_folder)
    require_gpus(1, "cuda" if device.type == "cuda" else "cpu")
    start = None if model is None else model._trained
    experiment = resolve(settings, index, device, start=start)
    return Batches(experiment, index, device)
