"""GDT from Python: what the commands do, a search among features, and the loader for training loops of one's own.

    import gdt

    made = gdt.preprocess("/my/videos", "data/shards/mine", test=0.1)
    run = gdt.pretrain(made.shards, size="tiny", preset="l", steps=500, out="runs/mine")
    print(run.loss, gdt.evaluate(run.checkpoint, made.shards).rows)

    model = gdt.load(run.checkpoint)  # or published weights, or an exported file
    found = model.embed(["a.mp4", "b.mp4"])  # files, folders, or a folder of shards
    found.id, found.features["video"], found.features["audio"], found.skipped
    gdt.nearest(found, "a.mp4", by="audio", among="video")  # pictures that go with a sound

Settings are those of the commands by the same names, as `gdt pretrain --help` lists them, and their types are checked;
paths may be text. Whatever is wrong with files and settings is raised as `gdt.UserError`, with a sentence that says
what to do.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from torch import Tensor

from gdt.common import serialization
from gdt.common.errors import UserError
from gdt.eval.embed import Embed, Features, Kind, Modality, Per, features
from gdt.eval.embed import read as read_features
from gdt.eval.nearest import most_similar
from gdt.pipeline.composition import Composition
from gdt.pipeline.loader import Batch, Loader
from gdt.pipeline.shards.index import Index
from gdt.pipeline.shards.layout import INDEX
from gdt.train.checkpoint import Trained, load_model
from gdt.train.loss import gdt_loss
from gdt.train.models.gdt import GDT, any_device
from gdt.train.settings import METRICS, SIZES, Pretrain

__all__ = [
    "GDT", "Batch", "Batches", "Evaluated", "Features", "Index", "Model", "Preprocessed", "Pretrained", "UserError",
    "batches", "evaluate", "gdt_loss", "load", "nearest", "preprocess", "pretrain", "read_features",
]  # fmt: skip

Paths = str | Path | Sequence[str | Path]
Size = Literal["paper", "tiny"]
T = TypeVar("T")


@dataclass(frozen=True)
class Preprocessed:
    """Shards, and what is in them."""

    shards: Path
    videos: int
    """Found, and listed but missing."""
    kept: int
    """Of these, those in the shards."""
    left_out: dict[str, int]
    """How many of the others for which reason; each is named in rejected.jsonl beside the shards."""


def preprocess(source: str | Path, out: str | Path, dataset: str = "folder", **settings: Any) -> Preprocessed:
    """Make shards of the videos below a folder, in `out`; again: goes on where it stopped.

    `settings` are fields of `gdt.preprocess.stage.Preprocess`.
    """
    from gdt.preprocess.stage import Preprocess, run

    asked = _with(Preprocess(dataset, Path(source), Path(out)), settings)
    if asked.dry_run:
        raise UserError("dry_run is the command's: 'gdt preprocess --dry-run' says how long and how large all would be")
    found = run(asked)
    return Preprocessed(found.index.folder, found.videos, found.kept, found.reasons)


@dataclass(frozen=True)
class Pretrained:
    """A run that is done."""

    checkpoint: Path
    steps: int
    loss: float
    """Of the last step."""
    top1: float
    """Of the last step: share of the leaves whose most similar one is a positive."""


def pretrain(shards: str | Path, size: Size = "paper", **settings: Any) -> Pretrained:
    """Train on shards, on this machine's first GPU or its CPU; again: goes on where it stopped.

    `settings` are fields of `gdt.train.settings.Pretrain`; `steps` take the place of a size's `epochs`, and the other
    way round. The data set is called like the folder of its shards unless `dataset` says otherwise.
    """
    from gdt.train.pretrain import pretrain as train

    if settings.get("cached_batches"):
        raise UserError("cached_batches only measures speed; use 'gdt pretrain --cached-batches'")
    lengths = {"epochs": 0, "steps": 0} if {"epochs", "steps"} & settings.keys() else {}
    given = {"dataset": Path(shards).name, "shards": shards} | lengths | settings
    checkpoint = train(_with(_base(size), given))
    *_, last = (checkpoint.parent / METRICS).read_text().splitlines()
    row: dict[str, Any] = json.loads(last)
    return Pretrained(checkpoint, row["step"] + 1, row["loss"], row["top1"])


@dataclass(frozen=True)
class Evaluated:
    """What models were measured to know."""

    rows: tuple[dict[str, Any], ...]
    """One for each number: model, protocol, metric, value, its 95 % interval (low, high), chance and what decides it;
    pandas.DataFrame(rows) is a table."""
    text: str
    """The tables as they are printed."""
    tables: dict[str, Path]
    """The same in files, by their suffix: txt, tex and csv."""


def evaluate(checkpoints: Paths, shards: str | Path | None = None, **settings: Any) -> Evaluated:
    """Evaluate models by the paper's protocols; again: goes on where it stopped.

    `settings` are fields of `gdt.eval.settings.Downstream`. `shards` are by default those that the first
    model learned from; the data set is called like their folder. Results are kept in `out`, by default
    runs/eval-<dataset>.
    """
    from gdt.eval import record
    from gdt.eval.downstream import downstream
    from gdt.eval.settings import Downstream

    paths = _paths(checkpoints)
    dataset = settings.get("dataset") or (Path(shards).name if shards else "")
    out = Path("runs") / f"eval-{dataset or load_model(paths[0]).settings.dataset}"
    asked = _with(Downstream(paths, dataset, Path(shards) if shards else None, out=out), settings)
    if not asked.tables:
        raise UserError("tables=False is for the commands that call this one; what is returned is read from the tables")
    text, out = downstream(asked), asked.out or out
    tables = {"txt": out / "table.txt", "tex": out / "table.tex", "csv": out / "results.csv"}
    return Evaluated(tuple(record.rows(record.read(out / "results.json"))), text, tables)


def _paths(given: Paths) -> tuple[Path, ...]:
    return (Path(given),) if isinstance(given, str | Path) else tuple(map(Path, given))


def _base(size: str) -> Pretrain:
    """The settings of a size, of which others are changed."""
    if size not in SIZES:
        raise UserError(f"there is no size '{size}'; choose one of {', '.join(SIZES)}")
    return SIZES[size][1]


def _with(base: T, given: Mapping[str, Any]) -> T:
    """Settings with some of them changed. Raises UserError where one is unknown or of another type."""

    def plain(value: Any) -> Any:
        return asdict(value) if is_dataclass(value) and not isinstance(value, type) else str(value)

    values = json.loads(serialization.to_json(base)) | json.loads(json.dumps(dict(given), default=plain))
    try:
        return serialization.from_dict(type(base), values)
    except ValueError as error:
        raise UserError(f"settings of {type(base).__name__}: {error}") from error


def load(path: str | Path) -> Model:
    """A model: a checkpoint of a run, an exported file, published GDT weights or torchvision's r2plus1d_18.

    Raises UserError where it is none of these. Nothing in a file is run while it is read.
    """
    return Model(Path(path), load_model(Path(path)))


class Model:
    """A trained model."""

    def __init__(self, path: Path, trained: Trained) -> None:
        self._path, self._trained = path, trained

    @property
    def network(self) -> GDT:
        """The torch module; it maps inputs by modality, as `Batch` has them, to embeddings [n, d] of length 1."""
        return self._trained.model

    @property
    def settings(self) -> Pretrain:
        """What it was pretrained with: its clips, its composition, its seed."""
        return self._trained.settings

    def embed(
        self, videos: Paths, *, modalities: Modality | Sequence[Modality] = (), kind: Kind = "embeddings",
        per: Per = "video", clips: int = 10, workers: int = 0,
    ) -> Features:  # fmt: skip
        """Features of video files and of all videos in folders, or of a folder of shards (a single one).

        `modalities`: "video", "audio" or both; by default what the model has networks for. `kind`: "embeddings" of
        length 1, which can be compared across modalities, or "features" of the trunks. `per`: a row per "video", the
        mean over `clips` uniform clips, or one per "clip". `workers`: processes that decode, 0 for one per core.

        Files that cannot be used are in `skipped`, with their reasons. Frames are decoded into the folder of temporary
        files (TMPDIR), all before the first feature is computed: preprocess what does not fit there, and embed shards.
        Raises UserError where no video can be used, or an argument is not one of those above.
        """
        paths = _paths(videos)
        shards = paths[0] if len(paths) == 1 and (paths[0] / INDEX).is_file() else None
        with tempfile.TemporaryDirectory() as folder:
            settings = Embed(
                self._path, () if shards else paths, shards=shards, out=Path(folder) / "features.npz", kind=kind,
                modalities=(modalities,) if isinstance(modalities, str) else tuple(modalities), per=per, clips=clips,
                workers=workers,
            )  # fmt: skip
            return features(settings, self._trained)


def nearest(
    features: Features,
    query: str | Path | Features,
    *,
    by: Modality = "video",
    among: Modality | None = None,
    k: int = 5,
) -> list[tuple[str, float]]:
    """The ids of the k videos that are most like one, with the cosines, nearest first.

    `query` is an id among the features, or features of another video. `by` says what of it is compared, `among` with
    what of the others: by default the same; across modalities, features have to be embeddings.
    """
    own = np.zeros(0, np.int64) if isinstance(query, Features) else np.flatnonzero(features.id == str(query))
    if not isinstance(query, Features) and not len(own):
        raise UserError(f"there is no video '{query}' among these features")
    asked = query if isinstance(query, Features) else features
    found, cosines = most_similar(features, asked, own, by, among or by, k)
    return list(zip(features.id[found].tolist(), cosines.tolist(), strict=True))


def batches(
    shards: str | Path, preset: str = "l", *, factors: str = "", batch_size: int = 16, epochs: int = 1,
    size: Size = "paper", split: str = "train", seed: int = 0, word2vec: str | Path | None = None,
    device: str | torch.device | None = None,
) -> Batches:  # fmt: skip
    """Batches of a composition for a training loop of one's own, the same whenever they are asked for.

    `preset` or `factors` name the composition, as in pretraining; `size` says how large clips are (30 frames of
    112x112, or 8 of 32x32). Raises UserError where shards, composition and split do not fit.
    """
    settings = replace(
        _base(size), shards=Path(shards), preset=preset, factors=factors, batch_size=batch_size,
        split=split, seed=seed, epochs=epochs, steps=0, word2vec=None if word2vec is None else Path(word2vec),
    )  # fmt: skip
    place = any_device() if device is None else torch.device(device)
    return Batches(settings, Index.open(shards), place)


class Batches:
    """Iterate over it as often as you like: each time the same batches come, made ahead in the background."""

    def __init__(self, settings: Pretrain, index: Index, device: torch.device) -> None:
        self.settings, self.index, self.device = settings, index, device
        self._tree = settings.tree(index)
        self._words = settings.words(index)

    @property
    def composition(self) -> Composition:
        return self._tree.composition

    def __len__(self) -> int:
        return self.settings.epochs * self._tree.batches_per_epoch

    def __iter__(self) -> Iterator[Batch]:
        """Its tensors are reused: they hold until the next batch is taken."""
        plans, s = self._tree.plans(0, len(self)), self.settings
        with Loader(self.index, plans, s.clip, self.device, s.loading, self._words) as loader:
            yield from loader

    def loss(self, embeddings: Tensor | Mapping[str, Tensor], batch: Batch, temperature: float = 0.07) -> Tensor:
        """Equation 1 for embeddings of length 1 of a batch's leaves: [n, d] in the order of `batch.inputs`, or [n_m, d]
        by modality.
        """
        if isinstance(embeddings, Mapping):
            embeddings = torch.cat([embeddings[name] for name in batch.inputs])
        return gdt_loss(embeddings, batch.table, self.composition.factors, temperature)

    def network(self) -> GDT:
        """A network of the size, with random weights."""
        words = self._words.dimensions if self._words else 0
        network = replace(self.settings.network, word_dimensions=words)
        return GDT(network, self.composition.modalities).to(self.device)
