"""The ranks of one machine: whether it has a GPU for each, and that what all of them would say is said once."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from gdt.common.errors import UserError


@contextlib.contextmanager
def told_once() -> Iterator[None]:
    """Around what ranks with one command line do alike, before they know of each other: but for the first, in silence.

    Launchers that start ranks alike say how many of them there are on this machine.
    """
    if "LOCAL_WORLD_SIZE" not in os.environ or os.environ.get("LOCAL_RANK", "0") == "0":
        yield
        return
    with Path(os.devnull).open("w") as null, contextlib.redirect_stdout(null), contextlib.redirect_stderr(null):
        try:
            yield
        except UserError as error:
            raise SystemExit(2) from error


def require_gpus(ranks: int, device: Literal["auto", "cpu", "cuda"]) -> None:
    """Raise UserError where this machine has no GPU for each of several ranks, unless they are meant for the CPU."""
    if ranks == 1 or device == "cpu":
        return
    import torch

    found = torch.cuda.device_count()
    if ranks <= found:
        return
    instead = "leave GPUS out" if found < 2 else f"set GPUS to {found} or less"
    there = f"only {found} GPU{'s' if found > 1 else ''} here" if found else "no GPU here"
    raise UserError(
        f"{ranks} processes were asked for and torch finds {there}; {instead}, or pass --device cpu "
        f'(ARGS="--device cpu"), which trains in {ranks} processes without a GPU'
    )
