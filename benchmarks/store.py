"""Training from object storage against MosaicML streaming: share of waiting, bytes fetched, CPU time per video.

A local server holds the same JPEGs and log-mel rows as our shards and as MDS shards of that size. Both ways shuffle
within as many samples, have a cache of a third of the set, and decode a tenth of each video for a step that takes time
but no CPU time. The peer neither verifies checksums nor augments. Install it elsewhere, and set PYTHONPATH to there:
`pip install --no-deps --target peer mosaicml-streaming brotli catalogue cramjam python-snappy xxhash 'zstd<2'`.
"""

import importlib.util
import itertools
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import cv2
import numpy as np
import simplejpeg
import torch
import tyro
from torch.utils.data import DataLoader

from benchmarks.loader import cpu_seconds
from benchmarks.shared import PER_SHARD, draw, machine
from gdt.common.errors import exit_with_message
from gdt.pipeline.inputs import Inputs
from gdt.pipeline.leaves import Clip
from gdt.pipeline.loader import Loader
from gdt.pipeline.notation import parse
from gdt.pipeline.presets import preset
from gdt.pipeline.shards.index import Index
from gdt.pipeline.shards.reader import ShardReader
from gdt.pipeline.transformations.augmentation import Augmentation
from gdt.pipeline.tree import sampling_tree

OURS, PEER = "gdt", "streaming"
CLIP, BATCH, EPOCHS, WINDOWS, PACE = Clip(frames=5, mel_frames=16), 16, 2, 12, 200  # videos per second of the step


class Handler(SimpleHTTPRequestHandler):
    """A store that speaks enough S3 to read, and keeps no connection, which forked workers of the peer would share."""

    latency, bandwidth, free, sent, lock = 0.0, 0.0, 0.0, 0, threading.Lock()

    def end_headers(self) -> None:
        time.sleep(self.latency)
        self.send_header("ETag", '"any"')
        super().end_headers()

    def copyfile(self, source: Any, outputfile: Any) -> None:
        while data := source.read(1 << 18):
            with self.lock:
                Handler.free = max(self.free, time.perf_counter() - 0.01) + len(data) / self.bandwidth
                Handler.sent += len(data)
            time.sleep(max(0.0, self.free - time.perf_counter()))
            outputfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


def of_store(cache: str, bound: int, window: int) -> Iterator[object]:
    """Batches of our loader."""
    os.environ["GDT_CACHE"], index = cache, Index.open(f"s3://{OURS}", str(bound))
    tree = sampling_tree(index, parse(preset("e").factors, BATCH), CLIP, "train", 0, shuffle_shards=window)
    steps = 0, EPOCHS * tree.batches_per_epoch
    plans, coming = tree.plans(*steps), tree.videos(*steps)
    inputs = Inputs(CLIP, Augmentation(), index.statistics)
    with Loader(index, plans, inputs, torch.device("cpu"), coming=coming) as batches:
        yield from batches


def of_peer(cache: str, bound: int, window: int) -> Iterator[object]:
    """Batches of the peer."""

    class Videos(import_peer().StreamingDataset):  # type: ignore[misc]
        def __getitem__(self, at: int) -> tuple[np.ndarray, np.ndarray]:
            video = super().__getitem__(at)
            start = at % (len(video["ends"]) - CLIP.frames)
            bounds = itertools.pairwise(video["ends"][start:][: CLIP.frames + 1])
            frames = (simplejpeg.decode_jpeg(video["jpegs"][begin:end]) for begin, end in bounds)
            pixels = np.stack([cv2.resize(frame, (CLIP.size, CLIP.size)) for frame in frames])
            return pixels, video["rows"][start * 3 :][: CLIP.mel_frames].copy()

    options = {"shuffle_block_size": window * PER_SHARD, "predownload": window * PER_SHARD // 2}
    videos = Videos(remote=f"s3://{PEER}", local=cache, cache_limit=bound, batch_size=BATCH, shuffle=True, **options)
    loader = DataLoader[Any](videos, BATCH, num_workers=4, persistent_workers=True, multiprocessing_context="fork")
    return itertools.chain.from_iterable(loader for _ in range(EPOCHS))


def import_peer() -> Any:
    """The package without its parts for other data, which import torchvision and transformers."""
    parts = (f"streaming.{name}" for name in ("multimodal", "text", "vision"))
    unused = (f"transformers.{name}" for name in ("feature_extraction_utils", "tokenization_utils_base"))
    sys.modules.update((name, MagicMock()) for name in (*parts, *unused) if name not in sys.modules)
    return importlib.import_module("streaming")


def write_peer(index: Index, folder: Path) -> None:
    """Our shards as MDS shards of that size."""
    reader, columns = ShardReader(index), {"jpegs": "bytes", "ends": "ndarray", "rows": "ndarray"}
    with import_peer().MDSWriter(out=str(folder), columns=columns, size_limit=index.headers[0].size) as writer:
        for video, (count, rows) in enumerate(zip(index.frame_count, index.mel_count.tolist(), strict=True)):
            jpegs = reader.frames(video, np.arange(count))
            ends, sound = np.cumsum([0, *map(len, jpegs)]), reader.logmel(video, 0, rows)
            writer.write({"jpegs": np.concatenate(jpegs).tobytes(), "ends": ends, "rows": sound})


def consume(way: str, cache: str, bound: int, window: int) -> tuple[float, float]:
    """Share of waiting in percent, and milliseconds of CPU time per video."""
    videos, start, busy = EPOCHS * WINDOWS * window * PER_SHARD, time.perf_counter(), cpu_seconds()
    batches = (of_store if way == OURS else of_peer)(cache, bound, window)  # held, with its workers, to the end
    for _ in itertools.islice(batches, videos // BATCH):
        time.sleep(BATCH / PACE)
    return 100 - 100 * videos / PACE / (time.perf_counter() - start), 1000 * (cpu_seconds() - busy) / videos


def main(latencies: tuple[int, ...] = (10, 100), widths: tuple[int, ...] = (50, 200, 1000), window: int = 3) -> None:
    """Measure by ms before each answer and MB/s of all readers; `window` of 12 `window` shards are shuffled at once."""
    ways = [OURS, PEER] if importlib.util.find_spec("streaming") else [OURS]
    with tempfile.TemporaryDirectory() as name, ProcessPoolExecutor(1, get_context("spawn")) as pool:
        server = ThreadingHTTPServer(("127.0.0.1", 0), lambda *given: Handler(*given, directory=name))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        os.environ |= dict.fromkeys(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION"), "any")
        os.environ["AWS_ENDPOINT_URL"] = os.environ["S3_ENDPOINT_URL"] = f"http://127.0.0.1:{server.server_port}"
        index = draw(Path(name) / OURS, WINDOWS * window * PER_SHARD)
        bound = sum(header.size for header in index.headers) // 3
        if PEER in ways:
            pool.submit(write_peer, index, Path(name) / PEER).result()
        print(f"{machine()}; {len(index.headers)} shards, cache of {bound / 1e6:.0f} MB", flush=True)
        for count, (latency, width) in enumerate([(0, 10_000), *itertools.product(latencies, widths)]):
            found = []
            for way in ways:
                Handler.latency, Handler.bandwidth, Handler.sent = latency / 1000, 1e6 * width, 0
                waiting, busy = pool.submit(consume, way, f"{name}/{way}-{count}", bound, window).result()
                found.append(row := (waiting, Handler.sent / 1e6, busy))
                said = "{:.1f} % waiting, {:.0f} MB fetched, {:.2f} ms of CPU time per video".format(*row)
                print(f"{latency} ms, {width} MB/s, {way}: {said}" if count else "warmed up", flush=True)
            if count and PEER in ways:
                print("ratios: {:.2f}, {:.2f}, {:.2f}".format(*(a / b for a, b in zip(*found, strict=True))))


if __name__ == "__main__":
    exit_with_message(lambda: tyro.cli(main, prog="python -m benchmarks.store"))
