"""The rows of the paper's table 1 as compositions; a new one is a new row here, not a branch elsewhere."""

from __future__ import annotations

from typing import Literal, NamedTuple

from pipeline.composition import Composition
from pipeline.errors import UserError
from pipeline.factors import Contrast, Factor, Weight
from pipeline.transformations.augmentation import Augment, Augmentation
from pipeline.transformations.modality import Modality
from pipeline.transformations.time_reversal import TimeReversal
from pipeline.transformations.time_shift import TimeShift
from pipeline.transformations.video import Video

Role = Literal["d", "i", "."]


class Row(NamedTuple):
    """Roles of time reversal and time shift (distinctive, invariant, not varied) and the modalities of a row."""

    time_reversal: Role
    time_shift: Role
    modalities: Literal["V", "AV"]

    def __str__(self) -> str:
        return f"{self.modalities}, TR {self.time_reversal}, TS {self.time_shift}"


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


def composition(name: str, videos_per_batch: int, augmentation: Augmentation = Augmentation()) -> Composition:
    """The factors (i, tau, m, r, g) of a row of table 1.

    Rows a-d (video alone) draw K_g = 2 augmentations, rows e-m pair the modalities.
    """
    spec = row(name)
    shift_k, shift = _role(spec.time_shift)
    reversal_k, reversal = _role(spec.time_reversal)
    two = spec.modalities == "AV"
    return Composition((
        Factor(Video(), videos_per_batch, Contrast.DISTINCTIVE),
        Factor(TimeShift(), shift_k, shift),
        Factor(Modality(), 2 if two else 1, Contrast.INVARIANT, Weight.DIFFERS if two else Weight.ANY),
        Factor(TimeReversal(), reversal_k, reversal),
        Factor(Augment(augmentation), 1 if two else 2, Contrast.INVARIANT),
    ))  # fmt: skip


def _role(role: Role) -> tuple[int, Contrast]:
    return (1 if role == "." else 2), (Contrast.DISTINCTIVE if role == "d" else Contrast.INVARIANT)
