"""The training step (forward, loss, gradients, update) against a plain loop in PyTorch with the same networks.

The plain loop is what one writes for rows e and l: both are symmetric cross-modal contrast, in which the positives of a
leaf are those of the other modality with the same video and moment. It takes clips that are floats on the device
already. Ours converts bytes, compares the factors of any composition, and can take its gradients group by
group (cached gradients), in the memory of one group and with a second forward pass.
"""

import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
import tyro
from torch.nn import functional

from benchmarks.shared import DeviceName, Measurements, draw, machine, prepare, run_settings
from gdt.common.errors import UserError, exit_with_message
from gdt.pipeline.loader import Batch
from gdt.train.models.gdt import GDT
from gdt.train.settings import RunSettings

PLAIN, WHOLE, CACHED = "plain loop", "ours", "ours, cached gradients"


class PlainLoop:
    """Updates a model as a script in PyTorch does."""

    def __init__(self, run: RunSettings, batch: Batch) -> None:
        device = torch.device(run.device)
        torch.manual_seed(run.seed)
        self.model = GDT(run.network).to(device).train()
        o = run.optimization
        self.optimizer = torch.optim.SGD(self.model.parameters(), o.lr, o.momentum, weight_decay=o.weight_decay)
        self.video = batch.inputs["video"].floats().clone()
        self.audio = batch.inputs["audio"].clone()
        moments = torch.stack([batch.table["video"], batch.table["time_shift"]], 1)  # leaves of the video first
        of_video, of_audio = moments.chunk(2)
        same = (of_video[:, None] == of_audio).all(2).float()
        self.target = same / same.sum(1, keepdim=True)
        self.temperature = run.temperature
        self.autocast = nullcontext() if device.type == "cpu" else torch.autocast("cuda", torch.bfloat16)

    def step(self) -> float:
        """One update; returns the loss."""
        with self.autocast:
            z_video = self.model.mlp_v(self.model.video_network(self.video))
            z_audio = self.model.mlp_a(self.model.audio_network(self.audio))
        similarity = z_video @ z_audio.T / self.temperature
        each = [functional.cross_entropy(*pair) for pair in ((similarity, self.target), (similarity.T, self.target.T))]
        loss = (each[0] + each[1]) / 2
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        return float(loss.detach())


def seconds(step: Callable[[], Any], steps: int) -> float:
    """Seconds per step."""
    step()
    start = time.perf_counter()
    for _ in range(steps):
        step()  # waits for the device
    return (time.perf_counter() - start) / steps


def main(
    rows: tuple[str, ...] = ("e", "l"), clips: int = 64, device: DeviceName = "cpu", size: str = "tiny", steps: int = 4,
    rounds: int = 3,
) -> None:  # fmt: skip
    """Measure the training step against a plain loop.

    Args:
        rows: Rows e or l of table 1.
        clips: Video clips per step.
        device: cpu or cuda.
        size: tiny or paper, networks and clips.
        steps: Steps per measurement, after one for warm-up.
        rounds: Rounds of all measurements.

    """
    if not {*rows} <= {"e", "l"}:
        raise UserError(f"--rows is {' '.join(rows)}; the plain loop has rows e and l only")
    if device == "cpu":
        torch.set_num_threads(1)  # other work on the machine disturbs one thread least
    print(f"{machine()}, {device}; {clips} clips per step, size {size}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        index = draw(Path(folder) / "shards", clips)
        for row in rows:
            print(f"row {row}", flush=True)
            run = run_settings(size, row, clips, device)
            learner, batch = prepare(index, run)
            plain = PlainLoop(run, batch)
            # a group is at most one leaf of each video
            grouped, groups = prepare(index, run_settings(size, row, clips, device, clips // 4))
            ways: dict[str, Callable[[], Any]] = {
                PLAIN: plain.step,
                WHOLE: partial(learner.step, 0, batch),
                CACHED: partial(grouped.step, 0, groups),
            }
            first = {PLAIN: plain.step(), WHOLE: learner.step(0, batch).loss}
            if abs(first[PLAIN] - first[WHOLE]) > (1e-3 if device == "cpu" else 0.05) * first[PLAIN]:
                raise UserError(f"the losses of the first step differ: {first}")
            found = Measurements()
            for _ in range(rounds):
                for name, way in ways.items():
                    found.add(name, clips / seconds(way, steps), "clips/s")
            found.show(PLAIN, "clips/s")
            for name in (WHOLE, CACHED):
                found.show(name, "clips/s", PLAIN)


if __name__ == "__main__":
    exit_with_message(lambda: tyro.cli(main, prog="python -m benchmarks.step"))
