"""Foreign weights: the published GDT release, torchvision's r2plus1d_18, and safetensors files with their
parameter names.

Pickled objects are never built. Each kind of weights has its own normalisation, and the clips of the paper, unless the
file states others, as files exported by this program do.
"""

from __future__ import annotations

import contextlib
import re
import sys
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gdt.common.errors import UserError
from gdt.common.files import require_readable
from gdt.pipeline.leaves import MODALITIES, Clip
from gdt.pipeline.shards.statistics import Statistics
from gdt.pipeline.transformations.augmentation import Augmentation
from gdt.train import tensors
from gdt.train.models.gdt import GDT, load_weights, modalities_of
from gdt.train.models.network import Network
from gdt.train.run import from_json, to_json
from gdt.train.settings import Pretrain
from gdt.train.trained import Foreign, Trained

_MAX_STAND_INS = 100
"""Maximum number of classes that a file names."""
RELEASE = Statistics(np.full(3, 255 * 0.45), np.full(3, 255 * 0.225), 1.93, 17.89)
"""Normalisation of the published weights: (x / 255 - 0.45) / 0.225 and (log-mel - 1.93) / 17.89."""
KINETICS = Statistics(
    255 * np.array([0.43216, 0.394666, 0.37645]), 255 * np.array([0.22803, 0.22145, 0.216989]), 0.0, 1.0
)
"""Normalisation of torchvision's video networks, which have no audio."""
HOWTO100M = Statistics(np.zeros(3), np.full(3, 255.0), RELEASE.mel_mean, RELEASE.mel_std)
"""Pixels from 0 to 1, as the release's script for HowTo100M feeds them."""
STATISTICS = "statistics"
"""Key of the normalisation in exported files and finetuned weights: `Statistics.to_numbers`."""
SETTINGS = "settings"
"""Key of the pretraining settings in such files, with the sizes of networks and clips: `train.run.to_json`."""
FINETUNED_ON = "learned"
"""Key of the finetuning data in finetuned weights: fingerprint of the shards, and fold."""
_LINEAR_HEADS = tuple(f"mlp_{modality[0]}.{name}" for modality in MODALITIES for name in ("weight", "bias"))
"""Linear heads, which the release has without `use_mlp`; this model has none."""


def inputs_of(trained: Trained) -> dict[str, Any]:
    """Metadata that tells `read_foreign` the inputs of a model."""
    return {STATISTICS: trained.statistics.to_numbers(), SETTINGS: to_json(trained.settings)}


def read_foreign(path: Path) -> Trained | None:
    """The model in a file of external weights, None if its kind is unknown.

    Raises UserError, naming what differs, if the weights do not fit.
    """
    found = _load(path) if _is_intact(path) else None
    if not isinstance(found, Mapping) or "format" in found:
        return None
    weights, finetuned_on = _parameters(found), found.get(FINETUNED_ON)
    stated, own = _metadata(found, path)
    settings = own or Pretrain()
    # finetuned weights: ours have settings and maybe another network; those of the release are R(2+1)D-18
    if "base.stem.0.weight" in weights or (own and any(name.startswith("base.") for name in weights)):
        kind = "finetuned weights" if stated else "published GDT weights, finetuned"
        known = tuple(finetuned_on) if isinstance(finetuned_on, list) and len(finetuned_on) == 2 else None
        return _build_trunk(weights, "base.", ("classifier.", "fc."), kind, stated or RELEASE, path, settings, known)
    if modalities_of(weights):
        return _build_release(weights, path)
    if "stem.0.weight" in weights and "stem.3.weight" not in weights:
        raise UserError(f"{path} holds a video network other than R(2+1)D, such as r3d_18 or mc3_18; use r2plus1d_18")
    if "stem.0.weight" in weights:
        kind = "weights exported as r2plus1d_18" if stated else "torchvision's r2plus1d_18"
        return _build_trunk(weights, "", ("fc.",), kind, stated or KINETICS, path, settings)
    return None


def _metadata(found: Mapping[Any, Any], path: Path) -> tuple[Statistics | None, Pretrain | None]:
    """Normalisation and settings in a file, next to its weights or in the metadata of a state_dict; None if missing."""
    kept = getattr(found, "_metadata", None)
    root = kept.get("") if isinstance(kept, Mapping) else None
    stated = root if isinstance(root, Mapping) else found
    numbers, text = stated.get(STATISTICS), stated.get(SETTINGS)
    statistics = None
    if isinstance(numbers, list) and all(isinstance(number, float) for number in numbers):
        statistics = Statistics.from_numbers(numbers, str(path))
    return statistics, from_json(text, str(path)) if isinstance(text, str) else None


def damaged_part(path: Path) -> str | None:
    """The first part of a torch file with a checksum mismatch, None if all match; torch does not verify them.

    Raises exceptions of zipfile if the file is of another kind or badly damaged.
    """
    with zipfile.ZipFile(path) as archive:
        return archive.testzip()


def _is_intact(path: Path) -> bool:
    """Whether the checksums of a file match; files of torch before 1.6 have none."""
    if not zipfile.is_zipfile(path):
        return True
    with contextlib.suppress(Exception):  # damaged bytes raise anything
        return damaged_part(path) is None
    return False


def _load(path: Path) -> Any:
    """Content of a safetensors or torch file, with inert stand-ins for all but tensors and plain values; None if it
    cannot be read.

    The release's files hold its command line, optimizer and scheduler. torch names each unknown class that it meets,
    and refuses modules that run code whatever stands in for them.
    """
    if (table := tensors.read(path)) is not None:
        return table[0]
    stand_ins: dict[str, Callable[..., Any]] = {"collections.defaultdict": lambda *_: {}}
    for _ in range(_MAX_STAND_INS):
        try:
            with torch.serialization.safe_globals([(stand_in, name) for name, stand_in in stand_ins.items()]):
                return torch.load(path, map_location="cpu", weights_only=True)
        except OSError as error:
            require_readable(path, error)
            return None
        except MemoryError:
            raise
        except Exception as error:  # damaged bytes raise anything
            unknown = re.search(r"GLOBAL ([\w.]+) was not an allowed global", str(error))
            if unknown is None:
                return None
            stand_ins[unknown[1] if "." in unknown[1] else f"builtins.{unknown[1]}"] = _Inert
    return None


class _Inert:
    """Stand-in that ignores everything that unpickling does to it."""

    def __new__(cls, *arguments: object, **named: object) -> _Inert:
        return object.__new__(cls)

    def __init__(self, *arguments: object, **named: object) -> None:
        pass

    def __setstate__(self, state: object) -> None:
        pass


def _parameters(found: Mapping[Any, Any]) -> dict[str, Tensor]:
    """Parameters in a checkpoint, maybe below `model` or `state_dict`, without the prefix `module.`."""
    for name in ("model", "state_dict"):
        if isinstance(found.get(name), Mapping):
            found = found[name]
    return {str(name).removeprefix("module."): value for name, value in found.items() if isinstance(value, Tensor)}


def _build_release(weights: dict[str, Tensor], path: Path) -> Trained:
    kept, dropped = _drop_parts(weights, ("audio_network.base.fc.", "text_network.word_embd.", *_LINEAR_HEADS))
    words = kept.get("text_network.fc1.weight")
    width, dimensions = words.shape if words is not None and words.dim() == 2 else (2048, 300)
    network = Network(word_dimensions=dimensions, text_width=width, text_padding=words is not None)
    model = GDT(network, modalities_of(kept)).eval()
    fresh = [name for name, _ in model.named_children() if not any(key.startswith(f"{name}.") for key in kept)]
    random = {name: value for name, value in model.state_dict().items() if name.split(".")[0] in fresh}
    load_weights(model, random | kept, str(path))
    foreign = Foreign.of(model, "published GDT weights", dropped, fresh)
    if words is None:
        return Trained(model, Pretrain(), 0, RELEASE, foreign)
    print(
        f"{path}: the published HowTo100M weights do not record their inputs; assuming those of the release's script: "
        "30 frames at 15 fps (the script uses 16), pixels from 0 to 1, 20 words",
        file=sys.stderr,
    )
    # we are about 70 % sure that these are their inputs. 16 frames per second: every second stored frame is the
    # closest; whole squares: the shorter side is the crop's size
    settings = Pretrain(clip=Clip(stride=2, words=20), augmentation=Augmentation(scale=(112, 112)))
    return Trained(model, settings, 0, HOWTO100M, foreign)


def _build_trunk(
    weights: dict[str, Tensor], prefix: str, unused: tuple[str, ...], kind: str, statistics: Statistics, path: Path,
    settings: Pretrain, finetuned_on: tuple[str, int] | None = None,
) -> Trained:  # fmt: skip
    """A video trunk whose parameter names start with `prefix`, without the parts in `unused`."""
    kept, dropped = _drop_parts(weights, unused)
    model = GDT(settings.network, ["video"]).eval()
    load_weights(
        model.video_network.base, {name.removeprefix(prefix): value for name, value in kept.items()}, str(path)
    )
    return Trained(model, settings, 0, statistics, Foreign.of(model, kind, dropped, ("mlp_v",), finetuned_on))


def _drop_parts(weights: dict[str, Tensor], prefixes: tuple[str, ...]) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """Parameters without those of some parts, and the parts that were dropped."""
    kept = {name: value for name, value in weights.items() if not name.startswith(prefixes)}
    there = tuple(p.removesuffix(".") for p in prefixes if any(name.startswith(p) for name in weights))
    return kept, there
