"""Export of weights for other programs."""

import shlex
from pathlib import Path
from typing import Any, cast

import torch

from gdt.common.errors import UserError
from gdt.common.files import require_new_file, writing
from gdt.eval import card
from gdt.eval.extract import require_network
from gdt.eval.settings import Export
from gdt.train.checkpoint import load_trained
from gdt.train.hub import EXPORTED
from gdt.train.models.own import makers
from gdt.train.run import latest_checkpoint
from gdt.train.trained import Trained
from gdt.train.weights import network_header


def export(settings: Export) -> str:
    """Write the file; returns a summary of its contents and of the inputs that the model expects.

    Raises UserError if the checkpoint cannot be read, the model does not fit the format, or the file exists or cannot
    be written.
    """
    if settings.to and settings.to.is_file():
        raise UserError(f"--to is {settings.to}, a file; name a folder, or set --out to write a file")
    out = settings.to / EXPORTED if settings.to else cast(Path, settings.out)
    trained = load_trained(settings.ckpt or latest_checkpoint(), makers(settings.own_networks.given))
    written = [out]
    if settings.to:
        settings.to.mkdir(parents=True, exist_ok=True)
        written += [settings.to / card.CONFIG, settings.to / card.CARD]
    for path in written:
        require_new_file(path, settings.overwrite)
    inputs = _expected_inputs(trained)
    parts = [name for name, _ in trained.model.named_children()]
    if settings.to:
        card.write(settings.to, trained, inputs)
    elif settings.network:
        state = _weights_of(trained, settings.network)
        with writing(out) as file:
            torch.save(state, file)
        parts = [f"{settings.network}_network"]
    else:
        trained.write(out)
    summary = f"{out} holds {', '.join(parts)}\nexpected input: {inputs}"
    if settings.to is None:
        return summary
    name = settings.to.resolve().name
    return (
        f"{summary}\nfill in the licence in {settings.to / card.CARD}, then upload it:\n"
        f"  {shlex.join(['hf', 'upload', f'OWNER/{name}', str(settings.to)])}\n"
        f"others load it with --ckpt hf://OWNER/{name}"
    )


def _weights_of(trained: Trained, modality: str) -> dict[str, Any]:
    """The state of one network, with the names of its own library; of the paper's for video, those of torchvision."""
    require_network(trained, modality, "--network")
    base = trained.model.backbone(modality)
    state: Any = getattr(base, "net", base).state_dict()
    # torch saves this metadata with the state, and other programs ignore it
    state._metadata[""].update(network_header(trained, modality))
    return state


def _expected_inputs(trained: Trained) -> str:
    inputs = trained.inputs
    clip = inputs.clip
    rate = f" ({inputs.fps} per second)" if inputs.fps else ""
    statistics = inputs.statistics
    mean = ", ".join(f"{value / 255:.6g}" for value in statistics.pixel_mean)
    std = ", ".join(f"{value / 255:.6g}" for value in statistics.pixel_std)
    text = (
        f"clips of {clip.frames} stored frames{rate}, stride {clip.stride}, "
        f"{clip.size}x{clip.size} pixels of frames whose shorter side is {inputs.short_side}; pixels in 0 to 1, "
        f"mean ({mean}), std ({std})"
    )
    if "audio" in trained.model.modalities:
        text += f"; log-mel mean {statistics.mel_mean:.6g}, std {statistics.mel_std:.6g}"
    return text
