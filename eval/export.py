"""Export of weights for other programs."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from gdt.common.errors import UserError
from gdt.common.files import require_new_file, writing
from gdt.train.models.network import VIDEO_OPTIONS, Network
from gdt.train.run import latest_checkpoint

if TYPE_CHECKING:  # slow to import, and --help needs only the settings
    from gdt.train.checkpoint import Trained


@dataclass(frozen=True)
class Export:
    """Write the weights of a checkpoint in a format that other programs read."""

    out: Path
    """File to write."""
    format: Literal["safetensors", "torchvision"] = "safetensors"
    """File type; torchvision needs the paper's network sizes."""
    ckpt: Path | None = None
    """Checkpoint of a pretrained model, or external weights; default: the latest in runs."""
    overwrite: bool = False
    """Replace an existing file."""


def export(settings: Export) -> str:
    """Write the file; returns a summary of its contents and of the inputs that the model expects.

    Raises UserError if the checkpoint cannot be read, the model does not fit the format, or the file exists or cannot
    be written.
    """
    import torch

    from gdt.train import portable
    from gdt.train.checkpoint import load_trained

    require_new_file(settings.out, settings.overwrite)
    trained = load_trained(settings.ckpt or latest_checkpoint())
    if settings.format == "safetensors":
        portable.write(settings.out, trained)
        parts = [name for name, _ in trained.model.named_children()]
    else:
        with writing(settings.out) as file:
            torch.save(_torchvision(trained), file)
        parts = ["video_network"]
    return f"{settings.out} holds {', '.join(parts)}\n{_expected_inputs(trained)}"


def _torchvision(trained: Trained) -> dict[str, Any]:
    """The state of torchvision's r2plus1d_18."""
    from gdt.train.weights import inputs_of

    if "video" not in trained.model.modalities:
        raise UserError("--format torchvision needs a video network, but the model has none; set --format safetensors")
    own, paper = asdict(trained.model.network), asdict(Network())
    for name in ("backbone", *VIDEO_OPTIONS):
        if own[name] != paper[name]:
            raise UserError(
                f"--format torchvision needs a network of the paper's size, but {name.replace('_', '-')} is "
                f"{own[name]} instead of {paper[name]}; set --format safetensors"
            )
    state: Any = trained.model.video_network.base.state_dict()
    # torch saves this metadata with the state, and other programs ignore it
    state._metadata[""].update(inputs_of(trained))
    return state


def _expected_inputs(trained: Trained) -> str:
    clip, side = trained.settings.clip, trained.settings.augmentation.scale[0]
    s = trained.statistics
    mean, std = (", ".join(f"{x / 255:.6g}" for x in numbers) for numbers in (s.pixel_mean, s.pixel_std))
    text = (
        f"expected input: clips of {clip.frames} stored frames, stride {clip.stride}, {clip.size}x{clip.size} "
        f"pixels of frames whose shorter side is {side}; pixels in 0 to 1, mean ({mean}), std ({std})"
    )
    if "audio" in trained.model.modalities:
        text += f"; log-mel mean {s.mel_mean:.6g}, std {s.mel_std:.6g}"
    return text
