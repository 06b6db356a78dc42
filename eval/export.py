"""A model's weights in a file for other programs, or one that is small and safe to hand on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from gdt.common.errors import UserError, first_line
from gdt.common.files import require_new_file, writing
from gdt.pipeline.shards.index import Statistics
from gdt.train.models.network import Network

if TYPE_CHECKING:  # the command line, which reads the settings below, does not wait for torch
    from gdt.train.checkpoint import Trained

_SIZES = {
    "video": ("backbone", "stem", "stem_middle", "widths", "depth", "slim"),
    "audio": ("audio_stem", "audio_widths"),
    "text": ("word_dimensions", "text_width"),
}
"""Settings that say how large the trunk of each modality is."""
_HEADS = ("hidden", "embedding")
"""And the heads."""
_PUBLISHED = Network(word_dimensions=300)


@dataclass(frozen=True)
class Export:
    """Write the weights of a checkpoint, or of weights from elsewhere, for other programs and to hand on."""

    ckpt: Path
    """Checkpoint of a pretrained model, or weights from elsewhere."""
    out: Path
    """The file to write."""
    format: Literal["safetensors", "published", "torchvision"] = "safetensors"
    """safetensors holds a model of any size with its settings; published is what the GDT release reads, torchvision the
    video trunk as r2plus1d_18 has it, both for networks of the paper's sizes only."""
    overwrite: bool = False
    """Replace the file where there is one."""


def export(settings: Export) -> str:
    """Write the file; returns what it holds, in words.

    Raises UserError where the checkpoint cannot be read, the format has no place for its model, or the file is there or
    cannot be written.
    """
    import torch

    from gdt.train import portable
    from gdt.train.checkpoint import load_model

    out = settings.out
    require_new_file(out, settings.overwrite)
    trained = load_model(settings.ckpt)
    try:
        if settings.format == "safetensors":
            portable.write(out, trained)
        else:
            state = _published(trained) if settings.format == "published" else _torchvision(trained)
            with writing(out) as file:
                torch.save(state, file)
    except (OSError, RuntimeError) as error:  # RuntimeError is how torch's writer tells of a full disk
        reason = error.strerror if isinstance(error, OSError) else first_line(error)
        raise UserError(
            f"{out} cannot be written ({reason}); see that there is room and that you may write there, or set --out to "
            "another file"
        ) from error
    parts = [name for name, _ in trained.model.named_children()]
    held = ["video_network"] if settings.format == "torchvision" else parts
    return f"{out} holds {', '.join(held)}\n{_expected(trained)}"


def _published(trained: Trained) -> dict[str, Any]:
    """What the GDT release reads."""
    from gdt.train.weights import STATISTICS

    statistics = _require_published(trained, "published", trained.model.modalities, _HEADS)
    if trained.foreign is not None and trained.foreign.fresh:
        parts = ", ".join(trained.foreign.fresh)
        raise UserError(
            f"the weights are of a trunk alone: {parts}, which the published ones have, would be random; --format "
            "torchvision holds the trunk"
        )
    # epochs are not counted here; the release prints the number
    return {"model": trained.model.state_dict(), "epoch": 0, "step": trained.step, STATISTICS: statistics.to_numbers()}


def _torchvision(trained: Trained) -> dict[str, Any]:
    """The state of torchvision's r2plus1d_18."""
    from gdt.train.weights import STATISTICS

    if "video" not in trained.model.modalities:
        raise UserError("the model was trained without pictures, and torchvision's has nothing else; name another")
    statistics = _require_published(trained, "torchvision", ("video",), ())
    state: Any = trained.model.video_network.base.state_dict()
    # what torch keeps of a module's state beside its tensors: other programs hand it on and do not look at it
    state._metadata[""][STATISTICS] = statistics.to_numbers()
    return state


def _require_published(trained: Trained, kind: str, modalities: Sequence[str], heads: Sequence[str]) -> Statistics:
    """The statistics of a model of the published sizes. Raises UserError where it is of others or has none."""
    own, published = asdict(trained.model.network), asdict(_PUBLISHED)
    own["word_dimensions"] = own["word_dimensions"] or published["word_dimensions"]
    names = [*(name for modality in modalities for name in _SIZES[modality]), *heads]
    differ = [
        f"{name.replace('_', '-')} is {own[name]} instead of {published[name]}"
        for name in names
        if own[name] != published[name]
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
    if "audio" in trained.model.modalities:
        text += f"; log-mel values less {s.mel_mean:.6g}, over {s.mel_std:.6g}"
    return text
