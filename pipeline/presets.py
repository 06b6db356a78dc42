"""Named compositions: the rows of the paper's table 1, its hypotheses, and what it calls special cases.

A new one is a new entry here, not a branch elsewhere.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from pipeline.composition import Composition
from pipeline.errors import UserError
from pipeline.notation import parse
from pipeline.transformations.augmentation import Augmentation

Role = Literal["d", "i", "."]


class Preset(NamedTuple):
    """A composition with a name."""

    label: str
    """In few words, for tables and plots."""
    source: str
    """Where it comes from."""
    factors: str
    """As pipeline/notation.py reads it."""


def _table_1(row: str, reversal: Role, shift: Role, modalities: Literal["V", "AV"]) -> Preset:
    """A row by the roles of time reversal and time shift (distinctive, invariant, not varied) and its modalities.

    Rows a-d (video alone) draw K_g = 2 augmentations, rows e-m pair the modalities.
    """
    factors = [
        "video:d", _varied("time_shift", shift), "modality:i:2:differs" if modalities == "AV" else "modality:i:1",
        _varied("time_reversal", reversal), f"augmentation:i:{1 if modalities == 'AV' else 2}",
    ]  # fmt: skip
    return Preset(f"{modalities}, TR {reversal}, TS {shift}", f"table 1, row {row}", " ".join(factors))


def _varied(name: str, role: Role) -> str:
    return f"{name}:i:1" if role == "." else f"{name}:{role}:2"


_ROWS: dict[str, tuple[Role, Role, Literal["V", "AV"]]] = {
    "a": (".", ".", "V"), "b": ("i", ".", "V"), "c": (".", "i", "V"), "d": ("i", "i", "V"),
    "e": (".", ".", "AV"), "f": ("i", ".", "AV"), "g": (".", "i", "AV"), "h": ("i", "i", "AV"),
    "i": ("d", ".", "AV"), "j": (".", "d", "AV"), "k": ("d", "i", "AV"), "l": ("i", "d", "AV"),
    "m": ("d", "d", "AV"),
}  # fmt: skip
TABLE_1 = {row: _table_1(row, *roles) for row, roles in _ROWS.items()}
HYPOTHESES = dict(zip("123456789", "eifjgmlkh", strict=True))
"""Numbers of the published release's hypotheses -> rows of table 1."""
PRESETS = {
    **TABLE_1,
    **{
        number: TABLE_1[row]._replace(source=f"hypothesis {number} of the published release, row {row}")
        for number, row in HYPOTHESES.items()
    },
    "simclr": Preset(
        "V, two augmentations of one clip", "SimCLR, the paper's section 3.1", "video:d time_shift:i:1 augmentation:i:2"
    ),
    "avid": Preset(
        "AV, instance discrimination",
        "cross-modal AVID, with the batch in place of a memory bank",
        "video:d time_shift:i:1 modality:i:2:differs augmentation:i:1",
    ),
    "arrow": Preset(
        "V, TR d",
        "arrow of time: reversal alone as what to tell apart",
        "video:d time_shift:i:1 time_reversal:d:2 augmentation:i:2",
    ),
}  # fmt: skip


def preset(name: str) -> Preset:
    """A preset by its name. Raises UserError for another name."""
    if name not in PRESETS:
        raise UserError(
            f"there is no preset '{name}'; choose one of {', '.join(PRESETS)} (--preset help tells of them)"
        )
    return PRESETS[name]


def composition(name: str, videos_per_batch: int, augmentation: Augmentation = Augmentation()) -> Composition:
    """The composition of a preset. Raises UserError for another name."""
    return parse(preset(name).factors, videos_per_batch, augmentation)


def listing() -> str:
    """Every preset with its factors and its source."""
    return "\n".join(f"{name:7} {entry.label:32} {entry.factors:88} {entry.source}" for name, entry in PRESETS.items())
