"""Videos and what a model finds nearest to them, as small pictures from the shards."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib import colormaps
from PIL import Image

from gdt.eval.retrieval import nearest, unit
from gdt.pipeline.shards.index import Index
from gdt.pipeline.shards.reader import ShardReader

_SIDE = 96
"""Pixels of the longer side of a picture on the page."""
_SOUND = 100
"""Log-mel rows of a spectrogram, one second."""


@dataclass(frozen=True)
class Thumbnail:
    """A video on the page."""

    picture: str
    """Data URI of a JPEG."""
    id: str
    label: str
    right: bool = False
    sound: str = ""
    """Data URI of its spectrogram, where it was asked with that."""


@dataclass(frozen=True)
class Query:
    """A video, and what was found nearest to it, nearest first."""

    asked: Thumbnail
    found: tuple[Thumbnail, ...]
    missed: int = 0
    """The place at which its own came, from 1, where that is asked for and is not among those shown."""


class Pictures:
    """Thumbnails of the videos of an index."""

    def __init__(self, index: Index) -> None:
        self._index, self._reader = index, ShardReader(index)

    def thumbnail(self, video: int, right: bool = False, with_sound: bool = False) -> Thumbnail:
        """The middle frame of a video, row of the index, and a second of sound from there. UserError if damaged."""
        index = self._index
        (jpeg,) = self._reader.frames(video, np.array([int(index.frame_count[video]) // 2]))
        with Image.open(io.BytesIO(jpeg.tobytes())) as image:
            picture = image.convert("RGB")
        picture.thumbnail((_SIDE, _SIDE))
        sound = self._spectrogram(video) if with_sound else ""
        return Thumbnail(jpeg_uri(picture), str(index.id[video]), str(index.label[video]), right, sound)

    def _spectrogram(self, video: int) -> str:
        count = int(self._index.mel_count[video])
        rows = min(_SOUND, count)
        bank = self._reader.logmel(video, min(count // 2, count - rows), rows).T[::-1]
        statistics = self._index.statistics
        shade = np.clip(((bank - statistics.mel_mean) / statistics.mel_std + 3) / 6, 0, 1)
        image = Image.fromarray((colormaps["magma"](shade)[..., :3] * 255).astype(np.uint8))
        return jpeg_uri(image.resize((_SOUND, 2 * len(bank))))


def jpeg_uri(image: Image.Image, quality: int = 72) -> str:
    """A picture as a data URI."""
    data = io.BytesIO()
    image.save(data, "JPEG", quality=quality, optimize=True)
    return "data:image/jpeg;base64," + base64.b64encode(data.getvalue()).decode()


def by_class(
    pictures: Pictures, queries: np.ndarray, gallery: np.ndarray, labels: tuple[np.ndarray, np.ndarray],
    neighbours: np.ndarray, shown: Sequence[int],
) -> list[Query]:  # fmt: skip
    """Some queries with their neighbours, right where these are of the same class.

    `queries` and `gallery` are rows of the index, and `labels` of both; `neighbours` are places in the gallery, int64
    [queries, k], nearest first; `shown` are places among the queries.
    """
    query_label, gallery_label = labels
    return [
        Query(
            pictures.thumbnail(int(queries[q])),
            tuple(pictures.thumbnail(int(gallery[g]), bool(gallery_label[g] == query_label[q])) for g in neighbours[q]),
        )
        for q in shown
    ]


def by_sound(
    pictures: Pictures, videos: np.ndarray, sound: np.ndarray, picture: np.ndarray, k: int, shown: Sequence[int]
) -> list[Query]:
    """Videos asked with their sound, and the k videos whose pictures are nearest; right is their own.

    `videos` are rows of the index, `sound` and `picture` their embeddings [n, d].
    """
    found = nearest(sound[list(shown)], picture, k)
    similarity = unit(sound[list(shown)]) @ unit(picture).T
    queries = []
    for q, row, near in zip(shown, similarity, found, strict=True):
        place = int((row >= row[q]).sum())
        queries.append(
            Query(
                pictures.thumbnail(int(videos[q]), with_sound=True),
                tuple(pictures.thumbnail(int(videos[g]), bool(g == q)) for g in near),
                0 if q in near else place,
            )
        )
    return queries


def spread(labels: np.ndarray, n: int, seed: int) -> list[int]:
    """Places of n queries, drawn once, of different classes as far as there are so many."""
    order = np.random.Generator(np.random.Philox(seed)).permutation(len(labels))
    seen: dict[str, int] = {}
    turn: list[tuple[int, int, int]] = []
    for place in order.tolist():
        label = str(labels[place])
        turn.append((seen.get(label, 0), len(turn), place))
        seen[label] = seen.get(label, 0) + 1
    return [place for _, _, place in sorted(turn)[:n]]
