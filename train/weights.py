"""External weights: the published GDT release, torchvision's r2plus1d_18, and safetensors files with their
parameter names.

Each kind has its own normalisation, and the clips of the paper, unless the file states others, as files exported by
this program do.
"""

import re
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from gdt.common.errors import Damaged
from gdt.common.serialization import from_dict, to_json
from gdt.pipeline.leaves import Clip
from gdt.pipeline.shards.statistics import Statistics
from gdt.pipeline.transformations.augmentation import Augmentation
from gdt.train.models.backbone import load_weights
from gdt.train.models.foreign import chosen
from gdt.train.models.gdt import GDT, head_name, modalities_of
from gdt.train.models.given import Makers
from gdt.train.record import FPS, SETTINGS, STATISTICS, Learned, Origin, TrainingRecord
from gdt.train.settings import Pretrain, RunSettings
from gdt.train.settings_text import from_json
from gdt.train.trained import Trained

RELEASE = Statistics(np.full(3, 255 * 0.45), np.full(3, 255 * 0.225), 1.93, 17.89)
"""Normalisation of the published weights: (x / 255 - 0.45) / 0.225 and (log-mel - 1.93) / 17.89."""
KINETICS = Statistics(
    255 * np.array([0.43216, 0.394666, 0.37645]), 255 * np.array([0.22803, 0.22145, 0.216989]), 0.0, 1.0
)
"""Normalisation of torchvision's video networks, which have no audio."""
HOWTO100M = Statistics(np.zeros(3), np.full(3, 255.0), RELEASE.mel_mean, RELEASE.mel_std)
"""Pixels from 0 to 1, as the release's script for HowTo100M feeds them."""
_WRAPPERS = re.compile(r"^(?:(?:module|model|_orig_mod)\.)+|\b_orig_mod\.")
"""Prefixes of names by data-parallel training, torch.compile and Lightning; compiled parts have one in the middle."""
FINETUNED_ON = "learned"
"""Key of the finetuning data in finetuned weights: `Origin.finetuned_on`."""
NETWORK = "network"
"""Key of the modality of finetuned weights."""


def inputs_of(trained: Trained) -> dict[str, Any]:
    """Metadata that tells `model_of` the inputs of a model."""
    record = trained.record
    return {STATISTICS: record.statistics.to_numbers(), SETTINGS: to_json(record.settings), FPS: record.fps}


def model_of(content: Mapping[Any, Any], path: Path, given: Makers) -> Trained:
    """The model in the content of a file of external weights.

    Raises Damaged if their kind is unknown, and UserError, naming what differs, if they do not fit.
    """
    weights = _parameters(content)
    if modalities_of(weights):
        return _of_release(weights, path)
    statistics, settings, fps = _metadata(content, path)
    # finetuned weights: ours have settings and maybe another network; those of the release are R(2+1)D-18
    prefix = "base." if any(name.startswith("base.") for name in weights) else ""
    if f"{prefix}stem.0.weight" not in weights and not (settings and prefix):
        first = next((f"; its first parameter is '{name}'" for name in weights), "")
        raise Damaged(f"it holds no weights of a known form{first}")
    if prefix:
        kind = "finetuned weights" if statistics else "published GDT weights, finetuned"
    else:
        kind = "weights exported as r2plus1d_18" if statistics else "torchvision's r2plus1d_18"
    settings = settings or RunSettings.of(Pretrain())
    kept, dropped = _drop_parts(weights, ("classifier.", "fc."))
    # weights of other programs do not say it; `models.audio` names its first layer so
    modality = str(content.get(NETWORK) or ("audio" if "base.conv1.weight" in weights else "video"))
    trunk = {name.removeprefix(prefix): value for name, value in kept.items()}
    builders = chosen(settings.network, [modality], given, str(path))
    model = GDT(settings.network, [modality], builders).eval()
    load_weights(model.backbone(modality), trunk, str(path))
    data = content.get(FINETUNED_ON)
    finetuned_on = from_dict(Learned, data) if isinstance(data, dict) else None  # a list in earlier versions
    origin = Origin(kind, dropped, (head_name(modality),), finetuned_on)
    normalisation = statistics or (RELEASE if prefix else KINETICS)
    record = TrainingRecord(settings, normalisation, origin=origin, fps=fps)
    return Trained(model, record, builders)


def _metadata(content: Mapping[Any, Any], path: Path) -> tuple[Statistics | None, RunSettings | None, int]:
    """Normalisation, settings and frame rate in a file, next to its weights or in the metadata of a state_dict.

    None if they are missing, as in published weights, of 30 frames per second.
    """
    root = getattr(content, "_metadata", {}).get("", {})
    stated = root if STATISTICS in root else content
    numbers = stated.get(STATISTICS)
    text = stated.get(SETTINGS)
    statistics = Statistics.from_numbers(numbers, str(path)) if isinstance(numbers, list) else None
    settings = from_json(text, str(path)) if isinstance(text, str) else None
    fps = stated.get(FPS)
    unknown = 0 if statistics else 30
    return statistics, settings, fps if isinstance(fps, int) else unknown


def _parameters(content: Mapping[Any, Any]) -> dict[str, Tensor]:
    """Parameters in a checkpoint, maybe below a key, without the prefixes of wrappers."""
    for name in ("model", "state_dict", "model_state_dict"):
        if isinstance(content.get(name), Mapping):
            content = content[name]
    return {_WRAPPERS.sub("", str(name)): value for name, value in content.items() if isinstance(value, Tensor)}


def _of_release(weights: dict[str, Tensor], path: Path) -> Trained:
    kept, dropped = _drop_parts(weights, ("audio_network.base.fc.", "text_network.word_embd."))
    words = kept.get("text_network.fc1.weight")
    settings = RunSettings.of(Pretrain())
    statistics = RELEASE
    if words is not None and words.dim() == 2:
        width, dimensions = words.shape
        # we are about 70 % sure that these are their inputs. 16 frames per second: every second stored frame is the
        # closest; whole squares: the shorter side is the crop's size
        settings = replace(
            settings,
            clip=Clip(stride=2, words=20),
            augmentation=Augmentation(scale=(112, 112)),
            network=replace(settings.network, word_dimensions=dimensions, text_width=width, text_padding=True),
        )
        statistics = HOWTO100M
        print(
            f"{path}: the published HowTo100M weights do not record their inputs; assuming those of the release's "
            "script: 30 frames at 15 fps (the script uses 16), pixels from 0 to 1, 20 words",
            file=sys.stderr,
        )
    model = GDT(settings.network, modalities_of(kept)).eval()
    stored = {name.partition(".")[0] for name in kept}
    fresh = tuple(name for name, _ in model.named_children() if name not in stored)
    random = {name: value for name, value in model.state_dict().items() if name.split(".")[0] in fresh}
    load_weights(model, random | kept, str(path))
    origin = Origin("published GDT weights", dropped, fresh)
    return Trained(model, TrainingRecord(settings, statistics, origin=origin))


def _drop_parts(weights: dict[str, Tensor], prefixes: tuple[str, ...]) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """Parameters without those of some parts, and the parts that were dropped."""
    kept = {name: value for name, value in weights.items() if not name.startswith(prefixes)}
    dropped = [prefix for prefix in prefixes if any(name.startswith(prefix) for name in weights)]
    return kept, tuple(prefix.removesuffix(".") for prefix in dropped)
