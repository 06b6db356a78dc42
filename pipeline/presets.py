"""The rows of the paper's table 1 as lists of factors; a new composition is a new row here, not a branch elsewhere."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np

from pipeline.errors import UserError
from pipeline.factors import (
    AUDIO,
    FORWARD,
    REVERSED,
    VIDEO,
    Choices,
    Continuum,
    Contrast,
    Factor,
    TimeShifts,
    Videos,
    Weight,
)

Role = Literal["d", "i", "."]


class Row(NamedTuple):
    """Roles of time reversal and time shift (distinctive, invariant, not varied) and the modalities of a row."""

    time_reversal: Role
    time_shift: Role
    modalities: Literal["V", "AV"]

    @property
    def uses_audio(self) -> bool:
        return self.modalities == "AV"


TABLE_1 = {
    "a": Row(".", ".", "V"), "b": Row("i", ".", "V"), "c": Row(".", "i", "V"), "d": Row("i", "i", "V"),
    "e": Row(".", ".", "AV"), "f": Row("i", ".", "AV"), "g": Row(".", "i", "AV"), "h": Row("i", "i", "AV"),
    "i": Row("d", ".", "AV"), "j": Row(".", "d", "AV"), "k": Row("d", "i", "AV"), "l": Row("i", "d", "AV"),
    "m": Row("d", "d", "AV"),
}  # fmt: skip


def row(name: str) -> Row:
    """The row of table 1 by its letter. Raises UserError for another name."""
    if name not in TABLE_1:
        raise UserError(
            f"there is no preset '{name}'; choose one of {', '.join(TABLE_1)} (rows of the paper's table 1)"
        )
    return TABLE_1[name]


def factors(name: str, videos: np.ndarray, starts: np.ndarray, videos_per_batch: int) -> tuple[Factor, ...]:
    """The factors (i, tau, m, r, g) of a row of table 1.

    `videos` [n] are the rows of the index to learn from, `starts` [n_index] the start frames each video offers,
    `videos_per_batch` is K_i. Rows a-d (video alone) draw K_g = 2 augmentations, rows e-m pair the modalities.
    """
    spec = row(name)
    shift_k, shift = _role(spec.time_shift)
    reversal_k, reversal = _role(spec.time_reversal)
    directions = (FORWARD, REVERSED) if reversal_k > 1 else (FORWARD,)
    modality = (
        Factor("modality", Choices((VIDEO, AUDIO)), 2, Contrast.INVARIANT, Weight.DIFFERS)
        if spec.uses_audio
        else Factor("modality", Choices((VIDEO,)), 1, Contrast.INVARIANT)
    )
    return (
        Factor("video", Videos(tuple(int(video) for video in videos)), videos_per_batch, Contrast.DISTINCTIVE),
        Factor("time_shift", TimeShifts(starts), shift_k, shift),
        modality,
        Factor("time_reversal", Choices(directions), reversal_k, reversal),
        Factor("augmentation", Continuum(), 1 if spec.uses_audio else 2, Contrast.INVARIANT),
    )


def clips_per_video(name: str) -> int:
    """Video leaves that a batch holds per video: the cost of a row, to compare rows at equal clips per step."""
    spec = row(name)
    return shifts_per_video(name) * _role(spec.time_reversal)[0] * (1 if spec.uses_audio else 2)


def shifts_per_video(name: str) -> int:
    """K_tau: clips that are decoded per video, each shared by the leaves below it."""
    return _role(row(name).time_shift)[0]


def _role(role: Role) -> tuple[int, Contrast]:
    return (1 if role == "." else 2), (Contrast.DISTINCTIVE if role == "d" else Contrast.INVARIANT)
