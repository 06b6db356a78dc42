"""Weights of one network, as finetuning and `gdt export --network` write them, and those of other programs.

Others are the published GDT release, torchvision's r2plus1d_18, and files with their parameter names: each kind has its
own normalisation, and the clips of the paper.
"""

import re
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from gdt.common.errors import Damaged
from gdt.pipeline.leaves import Clip
from gdt.pipeline.shards.statistics import Statistics
from gdt.pipeline.transformations.augmentation import Augmentation
from gdt.train.models.backbone import load_weights
from gdt.train.models.gdt import GDT, head_name, modalities_of
from gdt.train.models.own import Makers, chosen
from gdt.train.record import Origin, Record, header
from gdt.train.settings import Pretrain, RunSettings
from gdt.train.trained import Trained

RELEASE = Statistics((255 * 0.45,) * 3, (255 * 0.225,) * 3, 1.93, 17.89)
"""Normalisation of the published weights: (x / 255 - 0.45) / 0.225 and (log-mel - 1.93) / 17.89."""
KINETICS = Statistics(
    (255 * 0.43216, 255 * 0.394666, 255 * 0.37645), (255 * 0.22803, 255 * 0.22145, 255 * 0.216989), 0.0, 1.0
)
"""Normalisation of torchvision's video networks, which have no audio."""
HOWTO100M = Statistics((0.0,) * 3, (255.0,) * 3, RELEASE.mel_mean, RELEASE.mel_std)
"""Pixels from 0 to 1, as the release's script for HowTo100M feeds them."""
_CLASSIFIERS = ("classifier.", "fc.")
_WRAPPERS = re.compile(r"^(?:(?:module|model|_orig_mod)\.)+|\b_orig_mod\.")
"""Prefixes of names by data-parallel training, torch.compile and Lightning; compiled parts have one in the middle."""
FINETUNED = "gdt-finetuned-2"
"""Kind and version of files of finetuned weights."""
NETWORK = "gdt-network-1"
"""Kind and version of exported weights of one network, in the metadata of a state_dict."""


def network_header(
    trained: Trained, modality: str, finetuned_on: tuple[str, ...] = (), step: int = 0, steps: int = 0
) -> dict[str, str]:
    """What a file of one network of a model holds beside its weights, maybe finetuned on some videos to this step."""
    kind = FINETUNED if finetuned_on else NETWORK
    what = "finetuned weights" if finetuned_on else "weights exported as r2plus1d_18"
    origin = Origin(what, ("classifier",) if finetuned_on else (), (head_name(modality),), finetuned_on)
    settings = trained.settings
    record = Record(settings, trained.inputs.statistics, trained.inputs.fps, step=step, steps=steps, origin=origin)
    return header(kind, record) | {"network": modality}


def model_of(content: Mapping[Any, Any], path: Path) -> Trained:
    """The model in the content of a file of another program.

    Raises Damaged if their kind is unknown, and UserError, naming what differs, if they do not fit.
    """
    weights = _parameters(content)
    if modalities_of(weights):
        return _of_release(weights, path)
    finetuned = any(name.startswith("base.") for name in weights)
    if ("base." if finetuned else "") + "stem.0.weight" not in weights:
        first = next((f"; its first parameter is '{name}'" for name in weights), "")
        raise Damaged(f"it holds no weights of a known form{first}")
    kind = "published GDT weights, finetuned" if finetuned else "torchvision's r2plus1d_18"
    origin = Origin(kind, _dropped(weights, _CLASSIFIERS), (head_name("video"),))
    record = Record(RunSettings.of(Pretrain()), RELEASE if finetuned else KINETICS, origin=origin)
    return of_network(weights, record, "video", path, {})


def of_network(content: Mapping[Any, Any], record: Record, modality: str, path: Path, given: Makers) -> Trained:
    """A model of one network, whose weights may be below `base.` and beside those of a classifier."""
    weights = _parameters(content)
    trunk = {name.removeprefix("base."): value for name, value in weights.items() if not name.startswith(_CLASSIFIERS)}
    network = record.settings.network
    model = GDT(network, [modality], chosen(network, [modality], given, str(path))).eval()
    load_weights(model.backbone(modality), trunk, str(path))
    return Trained(model, record)


def _parameters(content: Mapping[Any, Any]) -> dict[str, Tensor]:
    """Parameters in a checkpoint, maybe below a key, without the prefixes of wrappers."""
    for name in ("model", "state_dict", "model_state_dict"):
        if isinstance(content.get(name), Mapping):
            content = content[name]
    return {_WRAPPERS.sub("", str(name)): value for name, value in content.items() if isinstance(value, Tensor)}


def _of_release(weights: dict[str, Tensor], path: Path) -> Trained:
    unused = ("audio_network.base.fc.", "text_network.word_embd.")
    kept = {name: value for name, value in weights.items() if not name.startswith(unused)}
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
    origin = Origin("published GDT weights", _dropped(weights, unused), fresh)
    return Trained(model, Record(settings, statistics, origin=origin))


def _dropped(weights: Mapping[str, Tensor], prefixes: tuple[str, ...]) -> tuple[str, ...]:
    """The parts of weights that are not used, of those with these prefixes."""
    found = [prefix for prefix in prefixes if any(name.startswith(prefix) for name in weights)]
    return tuple(prefix.removesuffix(".") for prefix in found)
