"""The first ten minutes on a new machine: what does not work, is wrong, or is slower than predicted.

A process runs row after row. One that fails on the device, crashes or takes more than its limit ends the process, and
another continues with the next row. So a failure costs one row, and the others do not each start torch and CUDA.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from math import prod

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.gpu import convolutions
from benchmarks.gpu.convolutions import WRONG, random_channels_last
from benchmarks.gpu.device import cudnn_settings, on_gpu, seconds
from benchmarks.gpu.loading import CHOICES, rate
from benchmarks.gpu.ranks import synchronised
from benchmarks.gpu.settings import PREDICTED, Settings, Way
from benchmarks.gpu.shards import draw_frames, encode, generate
from benchmarks.gpu.step import BANDS, measure
from benchmarks.gpu.table import STARTED, Row, Rows, Values, read
from gdt.common import gpu
from gdt.common.errors import UserError
from gdt.pipeline import decoders
from gdt.pipeline.device import loader_device
from gdt.pipeline.engines import DaliEngine
from gdt.pipeline.shards.index import Index
from gdt.pipeline.sources.audio import dali_inputs, normalise
from gdt.pipeline.sources.loading import Loading
from gdt.train.kernels import BUDGET
from gdt.train.models.r2plus1d import factorised, middle_channels

SECONDS, COMPILING = 30.0, 90.0
"""Time limits of a row, and of one that chooses or compiles the kernels of a whole step."""
NEEDS_GPU: Values = {"is": "needs a GPU"}


@dataclass(frozen=True)
class Check:
    """One row."""

    measure: Callable[[], Values]
    needs_gpu: bool = False
    limit: float = SECONDS


def smoke(settings: Settings, rows: Rows, device: torch.device) -> None:
    for part, own in checks(settings, rows, device).items():
        table = rows.part(part)
        for what, check in own.items():
            table(what, check.measure if on_gpu(device) or not check.needs_gpu else lambda: NEEDS_GPU, check.limit)


def checks(settings: Settings, rows: Rows, device: torch.device) -> dict[str, dict[str, Check]]:
    """Rows by table, in their order."""
    size, leaves = settings.size, settings.size.leaves_of_ideas
    few = replace(settings, size=replace(size, videos=min(size.videos, 64), loading_seconds=size.loading_seconds / 4))
    ways = {"eager": Way(bfloat16=on_gpu(device), compiled=False), "compiled": Way(),
            "compiled with memory budget": Way(budget=BUDGET)}  # fmt: skip
    return {
        "machine": {
            "driver": Check(driver, needs_gpu=True),
            "compute capability": Check(partial(capability, device), needs_gpu=True),
            "C compiler and Python.h": Check(compiler, needs_gpu=True),
            "Triton adds vectors": Check(partial(addition, device), needs_gpu=True),
            "DALI decodes a frame": Check(partial(frame, device)),
            "DALI normalises a sound": Check(partial(sound, device)),
        },
        "decoders": {
            "pixels while the GPU is busy": Check(partial(pixels, few, device), needs_gpu=True),
        } | {
            f"row a{name}": Check(partial(decoding, few, device, choice), choice.decoder == "gpu")
            for name, choice in CHOICES.items()
        },
        "steps": {
            f"{what}, {leaves} clips": Check(partial(step, settings, device, what, way), way.compiled, COMPILING)
            for what, way in ways.items()
        } | {"batch norm over ranks": Check(partial(synchronised, settings, device), limit=COMPILING)},
        "layer1": {
            f"{n} clips in one pass": Check(partial(one_pass, settings, device, n)) for n in size.leaves[-2:]
        },
        "convolutions": {
            what: Check(partial(convolutions.measure, same[0], len(same), size, device))
            for what, same in convolutions.trunk_convolutions(size).items()
        } | {"all": Check(lambda: convolutions.total(_recorded(rows, "convolutions"), leaves))},
        "summary": {"what is wrong": Check(lambda: {"is": "; ".join(_wrong(_recorded(rows))) or "nothing"})},
    }  # fmt: skip


def _recorded(rows: Rows, part: str = "") -> list[Row]:
    return [row for row in read(rows.path) if row.section.startswith(f"{rows.section}: {part}")]


def _wrong(rows: list[Row]) -> list[str]:
    """Rows that failed, or whose values say that something is wrong."""
    known = [row for row in rows if row.failed != STARTED]
    notes = {row.what: row.failed or str(row.values.get("is", "")) for row in known}
    failed = {row.what for row in known if row.failed}
    return [f"{what}: {why}" for what, why in notes.items() if what in failed or why.startswith(WRONG)]


# -------------------------------------------------------------------------------------------------------- the machine


def driver() -> Values:
    """Raises UserError if the driver is missing or too old."""
    if not gpu.has_gpu():
        raise UserError("nvidia-smi lists no GPU")
    return {"is": gpu.driver()}


def capability(device: torch.device) -> Values:
    major, minor = torch.cuda.get_device_capability(device)
    return {"is": f"{major}.{minor}; bfloat16 needs 8.0; torch has {' '.join(torch.cuda.get_arch_list())}"}


def compiler() -> Values:
    """Raises UserError if the compiler or Python.h is missing."""
    if problem := gpu.compiler_problem():
        raise UserError(problem)
    return {"is": "found"}


def addition(device: torch.device) -> Values:
    """Raises UserError if the sum is wrong."""
    from benchmarks.gpu.addition import add

    one, other = torch.rand(2, 100_003, device=device)
    if not torch.equal(add(one, other), one + other):
        raise UserError("the sum of two vectors is wrong")
    return {"is": "as torch does"}


def frame(device: torch.device) -> Values:
    """One frame through the loader's graph, on the GPU's kernels. Raises UserError if it is wrong."""
    jpeg = np.frombuffer(encode(draw_frames(np.random.default_rng(0), 1, 64)[0]), np.uint8)
    kernels = {"": Loading(decoder="gpu", threads=1)}
    if wrong := decoders.check([jpeg], device, 1, kernels, DaliEngine)[""]:
        raise UserError(wrong)
    return {"is": "as on the CPU"}


def sound(device: torch.device) -> Values:
    """One sound through the loader's graph. Raises UserError if it is wrong."""
    from gdt.pipeline.graphs import Pipeline, audio_graph

    where, statistics = loader_device(device), (-2.0, 0.5)
    rows = np.random.default_rng(0).normal(0, 4, (1, 99, BANDS)).astype(np.float32)
    names = ("volume", "frequency_start", "frequency_width", "time_start", "time_width")
    draws = {name: np.full(1, value, np.float32) for name, value in zip(names, (1.5, 7, 4, 20, 9), strict=True)}
    graph = Pipeline(where, 1, audio_graph, 1, where.dali, *statistics)
    ((bank,),) = graph.run([{"rows": list(rows), **dali_inputs(draws)}])
    off = float(np.abs(bank.cpu().numpy() - normalise(rows.copy(), draws, *statistics)).max())
    if not off < 1e-4:
        raise UserError(f"its values are off by {off:.2g}")
    return {"is": "as on the CPU"}


# ------------------------------------------------------------------------------------------------------------- speeds


def step(settings: Settings, device: torch.device, what: str, way: Way) -> Values:
    """Steps of row l, beside the prediction."""
    return {"predicted clips/s": PREDICTED["steps"][what]} | measure(
        settings, device, way, settings.size.leaves_of_ideas
    )


def pixels(settings: Settings, device: torch.device) -> Values:
    """Raises UserError if any of the GPU's decoders makes wrong pixels."""
    generate(settings)
    found = decoders.check(decoders.sample(Index.open(settings.shards), settings.size.clip), device)
    if any(found.values()):
        raise UserError("; ".join(f"{name}: {wrong or 'right'}" for name, wrong in found.items()))
    return {"is": f"right on {' and '.join(found)}"}


def decoding(settings: Settings, device: torch.device, choice: Loading) -> Values:
    """Frames/s of a decoder, and the frames/s that row e is predicted to need in training."""
    generate(settings)
    return {**rate(settings, device, "a", choice), "needed frames/s": PREDICTED["frames/s"]}


def one_pass(settings: Settings, device: torch.device, leaves: int) -> Values:
    """A factorised convolution of layer1 over all leaves in one pass, compared slice by slice with two passes.

    Batch norm has fixed statistics, so that leaves do not depend on each other.
    """
    network, clip = settings.size.network, settings.size.clip
    channels, middle = network.widths[0], middle_channels(network.stem, network.widths[0])
    shape = (clip.frames, clip.size // 2, clip.size // 2)
    torch.manual_seed(0)
    x, g = (random_channels_last(device, leaves, width, *shape) for width in (network.stem, channels))
    block = factorised(network.stem, channels, middle).to(device, x.dtype).eval()
    block.to(memory_format=torch.channels_last_3d)  # type: ignore[call-overload]

    def in_passes(number: int) -> tuple[list[Tensor], float]:
        def run() -> list[Tensor]:
            parts = [_results(block, *part) for part in zip(x.chunk(number), g.chunk(number), strict=True)]
            outputs, dgrads, *wgrads = zip(*parts, strict=True)
            return [torch.cat(outputs), torch.cat(dgrads), *(torch.stack(one).sum(0) for one in wgrads)]

        return run(), 1000 * seconds(run, 2, device)

    with cudnn_settings(benchmark=True):
        (whole, ms), (halves, ms_of_halves) = in_passes(1), in_passes(2)
    slices = ([part for result in results for part in result.split(16)] for results in (whole, halves))
    off = max(convolutions.difference(one, two) for one, two in zip(*slices, strict=True))
    wrong = {} if off < convolutions.TOLERANCE else {"is": f"{WRONG}: off by {off:.2g}"}
    elements = leaves * middle * prod(shape) / 2**31
    return {"elements / 2**31": elements, "ms": ms, "ms in two passes": ms_of_halves, "off": off} | wrong


def _results(block: nn.Module, x: Tensor, g: Tensor) -> list[Tensor]:
    """Output, gradient of the input and those of the convolutions' weights."""
    x = x.detach().requires_grad_()
    y = block(x)
    weights = [weight for weight in block.parameters() if weight.dim() > 1]
    return [y.detach(), *torch.autograd.grad(y, [x, *weights], g)]
