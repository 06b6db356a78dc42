"""Weights from elsewhere: files of the published GDT release and of torchvision, or with their names as safetensors.

No object in a file is ever built. Normalisation belongs to the weights: what a kind of weights expects comes with them,
unless a file, as one that this program exported, says it itself.
"""

from __future__ import annotations

import contextlib
import re
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gdt.common.errors import UserError
from gdt.common.files import require_readable
from gdt.pipeline.shards.index import Statistics
from gdt.train import tensors
from gdt.train.models.gdt import GDT, load_weights, modalities_of
from gdt.train.models.network import Network
from gdt.train.settings import Pretrain, from_json
from gdt.train.trained import Foreign, Trained

_MOST = 100
"""Kinds of objects that no checkpoint has more of."""
RELEASE = Statistics(np.full(3, 255 * 0.45), np.full(3, 255 * 0.225), 1.93, 17.89)
"""What the published weights expect: (x / 255 - 0.45) / 0.225 and (log-mel - 1.93) / 17.89."""
KINETICS = Statistics(
    255 * np.array([0.43216, 0.394666, 0.37645]), 255 * np.array([0.22803, 0.22145, 0.216989]), 0.0, 1.0
)
"""What torchvision's video networks expect; they have nothing to do with sound."""
STATISTICS = "statistics"
"""Where exported files of these kinds say what they expect instead: `Statistics.to_numbers`."""
SETTINGS = "settings"
"""Where finetuned weights say how they were pretrained, and so how large they are: `train.settings.to_json`."""
LEARNED = "learned"
"""Where they say on which labels: fingerprint of the shards, and fold."""


def read_foreign(path: Path) -> Trained | None:
    """The model in a file of weights, None where it is of no known kind.

    Raises UserError where it is of one and does not fit, naming what differs, or holds what would run when it is read.
    """
    found = _contents(path) if _whole(path) else None
    if not isinstance(found, Mapping) or "format" in found:
        return None
    weights, stated = _weights(found), _stated(found)
    text, learned = found.get(SETTINGS), found.get(LEARNED)
    # ours say how large they are; the release's, which are all R(2+1)D, do not
    if "base.stem.0.weight" in weights or (isinstance(text, str) and any(name.startswith("base.") for name in weights)):
        settings = from_json(text, str(path)) if isinstance(text, str) else Pretrain()
        kind = "finetuned weights" if stated else "published GDT weights, finetuned"
        known = tuple(learned) if isinstance(learned, list) and len(learned) == 2 else None
        return _trunk(weights, "base.", ("classifier.", "fc."), kind, stated or RELEASE, path, settings, known)
    if any(name.startswith("video_network.base.") for name in weights):
        return _published(weights, stated, path)
    if "stem.0.weight" in weights and "stem.3.weight" not in weights:
        raise UserError(f"{path} holds a video network other than R(2+1)D, such as r3d_18 or mc3_18; use r2plus1d_18")
    if "stem.0.weight" in weights:
        kind = "weights exported as r2plus1d_18" if stated else "torchvision's r2plus1d_18"
        return _trunk(weights, "", ("fc.",), kind, stated or KINETICS, path, Pretrain())
    return None


def _stated(found: Mapping[Any, Any]) -> Statistics | None:
    """What a file says of the normalisation, as exported ones do beside their weights, or as STATISTICS of a model that
    torch keeps for its state; None where it says nothing.
    """
    kept = getattr(found, "_metadata", None)
    root = kept.get("") if isinstance(kept, Mapping) else None
    numbers = root.get(STATISTICS) if isinstance(root, Mapping) else found.get(STATISTICS)
    if isinstance(numbers, list) and len(numbers) == 8 and all(isinstance(number, float) for number in numbers):
        return Statistics.from_numbers(numbers)
    return None


def damaged_part(path: Path) -> str | None:
    """The first part of a file of torch's whose checksum does not match, which torch does not look at; None for none.

    Raises whatever zipfile does where the file is not such a one, or badly damaged.
    """
    with zipfile.ZipFile(path) as archive:
        return archive.testzip()


def _whole(path: Path) -> bool:
    """Whether the checksums of a file match; files from before torch 1.6 have none."""
    if not zipfile.is_zipfile(path):
        return True
    with contextlib.suppress(Exception):  # whatever strange bytes make the reader raise
        return damaged_part(path) is None
    return False


def _contents(path: Path) -> Any:
    """The table of a safetensors file, or what torch saved, where an inert stand-in takes the place of every object
    that is no tensor, number, text, list or table.
    """
    if (table := tensors.read(path)) is not None:
        return table[0]
    stand_ins: dict[str, Callable[..., Any]] = {}
    while len(stand_ins) < _MOST:
        try:
            with torch.serialization.safe_globals([(stand_in, name) for name, stand_in in stand_ins.items()]):
                return torch.load(path, map_location="cpu", weights_only=True)
        except OSError as error:
            require_readable(path, error)
            return None
        except MemoryError:
            raise
        except Exception as error:  # whatever strange bytes make the reader raise
            if blocked := re.search(r"unsupported GLOBAL ([\w.]+) whose module \w+ is blocked", str(error)):
                raise UserError(
                    f"{path} holds {blocked[1]}, which would run when it is read; nothing was run, and it is not used"
                ) from error
            if not _stand_in_more(stand_ins, str(error)):
                return None
    return None


def _stand_in_more(stand_ins: dict[str, Callable[..., Any]], refused: str) -> bool:
    """Stand in for what torch refused to build, as its message names it; whether there is such a thing."""
    if unknown := re.search(r"GLOBAL ([\w.]+) was not an allowed global", refused):
        name = unknown[1] if "." in unknown[1] else f"builtins.{unknown[1]}"
        if name in stand_ins:
            return False
        stand_ins[name] = type(f"Inert{len(stand_ins)}", (_Inert,), {})
        return True
    # kinds of tables and lists are filled by torch itself, which does that to real ones only
    if filled := re.search(r"Can only (SETITEM|append).* but got <class '[\w.]+\.Inert(\d+)'>", refused):
        real: Callable[..., Any] = dict if filled[1] == "SETITEM" else list
        stand_ins[list(stand_ins)[int(filled[2])]] = type("Real", (), {"__new__": lambda *_: real()})
        return True
    return False


class _Inert:
    """Takes whatever an object is told while it is read, and does nothing."""

    def __new__(cls, *arguments: object, **named: object) -> _Inert:
        return object.__new__(cls)

    def __init__(self, *arguments: object, **named: object) -> None:
        pass

    def __setstate__(self, state: object) -> None:
        pass


def _weights(found: Mapping[Any, Any]) -> dict[str, Tensor]:
    """The table of parameters in a checkpoint, which may be below `model` or `state_dict`, without `module.`."""
    for name in ("model", "state_dict"):
        if isinstance(found.get(name), Mapping):
            found = found[name]
    return {str(name).removeprefix("module."): value for name, value in found.items() if isinstance(value, Tensor)}


def _published(weights: dict[str, Tensor], stated: Statistics | None, path: Path) -> Trained:
    kept, dropped = _without(weights, ("audio_network.base.fc.", "text_network.word_embd."))
    words = kept.get("text_network.fc1.weight", torch.empty(2048, 300))
    model = GDT(Network(word_dimensions=words.shape[1], text_width=words.shape[0]), modalities_of(kept)).eval()
    load_weights(model, kept, str(path))
    kind = "weights exported as the published ones" if stated else "published GDT weights"
    return Trained(model, Pretrain(), 0, stated or RELEASE, Foreign.of(model, kind, dropped, ()))


def _trunk(
    weights: dict[str, Tensor], prefix: str, left: tuple[str, ...], kind: str, statistics: Statistics, path: Path,
    settings: Pretrain, learned: tuple[str, int] | None = None,
) -> Trained:  # fmt: skip
    """A video trunk alone, whose names have a `prefix`; of the parts that are `left` out the model has none."""
    kept, dropped = _without(weights, left)
    model = GDT(settings.network, ["video"]).eval()
    load_weights(
        model.video_network.base, {name.removeprefix(prefix): value for name, value in kept.items()}, str(path)
    )
    return Trained(model, settings, 0, statistics, Foreign.of(model, kind, dropped, ("mlp_v",), learned))


def _without(weights: dict[str, Tensor], prefixes: tuple[str, ...]) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """The parameters without those of some parts, and the parts that there were."""
    kept = {name: value for name, value in weights.items() if not name.startswith(prefixes)}
    there = tuple(p.removesuffix(".") for p in prefixes if any(name.startswith(p) for name in weights))
    return kept, there
