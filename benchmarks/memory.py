"""Peak memory of preprocessing a long video: of the worker and of its ffmpeg."""

from __future__ import annotations

import resource
import subprocess
from pathlib import Path

import tyro

from benchmarks.timing import Clock, in_turns, machine, peak, scratch, videos
from gdt.common.errors import exit_with_message
from gdt.pipeline.shards.layout import shard_rejected
from gdt.preprocess.datasets.listing import Video
from gdt.preprocess.ffmpeg import Extraction
from gdt.preprocess.plan import ShardTask
from gdt.preprocess.worker import make_shard


def long_video(folder: Path, hours: float) -> Path:
    """The generated 10 s video, repeated."""
    (short,) = videos(None, folder, count=1)
    path = folder / "long.mp4"
    subprocess.run(
        ["ffmpeg", "-v", "error", "-stream_loop", str(int(hours * 360) - 1), "-i", short, "-c", "copy", path],
        check=True,
    )  # fmt: skip
    return path


def measure(path: Path, shard: Path) -> dict[str, float]:
    """Preprocess one video into a shard in this process, as a worker does."""
    clock = Clock()
    make_shard(ShardTask(shard, [Video(path.name, path)], Extraction(), path.parent, content=""))
    if rejected := shard_rejected(shard):
        raise RuntimeError(rejected[0]["reason"])
    return {"seconds": clock.lap(), "worker": peak(), "its ffmpeg": peak(resource.RUSAGE_CHILDREN)}


def main(video: Path | None = None, hours: float = 2.0) -> None:
    """Measure the memory of preprocessing a long video.

    Args:
        video: The video; by default one is generated.
        hours: Length of the generated video.

    """
    with scratch() as name:
        folder = Path(name)
        path = video.absolute() if video else long_video(folder, hours)
        shard = folder / "shard-000000.h5"
        measured = in_turns(1, lambda: measure(path, shard))
        sizes = [f"{file.stat().st_size / 1e6:.0f} MB" for file in (path, shard)]
        print(f"{machine()}; {sizes[0]} of video to {sizes[1]} of shard")
    measured.show("seconds", "s")
    for name in ("worker", "its ffmpeg"):
        measured.show(name, "MiB")


if __name__ == "__main__":
    exit_with_message(lambda: tyro.cli(main, prog="python -m benchmarks.memory"))
