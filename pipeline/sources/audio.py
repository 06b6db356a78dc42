"""Log-mel rows -> amplified, normalised, masked."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gdt.pipeline.leaves import Leaves
from gdt.pipeline.sources.base import InputSource, Memory, Part, Reading, ahead, chunks

if TYPE_CHECKING:  # DALI is imported only where it is used
    from gdt.pipeline.graphs import Pipeline

_CLIPS = 1024
"""Maximum clips of a run."""


@dataclass(frozen=True)
class _Work:
    """Some audio leaves of a batch."""

    leaves: Leaves
    reading: Reading[np.ndarray]
    run: slice
    """Their slice of the batch."""
    total: int
    """Audio leaves of the batch."""


class AudioSource(InputSource):
    """float32 [n, 1, bands, mel_frames]; a damaged clip is replaced by the mean log-mel value."""

    modality = "audio"
    _graph: Pipeline | None = None

    def parts(self, batches: Iterator[Leaves], memory: Callable[[], Memory]) -> Iterator[Part]:
        from gdt.pipeline.graphs import Pipeline, audio_graph

        if self._graph is None:
            values = self.device.dali, self.index.statistics.mel_mean, 1 / self.index.statistics.mel_std
            self._graph = Pipeline(self.device, self.loading.threads, audio_graph, _CLIPS, *values)
        fed: deque[tuple[_Work, np.ndarray, list[str]]] = deque()
        works = ahead(self._works(batches), self.loading.read_ahead, lambda work: len(work.leaves))
        usable, damaged = [], []
        for (bank,) in self._graph.run(self._feed(works, fed)):
            work, intact, names = fed.popleft()
            out = memory().get(self.modality, (work.total, self.index.bands, self.clip.mel_frames))
            out[work.run].copy_(bank)
            usable.append(intact)
            damaged.extend(names)
            if work.run.stop == work.total:
                yield Part(out[:, None], np.concatenate(usable), damaged)
                usable, damaged = [], []

    def close(self) -> None:
        super().close()
        self._graph = None

    def _works(self, batches: Iterator[Leaves]) -> Iterator[_Work]:
        for batch in batches:
            rows = self.index.mel_position(batch.start)[:, None] + batch.mel_frames
            for run in chunks(len(batch), _CLIPS):
                reading = self.begin(batch.video[run], self._read, self._average, rows[run])
                yield _Work(batch.take(run), reading, run, len(batch))

    def _feed(
        self, works: Iterable[_Work], fed: deque[tuple[_Work, np.ndarray, list[str]]]
    ) -> Iterator[dict[str, Any]]:
        """Inputs of every DALI run."""
        for work in works:
            read, intact, damaged = work.reading.result()
            fed.append((work, intact, damaged))
            draws = work.leaves.draws
            gain = 2 * np.log(draws["volume"])  # a gain a on the waveform is 2 ln a on the log power, exactly
            masks = {name: draw[:, None] for name, draw in draws.items() if name.startswith(("frequency_", "time_"))}
            yield {"rows": read, "gain": gain.astype(np.float32), **masks}

    def _read(self, video: int, rows: np.ndarray) -> np.ndarray:
        first, last = int(rows.min()), int(rows.max())
        return self.reader.logmel(video, first, last - first + 1)[rows - first]

    def _average(self, video: int) -> np.ndarray:
        return np.full((self.clip.mel_frames, self.index.bands), self.index.statistics.mel_mean, np.float32)
