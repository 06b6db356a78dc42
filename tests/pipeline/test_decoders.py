"""The choice of a decoder, and the check that finds wrong pixels."""

from __future__ import annotations

import contextlib
import itertools
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gdt.common.errors import UserError
from gdt.pipeline import decoders
from gdt.pipeline.decoders import JPEG_ENGINE, KERNELS, check, choose, sample
from gdt.pipeline.device import Device
from gdt.pipeline.engines import CpuEngine, Crops, Run
from gdt.pipeline.graphs import Pipeline, video_graph
from gdt.pipeline.leaves import Clip
from gdt.pipeline.loader import Loader
from gdt.pipeline.shards.index import Index
from gdt.pipeline.sources.loading import Loading, cores
from tests.conftest import ROOT
from tests.pipeline.test_engines import gpu
from tests.pipeline.test_loader import CLIP, CPU, tree
from tests.train.test_fake_cuda import GPU, fake_cuda


class Broken(CpuEngine):
    """An engine whose crops `spoil` changes, given those of the previous batch."""

    spoil: Callable[[int, torch.Tensor, torch.Tensor], None]

    def fill(self, runs: Iterable[Run], crops: Crops) -> Iterator[None]:
        taken: list[torch.Tensor] = []

        def kept(leaves: int) -> torch.Tensor:
            taken.append(crops(leaves))
            return taken[-1]

        before = None
        for number, _ in enumerate(super().fill(runs, kept)):
            now = taken[-1].clone()
            if before is not None:
                self.spoil(number, taken[-1], before)
            before = now
            yield


def broken(spoil: Callable[[int, torch.Tensor, torch.Tensor], Any]) -> dict[str, str]:
    return {"make": type("Spoiled", (Broken,), {"spoil": staticmethod(spoil)})}


def previous(number: int, crops: torch.Tensor, before: torch.Tensor) -> None:
    crops.copy_(before)


def block(number: int, crops: torch.Tensor, before: torch.Tensor) -> None:
    if number % 5 == 0:
        crops[3, :, 40:48, 40:48] = before[3, :, 40:48, 40:48]


def rounding(number: int, crops: torch.Tensor, before: torch.Tensor) -> None:
    crops.copy_((crops.short() + torch.randint(-2, 3, crops.shape)).clamp(0, 255))


@pytest.mark.parametrize(("spoil", "wrong"), [(previous, 10), (block, 2), (rounding, 0)])
def test_wrong_pixels_are_found_and_rounding_is_not(index: Index, spoil: Any, wrong: int) -> None:
    jpegs = sample(index, Clip(frames=2), 6)
    (found,) = check(jpegs, CPU, 11, {"x": Loading()}, **broken(spoil)).values()
    assert found == (f"wrong pixels in {wrong} of 11 batches while the GPU is busy" if wrong else "")


def test_dalis_decoders_are_right_and_failures_are_named(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    jpegs, device = sample(index, CLIP, 3), gpu()[0]
    assert check(jpegs, device, 4) == {JPEG_ENGINE: "", KERNELS: ""}

    def failing(*arguments: Any) -> Any:
        raise RuntimeError("Error\nencountered:\nno driver\nmore")

    assert check(jpegs, device, 4, make=failing) == dict.fromkeys((JPEG_ENGINE, KERNELS), "it fails (no driver)")
    monkeypatch.delitem(sys.modules, "gdt.pipeline.graphs")
    monkeypatch.setitem(sys.modules, "nvidia.dali", None)
    (found,) = set(check(jpegs, device, 4).values())
    assert found.startswith("DALI cannot be imported (")


def test_work_is_queued_on_the_streams_of_training_and_loading(monkeypatch: pytest.MonkeyPatch) -> None:
    current, queued = ["training"], []

    @contextlib.contextmanager
    def stream(name: str) -> Iterator[None]:
        queued.append(name)
        yield

    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: current[0])
    monkeypatch.setattr(torch.cuda, "stream", stream)
    with fake_cuda():
        queue = decoders._queued_work(GPU)
        current[0] = "loader"
        queue()
    assert queued == ["training", "loader"]


def test_frames_of_damaged_videos_are_left_out(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    jpegs = sample(index, CLIP, 4)
    assert len(jpegs) == 4 * CLIP.frames and all(jpeg[:2].tobytes() == b"\xff\xd8" for jpeg in jpegs)
    good = decoders.ShardReader.frames

    def frames(self: Any, video: int, positions: np.ndarray) -> list[np.ndarray]:
        found = good(self, video, positions)
        if video == 0:
            raise decoders.DamagedVideo(video, "damaged")
        return [found[0][:100], *found[1:]]

    monkeypatch.setattr(decoders.ShardReader, "frames", frames)
    assert len(sample(index, CLIP, 4)) == 3 * (CLIP.frames - 1)
    monkeypatch.setattr(decoders.ShardReader, "frames", lambda *arguments: [])
    assert choose(index, CLIP, gpu()[0], Loading(decoder="gpu")).loading.decoder == "cpu"  # the run will say what fails


def test_seconds_of_a_clip_count_shared_decoding_once(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count()
    monkeypatch.setattr(decoders.time, "thread_time", lambda: float(next(clock)))
    jpegs = sample(index, CLIP, 2)
    for leaves, seconds in ((1, 2.0), (2, 1.5), (4, 1.25)):
        found = decoders.seconds_per_clip(jpegs, CLIP, leaves)
        assert found == pytest.approx(decoders._OVERHEAD * CLIP.frames * seconds)


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What `check` finds, by decoder; a machine of 9 cores where a clip takes 10 ms."""
    found = {JPEG_ENGINE: "", KERNELS: ""}
    monkeypatch.setattr(decoders, "check", lambda jpegs, device, decoders: {name: found[name] for name in decoders})
    monkeypatch.setattr(decoders, "_FAULTS", {})
    monkeypatch.setattr(decoders, "cores", lambda: 9)
    monkeypatch.setattr(decoders, "seconds_per_clip", lambda jpegs, clip, leaves: 0.01 / leaves)
    return found


@pytest.mark.parametrize(
    ("settings", "clips", "decoder", "why"),
    [
        ({}, 700, "cpu", "on the CPU: 700 clips/s need 7.0 cores, and each GPU has 8 for loading"),
        ({}, 900, KERNELS, "900 clips/s need 9.0 cores, and each GPU has 8 for loading"),
        ({"threads": 6}, 700, KERNELS, "700 clips/s need 7.0 cores, and each GPU has 6 for loading"),
        ({"jpeg_hardware": True}, 900, JPEG_ENGINE, "900 clips/s need 9.0 cores, and each GPU has 8 for loading"),
        ({"jpeg_hardware": True}, 700, "cpu", "on the CPU: 700 clips/s need 7.0 cores"),
        ({"decoder": "gpu"}, 1, KERNELS, "whose pixels match the CPU's"),
        ({"decoder": "cpu", "jpeg_hardware": True}, 1e6, "cpu", "on the CPU"),
    ],
)
def test_the_cores_decode_where_they_are_enough(
    index: Index, found: dict[str, str], settings: dict[str, Any], clips: float, decoder: str, why: str
) -> None:
    choice = choose(index, CLIP, gpu()[0], Loading(**{"threads": 9} | settings), clips)
    expected = ("gpu", decoder == JPEG_ENGINE) if decoder != "cpu" else ("cpu", False)
    assert (choice.loading.decoder, choice.loading.jpeg_hardware) == expected
    assert why in choice.why and (decoder == "cpu" or f"on {decoder}, whose pixels match" in choice.why)
    assert choose(index, CLIP, CPU, Loading(**settings), clips).loading == Loading(**settings)


def test_leaves_that_share_a_decoded_clip_need_fewer_cores(index: Index, found: dict[str, str]) -> None:
    for leaves, decoder in ((1, "gpu"), (2, "cpu")):
        assert choose(index, CLIP, gpu()[0], Loading(threads=9), 900, leaves).loading.decoder == decoder


def test_a_wrong_decoder_is_named_once_and_the_next_one_taken(
    index: Index, found: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    asked = Loading(decoder="gpu", jpeg_hardware=True)
    found[JPEG_ENGINE] = "wrong pixels in 34 of 50 batches while the GPU is busy"
    for _ in range(2):
        chosen = choose(index, CLIP, gpu()[0], asked).loading
        assert (chosen.decoder, chosen.jpeg_hardware) == ("gpu", False)
    warning = f"warning: {JPEG_ENGINE} (cpu) is not used: {found[JPEG_ENGINE]}\n"
    assert capsys.readouterr().err == warning
    decoders._FAULTS.clear()
    found[KERNELS] = "it fails (no driver)"
    choice = choose(index, CLIP, gpu()[0], asked)
    assert choice.loading.decoder == "cpu" and choice.why == "on the CPU, since the GPU's decoders fail"
    assert capsys.readouterr().err == warning + f"warning: {KERNELS} (cpu) is not used: {found[KERNELS]}\n"


def test_the_jpeg_engine_needs_known_versions(
    index: Index, found: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pinned = dict(re.findall(r"^([\w-]+)==([\d.]+)$", (ROOT / "constraints.txt").read_text(), re.M))
    assert all(pinned[package].startswith(f"{known}.") for package, known in decoders.KNOWN.items())
    version = {"nvidia-nvimgcodec-cu13": "0.9.1.2", "nvidia-nvjpeg": "13.30.1"}
    monkeypatch.setattr(metadata, "version", version.__getitem__)
    asked = Loading(decoder="gpu", jpeg_hardware=True)
    with pytest.raises(UserError, match="nvidia-nvjpeg has version 13.30.1, and only 13.3 is known to work; leave"):
        choose(index, CLIP, gpu()[0], asked)
    version["nvidia-nvjpeg"] = "13.3.9"
    assert choose(index, CLIP, gpu()[0], asked).loading.jpeg_hardware
    version["nvidia-nvjpeg"] = "12.0"
    assert choose(index, CLIP, gpu()[0], Loading(decoder="gpu")).loading.decoder == "gpu"


@pytest.mark.parametrize("chosen", ["cpu", "gpu"])
def test_a_loader_takes_the_decoder_that_is_chosen(index: Index, found: dict[str, str], chosen: str) -> None:
    loading = Loading(threads=1 if chosen == "gpu" else 9)
    with Loader(index, [tree(index, "e").plan(0, 0)], CLIP, gpu()[0], loading) as loader:
        assert len(list(loader)) == 1
        assert {source.loading.decoder for source in loader._sources.values()} == {chosen}


def test_no_graph_decodes_regions_of_an_image() -> None:
    """nvImageCodec 0.9 fails to decode them on GPUs (its issue 55)."""
    graph = Pipeline(Device(CPU), 1, video_graph, 2, 8, 2, "cpu", 0.0)._graph
    assert set(re.findall(rb"decoders__\w+", graph.serialize())) == {b"decoders__Image"}


def test_cores_are_those_of_the_control_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(12)))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    limits = tmp_path / "cpu.max"
    found = [cores(limits)]
    for text in ("max 100000", "850000 100000", "50000 100000"):
        limits.write_text(text)
        found.append(cores(limits))
    assert found == [6, 6, 4, 1]
