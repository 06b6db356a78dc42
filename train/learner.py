"""Model, optimizer and schedule of a run."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from typing import Any

import torch
from tqdm import tqdm

from gdt.pipeline.loader import Batch, all_usable
from gdt.pipeline.tree import Tree
from gdt.train import checkpoint
from gdt.train.checkpoint import Data, require_same_run
from gdt.train.cost import peak_flops, step_flops
from gdt.train.kernels import PRECISIONS, Kernels
from gdt.train.metrics import Metrics
from gdt.train.models.gdt import GDT, load_weights
from gdt.train.norm import allow_masks, synchronise
from gdt.train.padding import keep_original_shapes
from gdt.train.schedule import Optimization
from gdt.train.settings import Pretrain, to_json
from gdt.train.step import Gradient, StepConfig
from gdt.train.tensors import raw_bytes


class Learner:
    """Updates the model of a run, on one rank; saves and loads its state."""

    def __init__(
        self, settings: Pretrain, tree: Tree, data: Data, device: torch.device, world: int = 1,
        kernels: Kernels | None = None, recomputed: int = 0,
    ) -> None:  # fmt: skip
        """`recomputed` as in `Backbone`."""
        self.settings, self.device, self.world = settings, device, world
        self.composition = tree.composition
        self.schedule = settings.schedule(tree.batches_per_epoch)
        self.path = settings.run_folder / checkpoint.NAME
        self._data = data
        torch.manual_seed(settings.seed)
        self.model = model = GDT(settings.network, tree.composition.modalities).to(device)
        partial = not all_usable(model.modalities, settings.loading)
        if world > 1 and not settings.bn_group_size:
            synchronise(model)
        elif partial:
            allow_masks(model)
        if "video" in model.modalities:
            model.video_network.base.recomputed = recomputed
        dtype = PRECISIONS[settings.precision]
        shapes = (kernels or Kernels(dtype)).apply(model)
        config = StepConfig(
            tree.composition.factors, settings.temperature, settings.seed, dtype, settings.bn_group_size or 0,
            settings.micro_batch_size,
        )  # fmt: skip
        self.gradient = Gradient(model, config, world, tqdm.write)
        self.optimizer = _optimizer(settings.optimization, model, device)
        keep_original_shapes(self.optimizer, shapes)

    def step(self, step: int, batch: Batch) -> Metrics:
        """Update the model; the metrics stay on the device."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.schedule.lr(step)
        metrics = self.gradient(step, batch)
        self.optimizer.step()
        return metrics

    def state(self, done: int) -> dict[str, Any]:
        """Content of a checkpoint after `done` steps."""
        settings, steps = to_json(self.settings), self.schedule.steps
        return checkpoint.make_state(self.model, self.optimizer, done, settings, self._data, steps)

    def resume(self, state: Mapping[str, Any]) -> int:
        """Load the state of a checkpoint; returns the next step. Raises UserError as `require_same_run`."""
        require_same_run(state, self.settings, self._data, self.schedule.batches_per_epoch, self.path)
        load_weights(self.model, state["model"], str(self.path))
        self.optimizer.load_state_dict(dict(state["optimizer"]))
        return int(state["step"])

    def digest(self) -> str:
        """Checksum of the weights and the optimizer's state."""
        value = hashlib.sha256()
        for state in (self.model.state_dict(), *self.optimizer.state_dict()["state"].values()):
            for tensor in state.values():
                if isinstance(tensor, torch.Tensor):
                    value.update(raw_bytes(tensor))
        return value.hexdigest()

    def flops(self, bands: int) -> tuple[float, float] | None:
        """FLOPs of a step per GPU, and the GPU's peak FLOP/s; None if the peak is unknown."""
        if (peak := peak_flops(self.device)) is None:
            return None
        return step_flops(self.settings, bands) / self.world, peak


def _optimizer(o: Optimization, model: GDT, device: torch.device) -> torch.optim.Optimizer:
    common: dict[str, Any] = {"lr": o.lr, "weight_decay": o.weight_decay, "fused": device.type == "cuda" or None}
    if o.optimizer == "sgd":
        return torch.optim.SGD(model.parameters(), momentum=o.momentum, **common)
    return torch.optim.AdamW(model.parameters(), betas=(o.momentum, 0.999), **common)


def start_from(model: GDT, start: GDT, source: str, fresh: Collection[str] = ()) -> str:
    """Copy the parts that both models have, except those in `fresh`; returns a description.

    Raises UserError if the weights do not fit.
    """
    parts = {name: part for name, part in start.named_children() if name not in fresh}
    taken = [name for name, _ in model.named_children() if name in parts]
    for name in taken:
        load_weights(model.get_submodule(name), parts[name].state_dict(), f"{source} ({name})")
    left = [name for name, _ in model.named_children() if name not in parts]
    return f"loaded {', '.join(taken) or 'nothing'}" + (f"; random {', '.join(left)}" if left else "")
