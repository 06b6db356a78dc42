"""The loader against a slow NumPy oracle of the same plan."""

import io
import itertools
import threading
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from PIL import Image

from gdt.common.errors import UserError
from gdt.pipeline import presets
from gdt.pipeline.clips import uniform_clips
from gdt.pipeline.colour import Pixels, _on_any_device
from gdt.pipeline.engines import DaliEngine, DecodingRun, Filled
from gdt.pipeline.leaves import MODALITIES, Clip
from gdt.pipeline.loader import Batch, Loader
from gdt.pipeline.notation import parse
from gdt.pipeline.shards.index import Index
from gdt.pipeline.shards.layout import MEL_FLOOR
from gdt.pipeline.shards.reader import ShardReader
from gdt.pipeline.sources.loading import Loading
from gdt.pipeline.transformations.augmentation import Augmentation
from gdt.pipeline.tree import BatchPlan, Tree, sampling_tree
from tests.composed import composed, inputs_of
from tests.train.runs import wait_until

CPU = torch.device("cpu")
CLIP = Clip(frames=6, stride=3, size=40)
RATES = (1.0, 2.0, 0.5)
STRIDES = np.arange(CLIP.frames) * CLIP.stride
AUGMENTATION = Augmentation(scale=(44, 60), hue=0.1)
NO_COLOUR = replace(AUGMENTATION, brightness=0.0, contrast=0.0, saturation=0.0, hue=0.0)


def tree(index: Index, preset: str, augmentation: Augmentation = AUGMENTATION, videos: int = 5) -> Tree:
    return sampling_tree(index, composed(preset, videos, augmentation), CLIP, "train", 0)


def load(index: Index, plans: list[BatchPlan], **loading: Any) -> list[Batch]:
    """All batches, copied out of the loader's buffers, with their pixels as floats."""
    with Loader(index, plans, inputs_of(index, CLIP), CPU, Loading(**loading)) as loader:
        return [copied(batch) for batch in loader]


def copied(batch: Batch) -> Batch:
    inputs = {
        name: (value.floats() if isinstance(value, Pixels) else value).clone() for name, value in batch.inputs.items()
    }
    return replace(batch, inputs=inputs, table={name: value.clone() for name, value in batch.table.items()})


def decode(jpeg: np.ndarray) -> np.ndarray:
    """A frame [height, width, 3]."""
    return np.asarray(Image.open(io.BytesIO(jpeg.tobytes())))


def crop_oracle(frame: np.ndarray, scale: float, top: float, left: float, size: int) -> np.ndarray:
    """Resize so that the shorter side is `scale`, crop at (top, left) of the free margin; bilinear, float64."""
    height, width = frame.shape[:2]
    side = size * min(height, width) / scale
    y0, x0 = top * (height - side), left * (width - side)
    position = (np.arange(size) + 0.5) * side / size - 0.5

    def taps(start: float, length: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        at = start + position
        low = np.floor(at).astype(int)
        return np.clip(low, 0, length - 1), np.clip(low + 1, 0, length - 1), at - low

    ya, yb, fy = taps(y0, height)
    xa, xb, fx = taps(x0, width)
    wide = frame.astype(np.float64)
    rows = wide[ya] * (1 - fy)[:, None, None] + wide[yb] * fy[:, None, None]
    return rows[:, xa] * (1 - fx)[None, :, None] + rows[:, xb] * fx[None, :, None]


def colour_oracle(rgb: np.ndarray, hue: float, saturation: float, contrast: float, brightness: float) -> np.ndarray:
    """Hue and saturation in YIQ, contrast about 128, brightness: in separate steps, float64."""
    to_yiq = np.array([[0.299, 0.587, 0.114], [0.596, -0.274, -0.321], [0.211, -0.523, 0.311]])
    y, i, q = to_yiq @ rgb.reshape(-1, 3).T
    angle = 2 * np.pi * hue
    i, q = i * np.cos(angle) + q * np.sin(angle), q * np.cos(angle) - i * np.sin(angle)
    out = (np.linalg.inv(to_yiq) @ np.stack([y, i * saturation, q * saturation])).T.reshape(rgb.shape)
    return brightness * (128 + contrast * (out - 128))


def timeline(plan: BatchPlan, leaf: int, positions: np.ndarray) -> list[int]:
    """The stored frames (or rows) from the start on, in the order of play; factors act in their order."""
    played = [float(k) for k in positions]
    for name, values in plan.columns.items():
        value = int(values[leaf])
        if name == "time_reversal" and value:
            played = played[::-1]
        elif name == "speed":
            played = [np.floor(k * RATES[value] + 0.5) for k in played]
        elif name == "order":
            order = list(itertools.permutations(range(3)))[value]
            n, parts = len(played), []
            for part in range(3):  # parts of n // 3; the first ones take the remainder
                begin = part * (n // 3) + min(part, n % 3)
                parts.append(played[begin : begin + n // 3 + (part < n % 3)])
            played = [k for part in order for k in parts[part]]
    return [int(k) for k in played]


def leaf_oracle(index: Index, reader: ShardReader, plan: BatchPlan, leaf: int) -> np.ndarray:
    """One video leaf, normalised: float64 [frames, size, size, 3]."""
    draw = {name: float(values[leaf]) for name, values in plan.leaves.draws.items()}
    video, start = int(plan.leaves.video[leaf]), int(plan.leaves.start[leaf])
    played = timeline(plan, leaf, STRIDES)
    frames = [decode(reader.frames(video, np.array([start + k]))[0]) for k in played]
    crops = [np.round(crop_oracle(frame, draw["scale"], draw["top"], draw["left"], CLIP.size)) for frame in frames]
    if draw["flip"]:
        crops = [crop[:, ::-1] for crop in crops]
    if "rotation" in plan.columns:
        crops = [np.rot90(crop, plan.columns["rotation"][leaf]) for crop in crops]
    jittered = [colour_oracle(c, draw["hue"], draw["saturation"], draw["contrast"], draw["brightness"]) for c in crops]
    return (np.stack(jittered) - index.statistics.pixel_mean) / index.statistics.pixel_std


def audio_oracle(index: Index, reader: ShardReader, plan: BatchPlan, leaf: int) -> np.ndarray:
    """One audio leaf: float32 [bands, frames]."""
    draw = {name: values[leaf] for name, values in plan.leaves.draws.items()}
    tau = plan.columns["time_shift"][leaf] / index.fps
    played = timeline(plan, leaf, np.arange(CLIP.mel_frames))
    first = int(np.floor(100 * tau + 0.5))
    rows = np.concatenate([reader.logmel(int(plan.columns["video"][leaf]), first + int(k), 1) for k in played])
    gain = np.float32(2 * np.log(draw["volume"]))
    louder = np.where(rows > np.float32(MEL_FLOOR), rows + gain, rows)
    scale = np.float32(1 / index.statistics.mel_std)
    bank = ((louder - np.float32(index.statistics.mel_mean)) * scale).T.copy()
    bank[int(draw["frequency_start"]) : int(draw["frequency_start"] + draw["frequency_width"])] = 0
    bank[:, int(draw["time_start"]) : int(draw["time_start"] + draw["time_width"])] = 0
    return bank


def difference(index: Index, batch: Batch, leaf: int) -> np.ndarray:
    """Differences of a video leaf from the oracle, grey levels."""
    expected = leaf_oracle(index, ShardReader(index), batch.plan, leaf)
    got = batch.inputs["video"][leaf].permute(1, 2, 3, 0).numpy()
    return np.abs((got - expected) * index.statistics.pixel_std)


@pytest.mark.parametrize(
    "factors",
    [
        *(presets.PRESETS[name].factors.removeprefix("video:d ") for name in "adelm"),
        "speed(1,2,0.5):d:3 augmentation:i:2",
        "time_shift:d:2 order(3):i:3 augmentation:i:2",
        "rotation:d:4 augmentation:i:2",
        pytest.param(
            "time_shift:d:2 speed(1,2,0.5):d:3 modality:i:2:differs order:i:2 time_reversal:i:2 rotation:i:2 "
            "augmentation:i:1",
            marks=pytest.mark.slow,  # every transformation; test_random_compositions.py is the fast test
        ),
        "time_shift:i:2 modality:i:2:differs time_reversal:i:2 order(3):i:6 speed(1,2,0.5):i:2 augmentation:i:1",
    ],
)
def test_leaves_equal_the_oracle_within_one_grey_level_and_audio_exactly(index: Index, factors: str) -> None:
    composition = parse(f"video:d {factors}", 3, NO_COLOUR)
    (batch,) = load(index, [sampling_tree(index, composition, CLIP, "train", 0).plan(0, 1)])
    n = len(batch.inputs["video"])
    assert len(batch.plan) == composition.clips_per_video * 3 * len(composition.modalities)
    video, audio = map(MODALITIES.index, ("video", "audio"))
    assert (batch.plan.leaves.modality == np.where(np.arange(len(batch.plan)) < n, video, audio)).all()
    for leaf in range(n):
        levels = difference(index, batch, leaf)
        assert levels.max() < 1 + 1e-3
        assert levels.mean() < 0.02  # a whole level only for ties of rounding
    for leaf in range(n, len(batch.plan)):
        expected = audio_oracle(index, ShardReader(index), batch.plan, leaf)
        assert np.array_equal(batch.inputs["audio"][leaf - n, 0].numpy(), expected)


def test_colour_equals_the_oracle_within_rounding(index: Index) -> None:
    (batch,) = load(index, [tree(index, "a").plan(0, 0)])
    for leaf in range(len(batch.inputs["video"])):
        levels = difference(index, batch, leaf)
        assert levels.max() < 3  # one level of the crop, amplified by at most 1.4 x 1.4 x 1.4
        assert levels.mean() < 0.05


def test_volume_jitter_equals_a_louder_waveform() -> None:
    from tests.sounds import logmel

    waveform = (3000 * np.sin(np.arange(24_000) / 7) + np.arange(24_000) % 97).astype(np.int16)
    waveform[:6000] = 0  # silence stays silent
    quiet, loud = logmel(waveform), logmel(2 * waveform)
    rows = np.where(quiet > np.float32(MEL_FLOOR), quiet + np.float32(2 * np.log(2)), quiet)
    assert np.abs(rows - loud).max() < 1e-4


def test_batches_do_not_depend_on_threads_chunks_or_prefetching(index: Index) -> None:
    plans = [tree(index, "l").plan(0, batch) for batch in range(3)]
    one = load(index, plans, threads=1, readers=1, decode_batch_size=3, prefetch=1, read_ahead=1)
    other = load(index, plans, threads=2, readers=4, decode_batch_size=16, prefetch=3, read_ahead=50)
    for a, b in zip(one, other, strict=True):
        assert torch.equal(a.inputs["video"], b.inputs["video"]) and torch.equal(a.inputs["audio"], b.inputs["audio"])
        assert all(torch.equal(a.table[name], b.table[name]) for name in a.table)


@pytest.mark.parametrize("size", [1, 3, 8])
def test_pixels_are_the_colour_map_of_their_crops(size: int) -> None:
    n, frames = 5, 3
    generator = torch.Generator().manual_seed(0)
    crops = torch.randint(0, 256, (n, frames, size, size, 3), dtype=torch.uint8, generator=generator)
    matrix, offset = torch.randn(n, 3, 3, generator=generator), torch.randn(n, 3, generator=generator)
    pixels = Pixels(crops, matrix, offset)
    expected = torch.einsum("nij,nfhwj->nifhw", matrix.double(), crops.double()) + offset[:, :, None, None, None]
    assert torch.allclose(pixels.floats().double(), expected, atol=1e-4)
    assert torch.equal(pixels.floats(torch.bfloat16), pixels.floats().bfloat16())
    assert pixels.floats().is_contiguous(memory_format=torch.channels_last_3d)
    for dtype in (torch.float32, torch.bfloat16):
        on_any_device = torch.empty(crops.shape, dtype=dtype)
        _on_any_device(pixels, on_any_device)
        assert torch.allclose(on_any_device.permute(0, 4, 1, 2, 3), pixels.floats(dtype), atol=1e-3, rtol=1e-2)


def test_closing_early_stops_all_threads(index: Index) -> None:
    t = tree(index, "e")
    before = set(threading.enumerate())
    with Loader(index, (t.plan(0, 0) for _ in range(10_000)), inputs_of(index, CLIP), CPU) as loader:
        batches = iter(loader)  # which closes the loader when nothing refers to it
        next(batches)
        assert len({*threading.enumerate()} - before) > 3
    wait_until(lambda: not {*threading.enumerate()} - before)


@pytest.mark.parametrize("decoder", ["cpu", "gpu"])
def test_a_loader_that_cannot_be_made_leaves_no_threads(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, decoder: Literal["cpu", "gpu"]
) -> None:
    """Of shards in a store: without DALI, and without the vectors of the words."""
    monkeypatch.setenv("GDT_CACHE", str(tmp_path))
    monkeypatch.setattr("gdt.pipeline.sources.loading.has_dali", lambda: False)
    stored = Index.open(f"file://{shards}")
    plan = tree(stored, "e").plan(0, 0)
    if decoder == "cpu":
        plan.leaves.modality[:] = MODALITIES.index("text")
    before = set(threading.enumerate())
    with pytest.raises(UserError, match="DALI" if decoder == "gpu" else "have no words"):
        Loader(stored, [plan], inputs_of(stored, CLIP), CPU, Loading(decoder=decoder))
    assert set(threading.enumerate()) <= before


def test_other_decoding_errors_do_not_blame_the_frames(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(self: DaliEngine, runs: Iterable[DecodingRun]) -> Filled:
        next(iter(runs))
        raise RuntimeError("Critical error in pipeline:\nError in CPU operator `x`\n\nencountered:\n\nCUDA error 999\n")
        yield

    monkeypatch.setattr(DaliEngine, "fill", failing)
    with pytest.raises(UserError, match="decoding failed although all frames are intact: CUDA error 999"):
        load(index, [uniform_clips(index, np.array([0]), 1, CLIP, AUGMENTATION)], decoder="gpu")
