"""The DALI graph of the loader, which runs on the CPU and on a GPU."""

from collections.abc import Iterable, Iterator
from typing import Any

import nvidia.dali.fn as fn
import nvidia.dali.types as types
import torch
from nvidia.dali import pipeline_def


@pipeline_def
def video_graph(size: int, branches: int, decoder: str) -> Any:
    """JPEG frames -> uint8 crops [size, size, 3] of every frame, per branch, in the order of its permutation.

    Without the GPU's JPEG engine, whose rounding differs: with it, a frame's pixels would depend on its position. Fancy
    upsampling interpolates chroma as a CPU does, up to rounding.
    """
    jpeg = fn.external_source(name="jpeg", batch=True)
    frames = fn.decoders.image(
        jpeg, device=decoder, output_type=types.RGB, hw_decoder_load=0.0, jpeg_fancy_upsampling=True
    )
    outputs = []
    for branch in range(branches):
        begin, end, indices = (
            fn.external_source(name=f"{name}{branch}", batch=True, dtype=dtype, ndim=ndim)
            for name, dtype, ndim in (("begin", types.FLOAT, 1), ("end", types.FLOAT, 1), ("indices", types.INT32, 0))
        )
        crop = fn.resize(
            frames, size=(size, size), roi_start=begin, roi_end=end, interp_type=types.INTERP_LINEAR, antialias=False
        )
        outputs.append(fn.permute_batch(crop, indices=indices))
    return tuple(outputs)


class Pipeline:
    """A built DALI graph. Its inputs are fed by name, a few runs ahead of its outputs."""

    AHEAD = 2

    def __init__(self, device: torch.device, threads: int, frames: int, size: int, branches: int) -> None:
        """For runs of at most some frames."""
        self._device = device
        self._graph = video_graph(
            size,
            branches,
            "mixed" if device.type == "cuda" else "cpu",
            batch_size=frames,
            num_threads=threads,
            prefetch_queue_depth=self.AHEAD,
            device_id=(device.index or 0) if device.type == "cuda" else None,
        )
        self._graph.build()
        self._started = False

    def run(self, feed: Iterable[dict[str, Any]]) -> Iterator[list[torch.Tensor]]:
        """Outputs of every run as tensors of the current stream, valid until the next run."""
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
        # DALI's first schedule_run starts as many runs as its queue is deep; discard the surplus
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
        stream = {"cuda_stream": torch.cuda.current_stream(self._device)} if self._device.type == "cuda" else {}
        yield [torch.from_dlpack(output.as_tensor()) for output in self._graph.share_outputs(**stream)]
        self._graph.release_outputs()
