"""Settings of pretraining, one dataclass per component, and the defaults of each size."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from gdt.common.commandline import Location
from gdt.common.errors import UserError, require_range
from gdt.common.folders import Folder
from gdt.pipeline import notation, presets
from gdt.pipeline.leaves import Clip
from gdt.pipeline.shards.index import require_index
from gdt.pipeline.shards.naming import dataset_name, shard_folder
from gdt.pipeline.sources.loading import Loading
from gdt.pipeline.transformations.augmentation import Augmentation
from gdt.train.gpu import Size
from gdt.train.models.network import PAPER_NETWORKS, Architecture, Network, OwnNetworks
from gdt.train.run import require_weights
from gdt.train.schedule import Optimization

Precision = Literal["float32", "bfloat16", "float64"]


NOT_COMPARED = "not compared"
"""Marks settings that may change when a run is resumed: they do not affect results, or what they name is compared."""


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise UserError(message)


SIZES: dict[str, Pretrain] = {}
"""All settings of each size; filled below."""


@dataclass(frozen=True)
class Pretrain:
    """Pretrain on shards; run the same command again to resume."""

    dataset: str = ""
    """Name of the preprocessed data set; default: that of --shards, else kinetics."""
    shards: Annotated[Location | None, NOT_COMPARED] = None
    """Folder of the data set's shards, or s3://…; default: data/shards/<dataset>."""
    split: str = "train"
    """Split to learn from."""
    shuffle_shards: int = 0
    """Shuffle videos within groups of N shards, for slow disks; 0: all videos."""
    preset: Annotated[str, NOT_COMPARED] = "l"
    """Row of the paper's table 1, or another preset."""
    factors: Annotated[str, NOT_COMPARED] = ""
    """Composition in place of a preset, such as "video:d time_shift:d:2 modality:i:2:differs augmentation:i:1": each
    factor with its contrast (distinctive or invariant) and its K."""
    size: Size = "paper"
    """Defaults of row, networks, clips and schedule: the paper's, those that learn from real clips on a CPU in
    minutes, or those of tests; default: paper with a GPU, else small."""
    factors_from: Annotated[Path | None, NOT_COMPARED] = None
    """Python file with custom transformations, for --factors."""
    word2vec: Annotated[Path | None, NOT_COMPARED] = None
    """word2vec file that the shards were made with; needed for text."""
    init: Annotated[str | None, NOT_COMPARED] = None
    """Weights to start from, or their name, such as gdt-k400. Sets the normalisation of inputs, too, but not the size
    of clips."""
    out: Annotated[Path | None, NOT_COMPARED] = None
    """Folder of the run; default: runs/<dataset>-<composition>, and -seed<n> unless that is 0."""
    overwrite: Annotated[bool, NOT_COMPARED] = False
    """Start anew, also if that folder holds a run, which is lost."""
    batch_size: int = 512
    """Videos per batch over all GPUs (K of factor video); by default fewer if there are fewer videos, or for whole
    groups."""
    epochs: int = 100
    """Passes over the videos."""
    steps: int = 0
    """Batches to train for, instead of --epochs."""
    temperature: float = 0.07
    """rho of equation 1."""
    seed: int = 0
    """Seed of batches, initial weights and dropout."""
    group_size: int = 64
    """Videos of a group, one clip each, that share batch-norm statistics and a pass; 0: all clips of a modality in one
    pass. By default lowered to 32 or 16 on small GPUs, and to a divisor of the batch. Fixed for a run."""
    gradient_cache: Annotated[Literal["auto", "on", "off"], NOT_COMPARED] = "auto"
    """on: embed each group twice, in the memory of one; off: keep the activations of all groups; auto: keep those that
    fit into the GPU's memory, and embed the other groups twice. Does not change results."""
    clip: Clip = field(default_factory=Clip)
    """Size of a leaf."""
    augmentation: Augmentation = field(default_factory=Augmentation)
    """Ranges of the augmentations."""
    network: Network = field(default_factory=Network)
    """Sizes of the networks."""
    own_networks: Annotated[OwnNetworks, tyro.conf.arg(name=""), NOT_COMPARED] = PAPER_NETWORKS
    """Networks of your own."""
    optimization: Annotated[Optimization, tyro.conf.arg(name="")] = field(default_factory=Optimization)
    """Optimizer and schedule."""
    loading: Annotated[Loading, NOT_COMPARED] = field(default_factory=Loading)
    """Threads and buffers of the loader."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto takes a GPU if there is one."""
    # float32 on CPUs: there, torch 2.13's bfloat16 convolutions return NaN for finite inputs. float64 for comparisons:
    # in float32, rounding differences grow within a few steps
    precision: Literal["auto", "float32", "bfloat16", "float64"] = "auto"
    """Precision of the networks; auto is bfloat16 on GPUs and float32 on CPUs. float64 is for exact comparisons."""
    compile: Annotated[Literal["auto", "on", "off"], NOT_COMPARED] = "auto"
    """torch.compile for the networks of video and sound; auto compiles on GPUs."""
    threads: int = 0
    """CPU threads per process; 0: torch's default."""
    checkpoint_steps: Annotated[int, NOT_COMPARED] = 0
    """Also write a checkpoint every N steps, besides those every 5 minutes, at the end and when the run is stopped."""
    probe_every: Annotated[int | None, NOT_COMPARED] = None
    """Steps between probes of cross-modal recall and of collapse among up to 256 videos of the split val, or test;
    default: four probes, if there are such videos and time, but none of shards in a store; 0: none. The probe does not
    affect training."""
    wandb: Annotated[str, NOT_COMPARED] = ""
    """Weights & Biases project to send the metrics to; needs the package wandb."""
    cache: Annotated[str, NOT_COMPARED] = ""
    """Size of a run's cache of shards in a store, such as 500GB; default: most of the free disk."""

    def __post_init__(self) -> None:
        _require(
            not (self.factors and self.is_set("preset")),
            "--preset and --factors both set the composition; leave one of them out",
        )
        if not self.factors:
            presets.preset(self.preset)
        _require(
            self.batch_size >= 2,
            f"--batch-size is {self.batch_size}, the K of factor 'video'; it must be 2 or more, "
            "so that there are negatives (condition iii of section 3.1)",
        )
        dataset_name(self.dataset, None)  # validates
        require_range(self, "epochs", "steps", "shuffle_shards", "seed", least=0)
        _require((self.probe_every or 0) >= 0, f"--probe-every is {self.probe_every}; it must be 0 or more")
        both = self.is_set("epochs") and self.is_set("steps") and self.epochs and self.steps
        _require(not both, "--epochs and --steps both set the length; leave one of them out")
        _require(self.epochs + self.steps > 0, "--epochs and --steps are 0; set one of them")
        _require(
            self.group_size == 0 or self.group_size >= 2,
            f"--group-size is {self.group_size}; it must be 0 or 2 and more",
        )
        _require(0 < self.temperature < math.inf, f"--temperature is {self.temperature}; it must be above 0")
        _require(
            self.clip.size <= self.augmentation.scale[0],
            f"a crop of {self.clip.size} pixels (--clip.size) does not fit into a frame resized to "
            f"{self.augmentation.scale[0]} (--augmentation.scale); lower the first or raise the second",
        )

    def require_inputs(self) -> None:
        """Raise UserError if shards or initial weights are missing."""
        require_index(self.shard_folder)
        if self.init:
            require_weights([self.init])

    @property
    def shard_folder(self) -> Folder:
        return shard_folder(self.dataset_name, self.shards)

    @property
    def dataset_name(self) -> str:
        return dataset_name(self.dataset, self.shards)

    def is_set(self, name: str) -> bool:
        """Whether a setting differs from that of the size; if not, it may be fitted to the videos and the machine."""
        size = SIZES.get(self.size, self)
        return bool(getattr(self, name) != getattr(size, name))

    @property
    def fixed_batch_size(self) -> int:
        """Videos per batch as set by --batch-size or --factors; 0 if neither sets it."""
        return self.batch_size if self.is_set("batch_size") else notation.batch_size(self.factors)

    @property
    def planned_batch_size(self) -> int:
        """Videos per batch, if there are as many."""
        return self.fixed_batch_size or self.batch_size

    @property
    def planned_epochs(self) -> int:
        """Passes over the videos; 0 if the length is in steps."""
        return self.epochs if self.is_set("epochs") or not self.steps else 0

    @property
    def short_name(self) -> str:
        """Short name of the composition: the preset, or its factors but the videos and one augmentation."""
        if not self.factors:
            return self.preset
        factors = " ".join(self.factors.split()[1:]).removesuffix(" augmentation:i:1")
        return re.sub(r"[^\w.,]+", "-", factors)

    @property
    def run_folder(self) -> Path:
        seed = f"-seed{self.seed}" if self.seed else ""
        return self.out or Path("runs") / f"{self.dataset_name}-{self.short_name}{seed}"


@dataclass(frozen=True)
class RunSettings(Pretrain):
    """Settings with all defaults that decide numbers filled in, but for the length: those of a run, and of weights."""

    network: Architecture = field(kw_only=True)
    device: Literal["cpu", "cuda"] = field(kw_only=True)
    precision: Precision = field(kw_only=True)
    compile: Annotated[Literal["on", "off"], NOT_COMPARED] = field(kw_only=True)

    @staticmethod
    def of(settings: Pretrain, *, cuda: bool = False, **values: Any) -> RunSettings:
        """Settings with other values; what neither sets is as on a CPU, or with `cuda` as on a GPU."""
        unset = {
            "device": ("auto", "cuda" if cuda else "cpu"),
            "precision": ("auto", "bfloat16" if cuda else "float32"),
            "compile": ("auto", "on" if cuda else "off"),
        }
        filled = {"network": Architecture(**vars(settings.network)), "batch_size": settings.planned_batch_size}
        values = vars(settings) | filled | values
        for name, (empty, default) in unset.items():
            if values[name] == empty:
                values[name] = default
        return RunSettings(**values)


_FOR_CPUS = Network(
    stem=16,
    stem_middle=16,
    widths=(16, 32, 64, 128),
    depth=1,
    slim=True,
    audio_stem=16,
    audio_widths=(16, 32, 64),
    text_width=256,
    hidden=256,
    embedding=128,
    dropout=0.0,
)
# 3e-3, which suits drawn shapes, collapses within 200 steps on real clips (docs/results.md)
_ADAM = Optimization(optimizer="adamw", lr=1e-3, base_batch_size=0, weight_decay=1e-2, warmup_epochs=0, lr_decay=0.25)
_ON_CPUS = Loading(threads=1, decode_batch_size=32)

SIZES.update(
    paper=Pretrain(),
    small=Pretrain(
        size="small",
        preset="e",
        batch_size=64,
        epochs=0,
        steps=900,
        group_size=0,
        clip=Clip(frames=16, stride=4, size=48, mel_frames=199),
        augmentation=Augmentation(scale=(48, 54), brightness=0.1, contrast=0.1, saturation=0.1),
        network=_FOR_CPUS,
        optimization=replace(_ADAM, lr=1.5e-3),
        loading=_ON_CPUS,
    ),
    tiny=Pretrain(
        size="tiny",
        batch_size=16,
        epochs=0,
        steps=600,
        group_size=0,
        clip=Clip(frames=8, stride=4, size=32),
        augmentation=Augmentation(scale=(36, 46), hue=0.1),  # as in the README's results
        network=_FOR_CPUS,
        optimization=_ADAM,
        loading=_ON_CPUS,
    ),
)
