"""Named compositions: the rows of the paper's tables 1 and 2, its hypotheses, and what it calls special cases.

A new one is a new entry here, not a branch elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from gdt.common.errors import UserError
from gdt.pipeline.composition import Composition
from gdt.pipeline.notation import parse
from gdt.pipeline.transformations.augmentation import Augmentation

Role = Literal["d", "i", "."]


class Preset(NamedTuple):
    """A composition with a name."""

    label: str
    """In few words, for tables and plots."""
    source: str
    """Where it comes from."""
    factors: str
    """As pipeline/notation.py reads it."""


def _row(table: str, role: tuple[Role, Role, str]) -> Preset:
    """A row by the roles of time reversal and time shift (distinctive, invariant, not varied) and its modalities.

    Rows of video alone draw K_g = 2 augmentations, the others pair the modalities.
    """
    reversal, shift, modalities = role
    names = ",".join(_MODALITIES[letter] for letter in modalities)
    written = "modality" if modalities in ("V", "VA") else f"modality({names})"
    paired = f"{written}:i:{len(modalities)}:differs" if len(modalities) > 1 else f"{written}:i:1"
    factors = [
        "video:d", _varied("time_shift", shift), paired, _varied("time_reversal", reversal),
        f"augmentation:i:{1 if len(modalities) > 1 else 2}",
    ]  # fmt: skip
    label = {"VA": "AV"}.get(modalities, modalities)
    return Preset(f"{label}, TR {reversal}, TS {shift}", table, " ".join(factors))


def _varied(name: str, role: Role) -> str:
    return f"{name}:i:1" if role == "." else f"{name}:{role}:2"


_MODALITIES = {"V": "video", "A": "audio", "T": "text"}
_TABLE_1: dict[str, tuple[Role, Role, str]] = {
    "a": (".", ".", "V"), "b": ("i", ".", "V"), "c": (".", "i", "V"), "d": ("i", "i", "V"),
    "e": (".", ".", "VA"), "f": ("i", ".", "VA"), "g": (".", "i", "VA"), "h": ("i", "i", "VA"),
    "i": ("d", ".", "VA"), "j": (".", "d", "VA"), "k": ("d", "i", "VA"), "l": ("i", "d", "VA"),
    "m": ("d", "d", "VA"),
}  # fmt: skip
_TABLE_2: dict[str, tuple[Role, Role, str]] = {
    "a": (".", ".", "V"), "b": (".", ".", "VT"), "c": ("d", ".", "VT"), "d": (".", "d", "VT"),
    "e": ("d", "i", "VT"), "f": ("i", "d", "VT"), "g": ("d", "d", "VT"),
}  # fmt: skip
TABLE_1 = {row: _row(f"table 1, row {row}", roles) for row, roles in _TABLE_1.items()}
TABLE_2 = {f"text-{row}": _row(f"table 2, row {row}", roles) for row, roles in _TABLE_2.items()}
HYPOTHESES = dict(zip("123456789", "eifjgmlkh", strict=True))
"""Numbers of the published release's hypotheses -> rows of table 1."""
PRESETS = {
    **TABLE_1,
    **TABLE_2,
    **{
        number: TABLE_1[row]._replace(source=f"the published release's hypothesis {number}, row {row}")
        for number, row in HYPOTHESES.items()
    },
    "within-modal": TABLE_1["d"]._replace(source="appendix, within-modal, whose figures are those of table 1, row d"),
    "cross-modal": TABLE_1["e"]._replace(source="appendix, cross-modal, whose figures are those of table 1, row e"),
    "three": _row("picture, sound and words in one tree, every pair of two modalities", ("i", "d", "VAT")),
    "simclr": Preset(
        "V, two augmentations of one clip", "SimCLR, the paper's section 3.1", "video:d time_shift:i:1 augmentation:i:2"
    ),
    "avid": Preset(
        "AV, instance discrimination",
        "cross-modal AVID, with the batch in place of a memory bank",
        "video:d time_shift:i:1 modality:i:2:differs augmentation:i:1",
    ),
    "mil-nce": Preset(
        "VT, several moments match",
        "like MIL-NCE: words and pictures of several moments of a video are positives",
        "video:d time_shift:i:2 modality(video,text):i:2:differs augmentation:i:1",
    ),
    "arrow": Preset(
        "V, TR d",
        "arrow of time: reversal is told apart, and videos",
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


def composition(name: str, batch_size: int, augmentation: Augmentation = Augmentation()) -> Composition:
    """The composition of a preset. Raises UserError for another name."""
    return parse(preset(name).factors, batch_size, augmentation)


def modalities(name: str) -> Sequence[str]:
    """What a preset learns from. Raises UserError for another name."""
    return composition(name, batch_size=2).modalities


def listing() -> str:
    """Every preset with its factors and its source."""
    rows = [(name, entry.label, entry.factors, entry.source) for name, entry in PRESETS.items()]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return "\n".join("  ".join([*map(str.ljust, row[:3], widths), row[3]]) for row in rows)
