"""Curves of a run in TensorBoard and Weights & Biases, which may fail: the numbers are in METRICS, too."""

import json
import sys
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from torch.utils.tensorboard import SummaryWriter

from gdt.common.errors import UserError, first_line
from gdt.common.files import write_text
from gdt.common.serialization import to_json
from gdt.train.run import METRICS, WANDB
from gdt.train.settings import RunSettings


class Curves:
    """Sends metrics to all programs that take them; one that fails is left out from then on, with a warning."""

    def __init__(self, settings: RunSettings, first: int) -> None:
        """`first`: first step. Raises UserError if Weights & Biases refuses the run."""
        self._settings = settings
        self._programs: dict[str, Any] = {}
        self._attempt("TensorBoard", lambda: self._start_tensorboard(first))
        if settings.wandb:
            self._programs["Weights & Biases"] = _start_wandb(settings, first)

    def add(self, metrics: Mapping[str, float], step: int) -> None:
        board = self._programs.get("TensorBoard")
        if board:
            self._attempt("TensorBoard", lambda: [board.add_scalar(name, metrics[name], step) for name in metrics])
        run = self._programs.get("Weights & Biases")
        if run:
            self._attempt("Weights & Biases", lambda: run.log(dict(metrics), step=step))

    def close(self) -> None:
        for name, program in [*self._programs.items()]:
            self._attempt(name, program.close if name == "TensorBoard" else program.finish)

    def _start_tensorboard(self, first: int) -> None:
        self._programs["TensorBoard"] = SummaryWriter(str(self._settings.run_folder), purge_step=first)

    def _attempt(self, name: str, action: Callable[[], object]) -> None:
        try:
            action()
        except Exception as error:
            self._programs.pop(name, None)
            where = self._settings.run_folder / METRICS
            print(f"warning: {name} has failed ({first_line(error)}); its curves end, {where} goes on", file=sys.stderr)


def _start_wandb(settings: RunSettings, first: int) -> Any:
    """Start the Weights & Biases run of a run, or resume it if the run resumes at step `first`."""
    import wandb  # type: ignore[import-not-found]

    folder = settings.run_folder.resolve()
    kept = folder / WANDB
    name = kept.read_text() if first and kept.is_file() else uuid.uuid4().hex
    write_text(kept, name)
    config = json.loads(to_json(settings))
    try:
        return wandb.init(
            project=settings.wandb, id=name, name=folder.name, dir=str(folder), resume="allow", config=config
        )
    except Exception as error:
        raise UserError(
            f"Weights & Biases does not start ({first_line(error)}); run 'wandb login', set WANDB_MODE=offline, or "
            "leave --wandb out"
        ) from error
