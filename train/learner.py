"""Model, optimizer and schedule of a run."""

from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from gdt.common.errors import UserError
from gdt.pipeline.loader import Batch
from gdt.train.checkpoint import RunState, require_same_run
from gdt.train.experiment import Experiment
from gdt.train.flops import step_flops
from gdt.train.models.backbone import load_weights
from gdt.train.models.gdt import GDT
from gdt.train.models.r2plus1d import Factorised
from gdt.train.run import CHECKPOINT
from gdt.train.schedule import Optimization
from gdt.train.settings import RunSettings
from gdt.train.step import Gradient, Metrics, require_finite
from gdt.train.trained import Trained


class Learner:
    """Updates the model of a run, on one rank; saves and loads its state."""

    def __init__(self, experiment: Experiment, device: torch.device, world: int = 1) -> None:
        settings = experiment.settings
        self.experiment = experiment
        torch.manual_seed(settings.seed)
        model: Any = GDT(settings.network, experiment.composition.modalities, experiment.makers)
        self.flops = step_flops(model, experiment.composition, settings.clip)
        """FLOPs of a step over all ranks."""
        model = model.to(device)
        if world > 1 and settings.network.own:  # which may draw its weights from other than torch's seed
            for value in (*model.parameters(), *model.buffers()):
                dist.broadcast(value.detach(), 0)
        if world > 1 and not settings.group_size:
            model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
        self.model: GDT = model
        _prepare(model, settings)
        self._gradient = Gradient(model, settings, experiment.composition.factors)
        self.optimizer = _optimizer(settings.optimization, model, device)

    def step(self, step: int, batch: Batch) -> Metrics:
        """Update the model. Raises UserError on all ranks, before the update, if loss or gradient are not finite."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.experiment.schedule.lr(step)
        metrics = self._gradient(step, batch)
        require_finite(metrics.loss, metrics.gradient_norm, f"at step {step}")
        self.optimizer.step()
        return metrics

    def state(self, done: int) -> RunState:
        """What a checkpoint holds after `done` steps."""
        record = replace(self.experiment.record, step=done, flops=self.flops)
        return RunState(record, self.model.state_dict(), self.optimizer.state_dict())

    def resume(self, state: RunState) -> None:
        """Load the state of a checkpoint. Raises UserError as `require_same_run`."""
        path = self.experiment.settings.run_folder / CHECKPOINT
        require_same_run(state.record, self.experiment, path)
        try:
            load_weights(self.model, state.weights, str(path))
        except UserError as error:
            raise UserError(f"{error}, or start anew with --overwrite") from error
        self.optimizer.load_state_dict(dict(state.optimizer))


def _prepare(model: GDT, settings: RunSettings) -> None:
    """Set precision, memory layout and compilation."""
    if settings.precision == "float64":
        model.double()
    for _, module in model.paper_modules():
        if isinstance(module, nn.Conv3d):
            module.to(memory_format=torch.channels_last_3d)  # type: ignore[call-overload]
    if settings.compile != "on":
        return
    for modality in {"video", "audio"} & {*model.modalities}:
        backbone = model.backbone(modality)
        for module in backbone.modules():
            if isinstance(module, Factorised):
                module.multiple = 8
        # torch's own random numbers: both passes of a group must draw the same
        options = {"fallback_random": True} if getattr(settings.network, modality) else None
        backbone.compile(dynamic=False, options=options)


def _optimizer(o: Optimization, model: GDT, device: torch.device) -> torch.optim.Optimizer:
    common: dict[str, Any] = {"lr": o.lr, "weight_decay": o.weight_decay, "fused": device.type == "cuda" or None}
    if o.optimizer == "sgd":
        return torch.optim.SGD(model.parameters(), momentum=o.momentum, **common)
    return torch.optim.AdamW(model.parameters(), betas=(o.momentum, 0.999), **common)


def start_from(model: GDT, start: Trained | None, source: str | None) -> str:
    """Keep random weights, or copy the parts that both models have, if they are not random; returns a description.

    Raises UserError if the weights do not fit.
    """
    if start is None:
        return "random weights"
    fresh = start.origin.fresh if start.origin else ()
    parts = {name: part for name, part in start.model.named_children() if name not in fresh}
    taken = [name for name, _ in model.named_children() if name in parts]
    for name in taken:
        load_weights(model.get_submodule(name), parts[name].state_dict(), f"{source} ({name})")
    left = [name for name, _ in model.named_children() if name not in parts]
    random = f"; random {', '.join(left)}" if left else ""
    return f"starting from {source}: loaded {', '.join(taken) or 'nothing'}{random}"
