"""The decoding engines: CPU cores against DALI, and reading ahead."""

import threading
from dataclasses import replace

import numpy as np
import psutil
import pytest

from gdt.pipeline.clips import uniform_clips
from gdt.pipeline.leaves import Clip
from gdt.pipeline.loader import Loader
from gdt.pipeline.notation import parse
from gdt.pipeline.shards.index import Index
from gdt.pipeline.shards.reader import ShardReader
from gdt.pipeline.sources.loading import Loading
from gdt.pipeline.transformations.augmentation import Augmentation
from gdt.pipeline.tree import BatchPlan, sampling_tree
from tests.composed import composed, inputs_of
from tests.pipeline.test_loader import AUGMENTATION, CLIP, CPU, NO_COLOUR, tree

MORE = "video:d time_shift:d:2 speed(1,2,0.5):d:2 order:i:2 time_reversal:i:2 rotation:i:3 augmentation:i:1"


def compositions(index: Index) -> dict[str, list[BatchPlan]]:
    """Plans of all kinds that engines distinguish."""
    videos = np.array([3, 8, 20])
    short = replace(index, frame_count=np.minimum(index.frame_count, 10))  # they repeat their last frame
    whole = replace(NO_COLOUR, scale=(CLIP.size,) * 2, center_crop=True)
    more = sampling_tree(index, parse(MORE, 2, AUGMENTATION), CLIP, "train", 0)
    return {
        "e": [tree(index, "e").plan(0, k) for k in range(3)],
        "l": [tree(index, "l").plan(0, k) for k in range(3)],
        "more": [more.plan(0, 0)],
        "whole frames": [uniform_clips(which, videos, 2, CLIP, whole) for which in (index, short, index)],
    }


@pytest.mark.parametrize("name", ["e", "l", "more", "whole frames"])
def test_cores_and_dali_make_the_same_crops_within_one_grey_level(index: Index, name: str) -> None:
    plans = compositions(index)[name]
    crops = []
    for decoder in ("cpu", "gpu"):
        loading = Loading(decoder=decoder, decode_batch_size=4)  # type: ignore[arg-type]
        with Loader(index, plans, inputs_of(index, CLIP), CPU, loading) as loader:
            crops.append([batch.inputs["video"].crops.numpy().astype(int) for batch in loader])
    for cores, dali in zip(*crops, strict=True):
        difference = np.abs(cores - dali)
        # ties of rounding, which are frequent if whole frames are resized
        assert difference.max() <= 1 and difference.mean() < (0.02 if name == "whole frames" else 1e-3)


def test_reading_ahead_spans_batches_up_to_its_limit(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first reads wait until those of three batches have begun."""
    began, enough, read = [], threading.Event(), ShardReader.frames

    def slow(self: ShardReader, video: int, positions: np.ndarray) -> list[np.ndarray]:
        began.append(video)
        if len(began) == 15:
            enough.set()
        enough.wait()
        return read(self, video, positions)

    monkeypatch.setattr(ShardReader, "frames", slow)
    planned = tree(index, "e")
    loading = Loading(readers=32, read_ahead=12, prefetch=1)
    with Loader(index, planned.plans(0, 40), inputs_of(index, CLIP), CPU, loading) as loader:
        batches = iter(loader)
        next(batches)
        for taken in range(2, 12):
            next(batches)
            # batches of five: taken, waiting and in preparation, and the clips read ahead with their run
            assert len(began) <= 5 * (taken + 3) + 12 + 5


def test_memory_is_flat_over_a_thousand_batches(index: Index) -> None:
    clip, process = Clip(frames=2, size=16, mel_frames=9), psutil.Process()
    composition = composed("e", 2, Augmentation(scale=(44, 60)))
    planned, memory = sampling_tree(index, composition, clip, "train", 0), []
    with Loader(index, planned.plans(0, 1201), inputs_of(index, clip), CPU) as loader:
        for number, batch in enumerate(loader):
            batch.inputs["video"].floats()
            if number in (200, 1200):
                memory.append(process.memory_info().rss)
    assert memory[1] - memory[0] < 8 << 20
