"""Checkpoints: written atomically, read without unpickling objects, refused where they do not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from pipeline.errors import UserError
from pipeline.files import publish
from train.models.gdt import GDT, load_weights
from train.settings import network_from_json

NAME = "checkpoint.pt"
FORMAT = "gdt-pretrain-1"


def save(
    path: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer, step: int, settings: str, data: str
) -> None:
    """Everything that the next step depends on, under a temporary name first."""
    partial = path.with_name(path.name + ".partial")
    state = {
        "format": FORMAT, "settings": settings, "data": data, "step": step,
        "model": model.state_dict(), "optimizer": optimizer.state_dict(),
    }  # fmt: skip
    torch.save(state, partial)
    publish(partial, path)


def read(path: Path) -> dict[str, Any]:
    """The contents of a checkpoint. Raises UserError if it is missing, damaged or not one of ours."""
    if path.is_dir():
        path = path / NAME
    if not path.is_file():
        raise UserError(f"there is no checkpoint {path}; make one with 'make pretrain', or set CKPT to yours")
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever strange bytes make the reader raise
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(
            f"{path} cannot be read as a checkpoint of weights ({first}); it is damaged or "
            "something else; delete it or name another"
        ) from error
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise UserError(f"{path} is not a checkpoint of this program (format {FORMAT} expected)")
    return state


def load_model(path: Path) -> tuple[GDT, dict[str, Any]]:
    """The trained model, on the CPU and in evaluation mode, and the settings it was trained with."""
    state = read(path)
    values, network = network_from_json(state["settings"])
    model = GDT(network, audio=any(name.startswith("audio_network.") for name in state["model"]))
    load_weights(model, state["model"], str(path))
    return model.eval(), values | {"step": state["step"]}


def untrained(path: Path) -> tuple[GDT, dict[str, Any]]:
    """A model of the same sizes as a checkpoint's with fresh random weights, of the same seed."""
    state = read(path)
    values, network = network_from_json(state["settings"])
    torch.manual_seed(values["seed"])
    return GDT(network).eval(), values | {"step": 0}
