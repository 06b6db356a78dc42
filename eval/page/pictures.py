"""Pictures of videos in motion, for features are of motion, which a still does not show; and of sounds."""

import io

import numpy as np
from matplotlib import colormaps
from PIL import Image

from gdt.eval.drawing import data_uri
from gdt.pipeline.shards.layout import MEL_RATE
from gdt.pipeline.shards.reader import ShardReader
from gdt.pipeline.shards.statistics import Statistics

_FRAMES = 16
RATE = 10
SECONDS = _FRAMES / RATE
"""Most frames of a picture, frames per second, and how long that is."""
_SIZE = (200, 112)
"""Largest width and height of a picture, pixels."""
_ROWS = 500
"""Most log-mel rows of a sound that are shown."""


def picture_of(reader: ShardReader, video: int, start: float | None = None) -> str:
    """A video of the reader's index in motion, a sound as its spectrogram, for the `src` of an image.

    From the second `start` on; by default the middle of a video, and the begin of a sound.

    Raises UserError if a shard is damaged.
    """
    index = reader.index
    if index.frame_count[video]:
        return _moving(reader, video, start)
    begin = int((start or 0.0) * MEL_RATE)
    rows = min(int(index.mel_count[video]) - begin, _ROWS)
    return _spectrogram(reader.logmel(video, begin, rows), index.statistics)


def _moving(reader: ShardReader, video: int, start: float | None) -> str:
    """A part of a video as an animated picture."""
    index = reader.index
    count = int(index.frame_count[video])
    step = max(1, round(index.fps / RATE))
    last = max(0, count - _FRAMES * step)
    first = last // 2 if start is None else min(round(start * index.fps), last)
    pictures = []
    for jpeg in reader.frames(video, np.arange(first, count, step)[:_FRAMES]):
        picture = Image.open(io.BytesIO(jpeg.tobytes())).convert("RGB")
        picture.thumbnail(_SIZE)
        pictures.append(picture)
    file = io.BytesIO()
    milliseconds = round(1000 * step / index.fps)
    pictures[0].save(file, "webp", save_all=True, append_images=pictures[1:], duration=milliseconds, loop=0, quality=50)
    return data_uri(file.getvalue(), "webp")


def _spectrogram(logmel: np.ndarray, statistics: Statistics) -> str:
    """The picture of log-mel rows [n, bands], in time from left to right."""
    levels = 0.5 + (logmel.T[::-1] - statistics.mel_mean) / (6 * statistics.mel_std)
    colours = colormaps["magma"](levels.clip(0, 1), bytes=True)[..., :3]
    file = io.BytesIO()
    Image.fromarray(colours).resize((160, 120)).save(file, "png")
    return data_uri(file.getvalue(), "png")
