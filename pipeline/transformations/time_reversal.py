"""r: forward or backward in time."""

import numpy as np

from gdt.pipeline.leaves import Leaves
from gdt.pipeline.transformations.base import Choice


class TimeReversal(Choice):
    """Direction of time of frames, spectrogram and words: forward or reversed."""

    name = "time_reversal"
    values = ("forward", "reversed")

    def act(self, leaves: Leaves, values: np.ndarray, rng: np.random.Generator) -> None:
        reverse = values == 1
        for positions in (leaves.frames, leaves.mel_frames, leaves.words):
            positions[reverse] = positions[reverse, ::-1]
