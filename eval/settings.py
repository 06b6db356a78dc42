"""Settings of `gdt evaluate`, `embed`, `nearest`, `duplicates`, `export`, `show-tree` and `show-batch`."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from gdt.common.commandline import Location
from gdt.common.errors import UserError, require_range, require_suffix
from gdt.common.files import require_new_file
from gdt.common.folders import Folder
from gdt.eval.protocols import PROTOCOLS
from gdt.pipeline.shards.index import require_index
from gdt.pipeline.shards.naming import shard_folder
from gdt.preprocess.workers import Workers
from gdt.train.gpu import Size
from gdt.train.models.network import ReadsWeights
from gdt.train.run import require_weights

if TYPE_CHECKING:
    ProtocolName = str
    FrozenName = str
else:
    ProtocolName = Literal[tuple(PROTOCOLS)]
    FrozenName = Literal[tuple(name for name, facts in PROTOCOLS.items() if not facts.trains)]

FeatureModality = Literal["video", "audio"]
Kind = Literal["embeddings", "features"]


@dataclass(frozen=True)
class ModelsAndData(ReadsWeights):
    """Models, and the data set that they are measured on."""

    ckpt: tuple[str, ...] = ()
    """Checkpoints or external weights, a row of the table each; default: the latest in runs."""
    dataset: str = ""
    """Preprocessed data set; default: that of the first checkpoint."""
    shards: Location | None = None
    """Folder of shards, or s3://…; default: data/shards/<dataset>."""

    def require_inputs(self) -> None:
        """Raise UserError if weights or shards are missing."""
        require_weights(self.ckpt)
        if self.shards:
            require_index(Folder(self.shards))


@dataclass(frozen=True)
class Downstream(ModelsAndData):
    """Evaluate checkpoints by the paper's protocols. Run the same command again to resume."""

    protocols: tuple[ProtocolName, ...] = ()
    """Protocols; default: cross-modal, retrieval, few-shot, knn if they apply."""
    folds: tuple[int, ...] = ()
    """Official folds, from 1; default: all."""
    word2vec: Path | None = None
    """word2vec file that the shards were made with; needed for text."""
    label: str = ""
    """Label columns, such as label,weather; default: the classes."""
    gallery_split: str = ""
    """Split of the gallery; default: train, or val if train has no labels."""
    query_split: str = ""
    """Split of the queries; default: test, or val if there is no test split."""
    clips: int = 10
    """Uniformly spaced clips per video, which are averaged."""
    random_weights: Literal["include", "only", "exclude"] = "include"
    """Random weights as a baseline: include, only these rows, or exclude."""
    modalities: tuple[FeatureModality, ...] = ("video",)
    """Networks to take features from; both: L2-normalised and concatenated."""
    epochs: int = 0
    """Epochs of finetune; the schedule is scaled to them; 0: 12."""
    lr: float = 0.0
    """Peak learning rate of finetune; 0: 0.02."""
    clips_per_epoch: int = 0
    """Random clips per training video and epoch; 0: 10 (tiny: 4)."""
    train_samples: int = 0
    """Random training videos of finetune, linear and svm; 0: all."""
    linear_c: float = 1.0
    """Inverse strength of L2 regularisation of linear probe and SVM."""
    seed: int = 0
    """Seed of shots, samples, classifier and order of clips."""
    jobs: int = 0
    """Finetuning runs in parallel; 0: one per GPU, else per core."""
    out: Path | None = None
    """Folder of results; default: runs/eval-<dataset>."""
    tables: bool = True
    """Write the tables, alone in the folder; off in processes that a command starts."""
    cache: str = ""
    """Size of a run's cache of shards in a store, such as 500GB; default: most of the free disk."""

    def __post_init__(self) -> None:
        require_range(self, "clips", most=1000)
        require_range(self, "epochs", "lr", "clips_per_epoch", "train_samples", "seed", "jobs", least=0)
        if not self.linear_c > 0:
            raise UserError(f"--linear-c is {self.linear_c:g}; it must be above 0")
        if min(self.folds, default=1) < 1:
            raise UserError(f"--folds is {' '.join(map(str, self.folds))}; official folds are numbered from 1")
        if len(set(self.modalities)) != max(1, len(self.modalities)):
            raise UserError(f"--modalities is '{' '.join(self.modalities)}'; set it to video, audio, or video audio")
        trained = [name for name in self.protocols if PROTOCOLS[name].trains]
        if len(self.modalities) > 1 and trained:
            raise UserError(
                f"--modalities is {' '.join(self.modalities)}, but {' and '.join(trained)} trains one network; name "
                "one of them"
            )
        if self.protocols:
            self.require_effect(self.protocols)

    def require_effect(self, chosen: Collection[str]) -> None:
        """Raise UserError if a setting affects none of the chosen protocols."""
        users: dict[str, list[str]] = {}
        for protocol, facts in PROTOCOLS.items():
            for name in facts.settings:
                users.setdefault(name, []).append(protocol)
        for name, protocols in users.items():
            changed = getattr(self, name) != getattr(type(self), name)
            if changed and name != "seed" and not set(protocols) & set(chosen):  # a seed is never refused
                raise UserError(
                    f"--{name.replace('_', '-')} has no effect on {', '.join(chosen)}; it applies only to "
                    f"{' and '.join(protocols)}"
                )

    @property
    def labels(self) -> tuple[str, ...]:
        """The columns of `label` in order; "" stands for the classes of the data set."""
        return tuple("" if name == "label" else name for name in dict.fromkeys(self.label.split(",")))

    @property
    def requires_labels(self) -> bool:
        """Whether a setting is given that applies only to protocols with labels."""
        return any([self.label, self.folds, self.gallery_split, self.modalities != ("video",)])


@dataclass(frozen=True)
class Embed(Workers, ReadsWeights):
    """Write embeddings or trunk features of your videos, or of a data set, to a file."""

    ckpt: str | None = None
    """Checkpoint of a pretrained model, or external weights; default: the latest in runs."""
    source: tuple[Location, ...] = ()
    """Files and folders of videos or sounds, also s3://…."""
    dataset: str = ""
    """Preprocessed data set, instead of --source."""
    shards: Location | None = None
    """Folder of shards, or s3://…; default: data/shards/<dataset>."""
    out: Path = Path("features.h5")
    """File: .h5, .npz or .parquet (needs pyarrow)."""
    modalities: tuple[FeatureModality, ...] = ()
    """Modalities; default: all of the model."""
    kind: Kind = "embeddings"
    """embeddings (head; comparable across modalities) or features (trunk)."""
    clips: int = 10
    """Uniformly spaced clips per video."""
    every: float = 0.0
    """A row per moment, of a clip each so many seconds, instead of the mean per video."""
    drop_missing: bool = False
    """Leave out the rows of videos that have gone."""
    overwrite: bool = False
    """Replace an existing file, instead of adding the videos that it lacks."""
    cache: str = ""
    """Size of a run's cache of shards in a store, such as 500GB; default: most of the free disk."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if bool(self.source) == bool(self.dataset or self.shards):
            raise UserError("set --source to files or folders, or --dataset to a preprocessed data set, but not both")
        if self.cache if self.source else self.workers or self.scheduler:
            raise UserError("--cache has no effect on --source, nor --workers and --scheduler on shards; leave it out")
        require_range(self, "clips", most=1000)
        require_range(self, "every", least=0.0, most=1e6)
        if self.every and self.clips != Embed.clips:
            raise UserError("--clips has no effect with --every, whose rows are of one clip; leave it out")
        require_suffix(self.out, ".h5", ".npz", ".parquet")

    def require_inputs(self) -> None:
        """Raise UserError if the file cannot be written, or weights, videos or shards are missing."""
        require_new_file(self.out, overwrite=True)
        require_weights([self.ckpt] if self.ckpt else [])
        if not self.source:
            require_index(shard_folder(self.dataset, self.shards))
        elif local := [folder.root for folder in map(Folder, self.source) if not folder.remote]:
            from gdt.preprocess.named import require_videos  # half a second to import

            for path in local:
                require_videos(path, set())


@dataclass(frozen=True)
class Nearest(ReadsWeights):
    """Find the videos most similar to a query video."""

    query: str
    """Id in the features file, or a file of video or sound; of a moment, as in a.mp4#t=12.5 or a.mp4#t=12,15."""
    features: Path = Path("features.h5")
    """File written by `gdt embed`, .h5, .npz or .parquet."""
    by: FeatureModality = "video"
    """Modality of the query."""
    among: Annotated[FeatureModality | None, tyro.conf.arg(metavar="{video,audio}")] = None
    """Modality to search (other than --by: needs embeddings); default: --by."""
    k: int = 5
    """Number of neighbours."""
    out: Path | None = None
    """Page to write: the neighbours in motion and with sound, .html."""

    def __post_init__(self) -> None:
        require_range(self, "k")
        require_suffix(self.out, ".html")


@dataclass(frozen=True)
class Duplicates:
    """Find videos that are nearly the same, in picture and sound."""

    features: Path = Path("features.h5")
    """File written by `gdt embed`, .h5, .npz or .parquet."""
    above: float = 0.98
    """Cosine above which two videos are the same, in each modality that both have."""
    out: Path = Path("duplicates.csv")
    """Table to write, .csv: group, id, start, split and cosine."""
    overwrite: bool = False
    """Replace existing files."""

    def __post_init__(self) -> None:
        require_suffix(self.out, ".csv")


@dataclass(frozen=True)
class Export(ReadsWeights):
    """Write the weights of a checkpoint in a format that other programs read."""

    out: Path | None = None
    """File to write."""
    network: Literal["", "video", "audio"] = ""
    """Write only this network, without head, as a state_dict (torch.save) that its own library loads, as torchvision
    does the paper's for video; default: the whole model, as safetensors."""
    ckpt: str | None = None
    """Checkpoint of a pretrained model, or external weights; default: the latest in runs."""
    overwrite: bool = False
    """Replace an existing file or folder."""
    to: Path | None = None
    """Folder to write instead of a file, for a hub: model.safetensors, config.json and a model card."""

    def __post_init__(self) -> None:
        if bool(self.out) == bool(self.to):
            raise UserError("set --out to a file, or --to to a folder, but not both")
        if self.to and self.network:
            raise UserError(f"--network {self.network} is for a file; set --out instead of --to")

    def require_inputs(self) -> None:
        """Raise UserError if the weights are missing."""
        require_weights([self.ckpt] if self.ckpt else [])


@dataclass(frozen=True, kw_only=True)
class Composed:
    preset: str = "l"
    """Row of the paper's table 1, or another preset."""
    factors: str = ""
    """Composition, instead of a preset."""
    factors_from: Path | None = None
    """Python file with custom transformations."""

    @property
    def title(self) -> str:
        return "your factors" if self.factors else f"preset {self.preset}"


@dataclass(frozen=True, kw_only=True)
class ShowTree(Composed):
    """Print the leaves of two videos, and which pairs of them are positive and negative."""

    batch_size: int = 512
    """Batch size for which positives and negatives are counted; default: that of --factors, else 512."""


@dataclass(frozen=True, kw_only=True)
class ShowBatch(Composed):
    """Draw all leaves of one video of a batch."""

    out: Path | None = None
    """The picture, .png, .svg or .pdf; default: in runs."""
    dataset: str = ""
    """Preprocessed data set; default: that of --shards, else kinetics."""
    shards: Location | None = None
    """Folder of shards; default: data/shards/<dataset>."""
    word2vec: Path | None = None
    """word2vec file that the shards were made with; needed for text."""
    size: Size | None = None
    """Size of the clips; default: paper with a GPU, else small."""
    seed: int = 0
    """Seed of the batch."""

    def __post_init__(self) -> None:
        require_suffix(self.out, ".png", ".svg", ".pdf")


@dataclass(frozen=True)
class Report(ReadsWeights):
    """Write report.html, a page of all runs in a folder: tables, learning curves, examples."""

    runs: Path = Path("runs")
    """Folder of runs and evaluations, with its subfolders."""
    models: int = 4
    """Maximum number of models with examples: the best."""
