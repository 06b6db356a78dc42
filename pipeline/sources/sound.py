"""Log-mel rows -> made louder, normalised, masked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from pipeline.graphs import AUDIO_CLIPS, Pipeline, audio_graph
from pipeline.leaves import Leaves
from pipeline.sources.base import InputSource, Memory, Part, chunks


class SoundSource(InputSource):
    """float32 [n, 1, bands, mel_frames]; of a damaged clip, average sound."""

    modality = "audio"
    _graph: Pipeline | None = None

    def parts(self, batches: Iterator[Leaves], memory: Callable[[], Memory]) -> Iterator[Part]:
        if self._graph is None:
            self._graph = self.pipeline(audio_graph, AUDIO_CLIPS)
        for leaves in batches:
            n = len(leaves)
            out = memory().get(self.modality, (n, self.index.bands, self.clip.mel_frames))
            runs = chunks(n, AUDIO_CLIPS)
            part = Part(out[:, None], np.ones(n, bool), [])
            feed = (self._feed(leaves.take(run), run, part) for run in runs)
            for run, (bank,) in zip(runs, self._graph.run(feed), strict=True):
                out[run].copy_(bank)
            yield part

    def _feed(self, leaves: Leaves, run: slice, part: Part) -> dict[str, Any]:
        """Inputs of one DALI run."""
        first = self.index.mel_position(leaves.start)[:, None]
        read, part.usable[run], damaged = self.readings.read(
            leaves.video, self._read, self._average, first + leaves.mel_frames
        )
        part.damaged.extend(damaged)
        statistics, draws = self.index.statistics, leaves.draws
        masks = {
            f"{axis}_{name}": draws[f"{axis}_{name}"][:, None]
            for axis in ("frequency", "time")
            for name in ("start", "width")
        }
        return masks | {
            "rows": read,
            # a gain a on the waveform is 2 ln a on the log power, exactly
            "gain": (2 * np.log(draws["volume"])).astype(np.float32),
            "mean": np.full(len(leaves), statistics.mel_mean, np.float32),
            "scale": np.full(len(leaves), 1 / statistics.mel_std, np.float32),
        }

    def _read(self, video: int, rows: np.ndarray) -> np.ndarray:
        first, last = int(rows.min()), int(rows.max())
        return self.readings.reader.logmel(video, first, last - first + 1)[rows - first]

    def _average(self, video: int) -> np.ndarray:
        return np.full((self.clip.mel_frames, self.index.bands), self.index.statistics.mel_mean, np.float32)
