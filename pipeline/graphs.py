"""The DALI graphs of the loader, and how they are fed. The same graph runs on the CPU and on a GPU."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import nvidia.dali.fn as fn
import nvidia.dali.types as types
import torch
from nvidia.dali import pipeline_def

from pipeline.shards.layout import MEL_FLOOR


@pipeline_def
def video_graph(size: int, branches: int, device: str) -> Any:
    """JPEG frames -> per branch, uint8 crops [size, size, 3] of every frame, in the order of its permutation."""
    jpeg = fn.external_source(name="jpeg", batch=True)
    frames = fn.decoders.image(jpeg, device="mixed" if device == "gpu" else "cpu", output_type=types.RGB)
    outputs = []
    for branch in range(branches):
        begin, end, order = (
            fn.external_source(name=f"{name}{branch}", batch=True, dtype=dtype, ndim=ndim)
            for name, dtype, ndim in (("begin", types.FLOAT, 1), ("end", types.FLOAT, 1), ("places", types.INT32, 0))
        )
        crop = fn.resize(
            frames, size=(size, size), roi_start=begin, roi_end=end, interp_type=types.INTERP_LINEAR, antialias=False
        )
        outputs.append(fn.permute_batch(crop, indices=order))
    return tuple(outputs)


@pipeline_def
def audio_graph(device: str) -> Any:
    """Log-mel rows [frames, bands] -> made louder, normalised, masked: float32 [bands, frames]."""

    def source(name: str, dtype: Any, ndim: int) -> Any:
        node = fn.external_source(name=name, batch=True, dtype=dtype, ndim=ndim)
        return node.gpu() if device == "gpu" and name in _AUDIO_DATA else node

    rows, gain = source("rows", types.FLOAT, 2), source("gain", types.FLOAT, 0)
    mean, scale = source("mean", types.FLOAT, 0), source("scale", types.FLOAT, 0)
    louder = rows + gain * (rows > MEL_FLOOR)  # silence stays silent: a gain on zero energy changes nothing
    bank = fn.transpose((louder - mean) * scale, perm=[1, 0])
    for axis, name in enumerate(("frequency", "time")):
        start = fn.external_source(name=f"{name}_start", batch=True, dtype=types.FLOAT, ndim=1)
        width = fn.external_source(name=f"{name}_width", batch=True, dtype=types.FLOAT, ndim=1)
        bank = fn.erase(bank, anchor=start, shape=width, axes=[axis], fill_value=0.0)
    return bank


AUDIO_CLIPS = 1024
_AUDIO_DATA = ("rows", "gain", "mean", "scale")


class Pipeline:
    """A built DALI graph that is fed by name, a few runs ahead of its outputs."""

    AHEAD = 2

    def __init__(self, graph: Any) -> None:
        self._graph = graph
        self._started = False
        graph.build()

    def run(self, feed: Iterable[dict[str, Any]]) -> Iterator[list[torch.Tensor]]:
        """Outputs of every run, as tensors that hold until the next one is asked for."""
        scheduled = 0
        for inputs in feed:
            self._schedule(inputs)
            scheduled += 1
            if scheduled == self.AHEAD:
                yield from self._outputs()
                scheduled -= 1
        for _ in range(scheduled):
            yield from self._outputs()

    def _schedule(self, inputs: dict[str, Any]) -> None:
        # DALI's first schedule_run starts as many runs as its queue is deep; the surplus is thrown away
        runs = 1 if self._started else self.AHEAD
        for _ in range(runs):
            for name, values in inputs.items():
                self._graph.feed_input(name, values)
        self._graph.schedule_run()
        self._started = True
        for _ in range(runs - 1):
            self._graph.share_outputs()
            self._graph.release_outputs()

    def _outputs(self) -> Iterator[list[torch.Tensor]]:
        tensors = [torch.from_dlpack(output.as_tensor()) for output in self._graph.share_outputs()]
        yield tensors
        if tensors[0].is_cuda:
            torch.cuda.current_stream().synchronize()  # DALI may write over its outputs once they are released
        self._graph.release_outputs()


def dali_message(error: RuntimeError) -> str:
    """What went wrong, of the many lines that DALI says."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    after = lines.index("encountered:") + 1 if "encountered:" in lines[:-1] else 0
    return lines[after] if lines else type(error).__name__
