"""A model's weights in a file for other programs, or one that is small and safe to hand on."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from gdt.common.errors import UserError, first_line
from gdt.common.files import kind, partial_of, write_with
from gdt.eval.settings.export import Export
from gdt.pipeline.shards.index import Statistics
from gdt.train import portable
from gdt.train.checkpoint import Trained, load_model
from gdt.train.models.gdt import modalities_of
from gdt.train.models.network import Network
from gdt.train.weights import STATISTICS

_SIZES = {
    "video": ("backbone", "stem", "stem_middle", "widths", "depth", "slim"),
    "audio": ("audio_stem", "audio_widths"),
    "text": ("word_dimensions", "text_width"),
}
"""Settings that say how large the trunk of each modality is."""
_HEADS = ("hidden", "embedding")
"""And the heads."""
_PUBLISHED = Network(word_dimensions=300)


def export(settings: Export) -> str:
    """Write the file; returns what it holds, in words.

    Raises UserError where the checkpoint cannot be read, the format has no place for its model, or the file is there or
    cannot be written.
    """
    out = settings.out
    if not out.parent.is_dir():
        raise UserError(f"there is no folder {out.parent} to write to; set --out to a file in one there is")
    if (what := kind(out)) not in ("", "missing"):
        raise UserError(f"{out} is {what}, not a file; set --out to a file")
    if out.exists() and not settings.overwrite:
        raise UserError(f"{out} is there already; set --out to another file, or --overwrite to replace it")
    trained = load_model(settings.ckpt)
    write = _WRITERS[settings.format]
    try:
        parts = write(out, trained)
    except (OSError, RuntimeError) as error:  # RuntimeError is how torch's writer tells of a full disk
        with contextlib.suppress(OSError):
            partial_of(out)
        reason = error.strerror if isinstance(error, OSError) else first_line(error)
        raise UserError(
            f"{out} cannot be written ({reason}); see that there is room and that you may write there, or set --out to "
            "another file"
        ) from error
    return f"{out} holds {', '.join(parts)}\n{_expected(trained)}"


def _safetensors(path: Path, trained: Trained) -> list[str]:
    portable.write(path, trained)
    return _parts(trained)


def _published(path: Path, trained: Trained) -> list[str]:
    statistics = _require_published(trained, "published", modalities_of(trained.model.state_dict()), _HEADS)
    if trained.foreign is not None and trained.foreign.fresh:
        parts = ", ".join(trained.foreign.fresh)
        raise UserError(
            f"the weights are of a trunk alone: {parts}, which the published ones have, would be random; --format "
            "torchvision holds the trunk"
        )
    # epochs are not counted here; the release prints the number
    state = {"model": trained.model.state_dict(), "epoch": 0, "step": trained.step, STATISTICS: statistics.to_numbers()}
    _save(path, state)
    return _parts(trained)


def _torchvision(path: Path, trained: Trained) -> list[str]:
    modalities = modalities_of(trained.model.state_dict())
    if "video" not in modalities:
        raise UserError("the model was trained without pictures, and torchvision's has nothing else; name another")
    statistics = _require_published(trained, "torchvision", ["video"], ())
    state = trained.model.video_network.base.state_dict()
    # what torch keeps of a module's state beside its tensors: other programs hand it on and do not look at it
    metadata: Any = state._metadata  # type: ignore[attr-defined]
    metadata[""][STATISTICS] = statistics.to_numbers()
    _save(path, state)
    return ["video_network"]


_WRITERS: dict[str, Callable[[Path, Trained], list[str]]] = {
    "safetensors": _safetensors,
    "published": _published,
    "torchvision": _torchvision,
}


def _save(path: Path, state: Any) -> None:
    write_with(path, partial(torch.save, state))


def _parts(trained: Trained) -> list[str]:
    return [name for name, _ in trained.model.named_children()]


def _require_published(trained: Trained, kind: str, modalities: list[str], heads: tuple[str, ...]) -> Statistics:
    """The statistics of a model of the published sizes. Raises UserError where it is of others or has none."""
    own = trained.model.network
    names = [name for modality in modalities for name in _SIZES[modality]] + list(heads)
    differ = [
        f"{name.replace('_', '-')} is {_of(own, name)} instead of {_of(_PUBLISHED, name)}"
        for name in names
        if _of(own, name) != _of(_PUBLISHED, name)
    ]
    if differ:
        raise UserError(
            f"--format {kind} holds networks of the published sizes only ({'; '.join(differ)}); --format safetensors "
            "holds any"
        )
    if trained.statistics is None:
        raise UserError(
            f"the checkpoint does not say how its inputs were normalised, and a file of --format {kind} would be taken "
            "to be normalised as those of others; --format safetensors says that it is not known"
        )
    return trained.statistics


def _of(network: Network, name: str) -> Any:
    """A size; for those of words, what 0 stands for."""
    return getattr(network, name) or 300 if name == "word_dimensions" else getattr(network, name)


def _expected(trained: Trained) -> str:
    """What a program that uses the weights has to give them."""
    clip, side = trained.settings.clip, trained.settings.augmentation.scale[0]
    clips = (
        f"clips of {clip.frames} stored frames, every {clip.stride}-th, {clip.size}x{clip.size} pixels of frames whose "
        f"shorter side is {side}"
    )
    if trained.statistics is None:
        return f"it takes {clips}; how they were normalised is not known"
    s = trained.statistics
    pixels = [", ".join(f"{x / 255:.6g}" for x in numbers) for numbers in (s.pixel_mean, s.pixel_std)]
    text = f"it takes {clips}; pixels from 0 to 1, less ({pixels[0]}), over ({pixels[1]})"
    if "audio" in modalities_of(trained.model.state_dict()):
        text += f"; log-mel values less {s.mel_mean:.6g}, over {s.mel_std:.6g}"
    return text
