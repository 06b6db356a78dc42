"""Settings of pretraining, one dataclass per component, and the two sizes they come in."""

from __future__ import annotations

import hashlib
import json
import math
import re
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import tyro

from gdt.common import serialization
from gdt.common.errors import UserError
from gdt.pipeline import notation, presets
from gdt.pipeline.composition import Composition
from gdt.pipeline.leaves import Clip
from gdt.pipeline.shards.index import Index
from gdt.pipeline.shards.layout import shard_folder
from gdt.pipeline.sources.loading import Loading
from gdt.pipeline.transformations.augmentation import Augmentation
from gdt.pipeline.tree import Tree, sampling_tree
from gdt.pipeline.word2vec import WordVectors
from gdt.train.models.network import Network
from gdt.train.schedule import Optimization, Schedule

CHECKPOINT = "checkpoint.pt"
SETTINGS, METRICS, PROBES = "settings.json", "metrics.jsonl", "probe.jsonl"
"""What a run writes beside its checkpoint: what it is, a line for every step, and one for every probe."""
_TWO_NAMES = "--preset and --factors are two names of one thing; give one of them"


def _require(fine: bool, message: str) -> None:
    if not fine:
        raise UserError(message)


@dataclass(frozen=True)
class Pretrain:
    """Pretrain on shards; run again with the same settings to go on where it stopped."""

    headings: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "data": ("dataset", "shards", "split", "shuffle_shards", "word2vec"),
        "composition": ("preset", "factors", "factors_from", "factors_digest"),
        "schedule": ("batch_size", "bn_group_size", "epochs", "steps", "temperature", "seed"),
        "run": ("out", "init", "device", "precision", "compile", "threads", "micro_batch_size", "checkpoint_minutes",
                "checkpoint_steps"),
        "probe": ("probe_every", "probe_videos", "probe_split"),
        "watching": ("wandb", "profile", "cached_batches"),
    }  # fmt: skip
    """Of `--help`, and the settings below them."""

    dataset: str = "kinetics"
    """Name of the preprocessed data set."""
    shards: Path | None = None
    """Folder of its shards; default data/shards/<dataset>."""
    split: str = "train"
    """Which videos to learn from."""
    shuffle_shards: int = 0
    """Shards N whose videos are shuffled with each other, for slow disks: an epoch then reads N shards at a time, in
    random order, each in one stretch. Two videos of one of S shards meet in a batch S/N times as often as with 0, which
    shuffles all videos; 1/N of the videos that one is compared with, and not 1/S, are of its own shard."""
    preset: str = "l"
    """Row of the paper's table 1, or another name of --preset help."""
    factors: str = ""
    """A composition of your own instead of a preset: "video:d time_shift:d:2 modality:i:2:differs augmentation:i:1",
    each factor with its contrast (distinctive, invariant) and its K; --factors help lists the factors."""
    factors_from: Path | None = None
    """Python file with transformations of your own, for --factors."""
    factors_digest: Annotated[str, tyro.conf.Suppress] = ""
    """Of what that file says; the run fills it in, and goes on with the same factors only."""
    word2vec: Path | None = None
    """Where words are a modality: the file of word vectors with which the shards were made."""
    init: Path | None = None
    """Weights to start from, a checkpoint's or from elsewhere; inputs are then normalised as these expect it."""
    out: Path | None = None
    """Folder for checkpoints and logs; default runs/<dataset>-<composition>[-seed<n>]."""
    batch_size: int | None = None
    """Videos per batch over all GPUs (K_i); by default 512 (tiny: 16), or all videos where there are fewer."""
    default_batch_size: Annotated[int, tyro.conf.Suppress] = 512
    """What None is where there are enough videos."""
    epochs: int = 100
    """Passes over the videos; 0 where --steps is set. A run goes on to a larger number where its steps until then had
    the rates that the longer run has there, as with --optimization.decay 0."""
    steps: int = 0
    """Batches to train for; 0 where --epochs is set."""
    temperature: float = 0.07
    """rho of equation 1."""
    seed: int = 0
    """Decides the plans, the initial weights and the dropout; the same seed gives the same run."""
    bn_group_size: int | None = None
    """Leaves of one modality over which batch norm takes its statistics; 0 is the whole batch over all GPUs, as in the
    paper. By default the whole batch where the memory of the GPUs that the run begins on allows it, else groups as
    large as it allows; a run keeps its groups wherever it goes on."""
    micro_batch_size: int = 0
    """Leaves of one modality that are embedded at a time, a multiple of --bn-group-size; no value changes the numbers.
    0 takes all of a GPU's share where they fit into its memory, else as many as do, and embeds them twice."""
    clip: Clip = field(default_factory=Clip)
    """What one leaf holds."""
    augmentation: Augmentation = field(default_factory=Augmentation)
    """From which ranges augmentations are drawn."""
    network: Network = field(default_factory=Network)
    """Sizes of the networks."""
    optimization: Optimization = field(default_factory=Optimization)
    """How the weights move."""
    loading: Loading = field(default_factory=Loading)
    """Threads and buffers of the loader."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to train; auto takes a GPU if there is one."""
    precision: Literal["auto", "float32", "bfloat16", "float64"] = "auto"
    """Arithmetic of the networks (the loss is float32, or float64 with it); auto takes bfloat16 on GPUs and float32 on
    CPUs, where torch 2.13's bfloat16 convolutions were seen to return NaN for finite inputs. float64 is for checks: two
    ways to compute a run differ by rounding, which in float32 decides after some steps where training goes."""
    compile: Literal["auto", "on", "off"] = "auto"
    """Whether torch.compile fuses what lies between the convolutions of the video network; auto does so on GPUs."""
    threads: int = 0
    """CPU threads of one process for the network; 0 leaves it to torch."""
    checkpoint_minutes: float = 10.0
    """Minutes between checkpoints; one is also written at the end and when the run is told to stop."""
    checkpoint_steps: int = 0
    """Steps between checkpoints, in addition; 0 for none."""
    probe_every: int = 0
    """Steps between probes: recall across modalities among held-out videos, since a falling loss proves nothing; 0 for
    none. They change nothing about the run."""
    probe_videos: int = 256
    """Most held-out videos of a probe, drawn once of those of the split that have every modality."""
    probe_split: str = ""
    """Which videos those are; default val, or test where there are none of val."""
    wandb: str = ""
    """Project of Weights & Biases to which the figures of every step go, too; needs the package wandb."""
    profile: int = 0
    """Steps of which a trace is written into the run's folder, after the first five; 0 for none."""
    cached_batches: int = 0
    """Train on the first N batches only, held in memory, to compare clips/s with and without loading. No checkpoint is
    written, since these weights are of no use; 0 for a real run."""

    def __post_init__(self) -> None:
        _require(not self.factors or self.preset == "l", _TWO_NAMES)
        _require(bool(self.factors) or not self.factors_from, "--factors-from has no effect without --factors")
        if not self.factors and self.preset != "help":
            presets.preset(self.preset)
        _require(
            self.batch_size is None or self.batch_size >= 2,
            f"--batch-size is {self.batch_size}, the K of factor 'video'; it must be 2 or more, "
            "or there is no other video to tell apart (condition iii)",
        )
        _require(
            min(self.epochs, self.steps) == 0 and max(self.epochs, self.steps) >= 1,
            f"--epochs is {self.epochs} and --steps is {self.steps}; set one of them to 1 or more and the other to 0",
        )
        _require(
            self.shuffle_shards >= 0,
            f"--shuffle-shards is {self.shuffle_shards}; it must be 0, for all of them, or more",
        )
        _require(
            self.probe_every >= 0 and self.probe_videos >= 2,
            "--probe-every must be 0 or more, and --probe-videos 2 or more",
        )
        norm, chunk = self.bn_group_size, self.micro_batch_size
        _require((norm or 2) >= 2, f"--bn-group-size is {norm}; it must be 0, for the whole batch, or 2 or more")
        _require(
            chunk >= 0 and not (chunk and norm == 0),
            f"--micro-batch-size is {chunk}; it must be 0 or more, and 0 where batch norm is over the whole batch "
            "(--bn-group-size 0)",
        )
        _require(
            not norm or chunk % norm == 0,
            f"--micro-batch-size is {chunk}; it must be a multiple of --bn-group-size ({norm})",
        )
        for name in ("profile", "cached_batches", "seed"):
            value = getattr(self, name)
            _require(value >= 0, f"--{name.replace('_', '-')} is {value}; it must be 0 or more")
        _require(0 < self.temperature < math.inf, f"--temperature is {self.temperature}; it must be above 0")
        _require(
            self.clip.size <= self.augmentation.scale[0],
            f"a crop of {self.clip.size} pixels (--clip.size) does not fit into a frame resized to "
            f"{self.augmentation.scale[0]} (--augmentation.scale)",
        )

    @property
    def shard_folder(self) -> Path:
        return shard_folder(self.dataset, self.shards)

    @property
    def composition(self) -> Composition:
        """What a batch is made of."""
        factors = self.factors or presets.preset(self.preset).factors
        return notation.parse(
            factors, self.batch_size or self.default_batch_size, self.augmentation, self.transformations
        )

    def with_batch_size(self, index: Index, world: int = 1) -> Pretrain:
        """With the default batch size, where none is set: lower where fewer videos can be used, and a multiple of
        `world` where it can be. Raises UserError where too few videos can be used.
        """
        if self.batch_size is not None or self.factors.split()[:1] not in ([], ["video:d"], ["video:i"]):
            return replace(self, batch_size=self.composition.batch_size)
        usable = len(replace(self, batch_size=2).tree(index).source.videos)
        size = min(self.default_batch_size, usable)
        return replace(self, batch_size=size - size % world or size)

    def resolved(self) -> Pretrain:
        """With what the file of factors says now as a part of the settings."""
        if self.factors_from is None:
            return self
        code = notation.read_factors(self.factors_from)
        notation.compile_factors(self.factors_from, code)  # or it says what is wrong with it
        return replace(self, factors_digest=hashlib.sha256(code).hexdigest()[:16])

    @property
    def transformations(self) -> notation.Transformations:
        """The factors there are."""
        return notation.load_factors(self.factors_from) if self.factors_from else notation.TRANSFORMATIONS

    def tree(self, index: Index, say: Callable[[str], None] = lambda _: None) -> Tree:
        """The sampling tree over these shards; how many of their videos it uses is said. UserError if too few."""
        return sampling_tree(index, self.composition, self.clip, self.split, self.seed, say, self.shuffle_shards)

    def schedule(self, batches_per_epoch: int) -> Schedule:
        """The learning rates of a run over so many batches per epoch."""
        steps = self.steps or self.epochs * batches_per_epoch
        batch_size = self.batch_size or self.default_batch_size
        return Schedule(self.optimization, batch_size, batches_per_epoch, steps)

    def words(self, index: Index) -> WordVectors | None:
        """The word vectors of these shards, where words are a modality. UserError where they are not to be had."""
        if "text" not in self.composition.modalities:
            if self.word2vec:
                raise UserError(f"--word2vec has no effect: words are no modality of '{self.composition}'")
            return None
        vectors = WordVectors.of(index, self.word2vec)
        if self.network.word_dimensions not in (0, vectors.dimensions):
            raise UserError(
                f"the vectors of {self.word2vec} have {vectors.dimensions} dimensions, and --network.word-dimensions "
                f"is {self.network.word_dimensions}; leave that out"
            )
        return vectors

    @property
    def name(self) -> str:
        """Short name of the composition: the preset's, or the factors abbreviated, such as `tsd2-mi2x-tri2`."""
        return _abbreviated(self.factors) if self.factors else self.preset

    @property
    def run_folder(self) -> Path:
        seed = f"-seed{self.seed}" if self.seed else ""
        cached = f"-cached{self.cached_batches}" if self.cached_batches else ""
        return self.out or Path("runs") / f"{self.dataset}-{self.name}{seed}{cached}"


def _abbreviated(factors: str) -> str:
    """Initials, contrast, K and `x` for `differs` of each factor but the videos and a single augmentation.

    A checksum follows where that leaves something out: what brackets hold, and names of one letter.
    """
    initials = {name: "".join(part[0] for part in name.split("_")) for name in notation.TRANSFORMATIONS}
    parts = []
    for word in factors.split():
        name, _, rest = re.sub(r"\(.*?\)", "", word).partition(":")
        if name != "video" and word != "augmentation:i:1":
            parts.append(initials.get(name, name) + rest.replace(":differs", "x").replace(":", ""))
    ambiguous = "(" in factors or any(word.split(":")[0] in initials.values() for word in factors.split())
    checksum = [f"{zlib.crc32(' '.join(factors.split()).encode()):08x}"] if ambiguous else []
    return "-".join(re.sub(r"\W", "", part) for part in [*parts, *checksum])


def checkpoint_of(dataset: str, variables: Mapping[str, str]) -> Path:
    """The checkpoint that `make pretrain` with the variables PRESET, FACTORS and SEED writes by default."""
    preset, factors, seed = (variables.get(name, "") for name in ("PRESET", "FACTORS", "SEED"))
    _require(not seed or seed.isdecimal(), f"SEED is '{seed}'; it must be 0 or more")
    run = Pretrain(dataset=dataset, preset=preset or "l", factors=factors, seed=int(seed or 0))
    return run.run_folder / CHECKPOINT


SIZES: dict[str, tuple[str, Pretrain]] = {
    "paper": ("the paper's networks and schedule, for GPUs", Pretrain()),
    "tiny": (
        "small networks and clips, for a machine without a GPU",
        Pretrain(
            dataset="synthetic",
            default_batch_size=16,
            epochs=0,
            steps=600,
            clip=Clip(frames=8, stride=4, size=32),
            augmentation=Augmentation(scale=(36, 46), hue=0.1),  # with which the README's figures were taken
            network=Network(
                stem=16, stem_middle=16, widths=(16, 32, 64, 128), depth=1, slim=True, audio_stem=16,
                audio_widths=(16, 32, 64), text_width=256, hidden=256, embedding=128, dropout=0.0,
            ),
            optimization=Optimization(
                method="adamw", lr=3e-3, base_batch_size=0, weight_decay=1e-2, warmup_epochs=0, decay=0.25
            ),
            loading=Loading(threads=1, clips_at_once=32),
            checkpoint_minutes=2.0,
        ),
    ),
}  # fmt: skip
"""Named starting points; every value can be set on top."""

_NO_EFFECT_ON_NUMBERS = {
    "default_batch_size", "out", "shards", "word2vec", "factors_from", "loading", "compile", "micro_batch_size",
    "checkpoint_minutes", "checkpoint_steps", "probe_every", "probe_videos", "probe_split", "wandb", "profile",
}  # fmt: skip
LENGTH = ("epochs", "steps")
"""How long a run is; it changes the numbers of steps only by their rates."""


def to_json(settings: Pretrain) -> str:
    """Settings as text, for checkpoints."""
    return serialization.to_json(settings)


def from_json(text: str, source: str = "this text") -> Pretrain:
    """The settings that `to_json` wrote, on whatever machine: no file that they name is looked for, nor a GPU.

    Raises UserError that names `source` and the settings that are missing, unknown or out of range here.
    """
    try:
        return serialization.from_dict(Pretrain, json.loads(text))
    except (ValueError, UserError) as error:
        raise UserError(
            f"{source} holds settings of another version of this program ({error}); use the version that wrote it"
        ) from error


def require_one_name(arguments: Sequence[str]) -> None:
    """Raise UserError where a command line names a preset and factors; the default preset would hide that it does."""
    _require(not {"--preset", "--factors"} <= {argument.split("=")[0] for argument in arguments}, _TWO_NAMES)


def flags(settings: Pretrain) -> dict[str, str]:
    """What of the settings has to be the same on every rank, by its name on the command line."""
    found = _of_numbers(asdict(settings)) | {"loading.damaged": settings.loading.damaged}
    return {f"--{name.replace('_', '-')}": str(value) for name, value in found.items()}


def differences(before: str, now: str, but: Collection[str] = ()) -> list[str]:
    """What a run would change if it went on with other settings, in words; empty if nothing that matters.

    Both as `to_json` wrote them; `but` are names of settings that are not looked at.
    """
    old, new = (_of_numbers(json.loads(text)) for text in (before, now))
    return [
        f"{name} was {old.get(name)}, now {new.get(name)}"
        for name in sorted(old.keys() | new.keys())
        if old.get(name) != new.get(name) and name not in but
    ]


def _of_numbers(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings that numbers depend on, by their dotted names."""
    found: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, dict):
            found |= {f"{name}.{part}": one for part, one in value.items() if name not in _NO_EFFECT_ON_NUMBERS}
        elif name not in _NO_EFFECT_ON_NUMBERS:
            found[name] = value
    return found
