"""Choice of the JPEG decoder: the CPU if its cores are enough, else one of the GPU's if its pixels are right."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import metadata

import numpy as np
import simplejpeg
import torch

from gdt.common.errors import UserError
from gdt.common.streams import Stream, generator
from gdt.pipeline.compiled import resize
from gdt.pipeline.device import Device, loader_device
from gdt.pipeline.engines import CpuEngine, Engine, Run, dali_message, decode, engine, taps
from gdt.pipeline.leaves import Clip
from gdt.pipeline.shards.index import Index
from gdt.pipeline.shards.reader import DamagedVideo, ShardReader
from gdt.pipeline.sources.loading import Loading, cores

JPEG_ENGINE, KERNELS = "the GPU's JPEG engine", "the GPU's kernels"
DECODERS = {JPEG_ENGINE: Loading(decoder="gpu", jpeg_hardware=True), KERNELS: Loading(decoder="gpu")}
"""The decoders of a GPU."""
MEAN, NEARLY_ALL = 1.5, 8
"""Grey levels by which GPU and CPU decoders may differ: the mean over a leaf, and 99.9 % of its values.

Both take the same bytes and interpolate chroma in the same way (jpeg_fancy_upsampling), so only rounding differs.
libjpeg-turbo's own two inverse transforms differ by 0.9 to 1.1 levels on average and 99.9 % of the values by at
most 4, on drawn and on generated frames; with chroma repeated instead of interpolated it is 1.3 to 3.7, and 12 to 49.
"""
KNOWN = {"nvidia-nvimgcodec-cu13": "0.9", "nvidia-nvjpeg": "13.3"}
"""Versions of constraints.txt; with others the JPEG engine is refused. It ignored a stream's order in nvJPEG 12.3 to
13.2 on H100.
"""
PREDICTED = 450.0
"""Predicted maximum speed of training the paper's networks on one H100, clips/s of one modality."""
_OVERHEAD = 1.2
"""CPU time of a clip relative to that of decoding and cropping: reading, checksums, sound, Python."""
_FRAMES = 8
"""Frames of a video in a sample."""
_TRAINING = 1
"""Cores that the training step itself keeps busy."""


@dataclass(frozen=True)
class Choice:
    """The decoder of a process."""

    loading: Loading
    """With a GPU, the settings with decoder cpu or gpu, and with jpeg_hardware only if its pixels are right."""
    why: str
    """Reason for the choice; empty without a GPU, where there is none."""


def choose(
    index: Index, clip: Clip, device: Device | torch.device, loading: Loading, clips_per_second: float = PREDICTED,
    leaves_per_decoded: float = 1,
) -> Choice:  # fmt: skip
    """Resolve --loading.decoder and --loading.jpeg-hardware; `leaves_per_decoded` leaves share a decoded clip.

    A GPU's decoder is taken only if `check` finds nothing wrong; else a warning says what is wrong. Raises UserError if
    the JPEG engine is asked for with an unknown version of its libraries.
    """
    device = loader_device(device)
    if not device.is_gpu:
        return Choice(loading, "")  # the engine refuses gpu
    on_cpu = replace(loading, decoder="cpu", jpeg_hardware=False)
    jpegs = [] if loading.decoder == "cpu" else sample(index, clip)
    if not jpegs:
        return Choice(on_cpu, "on the CPU")
    reason = ""
    if loading.decoder == "auto":
        need = clips_per_second * seconds_per_clip(jpegs, clip, leaves_per_decoded)
        available = min(loading.threads, cores() - _TRAINING)
        reason = f": {clips_per_second:.0f} clips/s need {need:.1f} cores, and each GPU has {available} for loading"
        if need <= available:
            return Choice(on_cpu, f"on the CPU{reason}")
    if loading.jpeg_hardware:
        require_known_versions()
    for name in (JPEG_ENGINE, KERNELS) if loading.jpeg_hardware else (KERNELS,):
        if not _fault(name, jpegs, str(index.folder), device):
            chosen = replace(loading, decoder="gpu", jpeg_hardware=name == JPEG_ENGINE)
            return Choice(chosen, f"on {name}, whose pixels match the CPU's{reason}")
    return Choice(on_cpu, f"on the CPU, since the GPU's decoders fail{reason}")


def seconds_per_clip(jpegs: Sequence[np.ndarray], clip: Clip, leaves_per_decoded: float) -> float:
    """CPU seconds of a leaf, by the median over some frames."""
    decoding, cropping = [], []
    crop = np.empty((clip.size, 3 * clip.size), np.uint8)
    for jpeg in (jpegs[0], *jpegs[:: max(1, len(jpegs) // 32)]):
        height, width = simplejpeg.decode_jpeg_header(jpeg)[:2]
        frame = np.empty((height, width, 3), np.uint8)
        region = *taps(0, height, clip.size, height), *taps(0, width, clip.size, width, step=3)
        times = [time.thread_time()]  # other work on the CPU does not count
        decode(jpeg, frame)
        times.append(time.thread_time())
        resize(frame.reshape(height, -1), *region, crop)
        times.append(time.thread_time())
        decoding.append(times[1] - times[0])
        cropping.append(times[2] - times[1])
    decoded, cropped = (float(np.median(each[1:])) for each in (decoding, cropping))  # the first compiles
    return _OVERHEAD * clip.frames * (decoded / leaves_per_decoded + cropped)


def require_known_versions() -> None:
    """Raise UserError if the libraries of the JPEG engine are of other versions than `KNOWN`."""
    for package, known in KNOWN.items():
        try:
            version = metadata.version(package)
        except metadata.PackageNotFoundError:
            version = "unknown"
        if not version.startswith(f"{known}."):
            raise UserError(
                f"--loading.jpeg-hardware: {package} has version {version}, and only {known} is known to work; leave "
                "the option out, or install the versions of constraints.txt"
            )


_FAULTS: dict[tuple[str, str, str], str] = {}
"""Results of `check` in this process, by decoder, shards and device."""


def _fault(name: str, jpegs: Sequence[np.ndarray], shards: str, device: Device) -> str:
    """What is wrong with a decoder; the first call of a process checks and warns."""
    key = (name, shards, str(device.device))
    if key not in _FAULTS:
        _FAULTS[key] = check(jpegs, device, decoders={name: DECODERS[name]})[name]
        if _FAULTS[key]:
            print(f"warning: {name} ({device.device}) is not used: {_FAULTS[key]}", file=sys.stderr)
    return _FAULTS[key]


def sample(index: Index, clip: Clip, videos: int = 16) -> list[np.ndarray]:
    """JPEG bytes of the first frames of videos spread over the shards, without damaged ones."""
    reader, jpegs = ShardReader(index), []
    for video in np.unique(np.linspace(0, len(index) - 1, videos).astype(int)).tolist():
        with contextlib.suppress(DamagedVideo):
            jpegs += reader.frames(video, np.arange(min(clip.frames, _FRAMES, index.frame_count[video])))
    return [jpeg for jpeg in jpegs if _is_intact(jpeg)]


def _is_intact(jpeg: np.ndarray) -> bool:
    try:
        simplejpeg.decode_jpeg(jpeg)
    except ValueError:
        return False
    return True


def check(
    jpegs: Sequence[np.ndarray], device: Device | torch.device, rounds: int = 50,
    decoders: Mapping[str, Loading] = DECODERS, make: Callable[[Clip, Device, Loading], Engine] = engine,
) -> dict[str, str]:  # fmt: skip
    """Decode frames while the GPU is busy, in another order in every round, and compare them with the CPU's pixels.

    Returns what is wrong with each decoder, in words; empty if nothing. nvJPEG's hardware decoder has been seen to
    overwrite pixels before earlier work had read them (torchcodec#1634), visible only if the next pixels differ.
    """
    device = loader_device(device)
    clip = Clip(frames=1)
    sizes = np.array([simplejpeg.decode_jpeg_header(jpeg)[:2] for jpeg in jpegs])
    rng, n = generator(Stream.DECODERS), len(jpegs)
    orders = [rng.permutation(n) for _ in range(rounds)]

    def runs(orders: Sequence[np.ndarray], queue: Callable[[], None]) -> Iterator[Run]:
        still, rows = np.zeros((n, 1, 1), np.int64), np.arange(n)[:, None]
        for order in orders:
            queue()
            begin, end = np.zeros((n, 1, 2), np.float32), sizes[order, None].astype(np.float32)
            yield Run(rows, n, [[jpegs[k]] for k in order], sizes[order], begin, end, still, last=True)

    def crops(where: torch.device) -> torch.Tensor:
        return torch.empty(n, 1, clip.size, clip.size, 3, dtype=torch.uint8, device=where)

    def count_wrong(loading: Loading) -> int:
        """Count the rounds with wrong pixels."""
        decoder = make(clip, device, replace(loading, decode_batch_size=n))
        out, queue = crops(device.device), _queued_work(device.device)

        def crops_behind_work(leaves: int) -> torch.Tensor:
            queue()
            return out

        with contextlib.closing(decoder), device.loader_stream():
            shuffled = torch.from_numpy(np.stack(orders)).to(device.device)
            filled = decoder.fill(runs(orders, queue), crops_behind_work)
            wrong = [_differ(out, expected[order]).any() for order, _ in zip(shuffled, filled, strict=True)]
            return int(torch.stack(wrong).sum())

    right = crops(torch.device("cpu"))
    reference = CpuEngine(clip, Device(right.device), Loading(decode_batch_size=n))
    with contextlib.closing(reference):
        next(reference.fill(runs([np.arange(n)], lambda: None), lambda leaves: right))
    expected = right.to(device.device)
    found = {}
    for name, loading in decoders.items():
        try:
            count = count_wrong(loading)
            found[name] = f"wrong pixels in {count} of {rounds} batches while the GPU is busy" if count else ""
        except ImportError as error:
            found[name] = f"DALI cannot be imported ({error})"
        except RuntimeError as error:
            found[name] = f"it fails ({dali_message(error)})"
    return found


def _queued_work(device: torch.device) -> Callable[[], None]:
    """A function that queues about 20 ms of work for an H100: half on the caller's stream, half on the current one.

    Its thread blocks are long, so kernels of other streams, DALI's too, wait until one ends, as during training.
    """
    if device.type != "cuda":
        return lambda: None
    caller = torch.cuda.current_stream(device)
    factor = torch.zeros(1408, 32768, device=device)  # a block per multiprocessor, with a long sum each

    def queue() -> None:
        for stream in (caller, torch.cuda.current_stream(device)):
            with torch.cuda.stream(stream):
                for _ in range(5):
                    torch.mm(factor, factor.T)

    return queue


def _differ(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Whether byte crops [n, ...] differ by more than `MEAN` or `NEARLY_ALL`: bool [n], without waiting for a GPU."""
    off = (one.short() - other.short()).abs().flatten(1)
    return (off.float().mean(1) >= MEAN) | ((off > NEARLY_ALL).sum(1) >= max(1, off.shape[1] // 1000))


def levels(one: torch.Tensor, other: torch.Tensor) -> tuple[float, int, int]:
    """Difference of the worst leaf of byte crops [n, ...]: mean, 99.9 % quantile, maximum."""
    off = (one.short() - other.short()).abs().flatten(1)
    few = max(1, off.shape[1] // 1000)
    return float(off.float().mean(1).max()), int(off.topk(few, 1).values[:, -1].max()), int(off.max())
