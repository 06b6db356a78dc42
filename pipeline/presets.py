"""Named compositions: the rows of the paper's tables 1 and 2, and special cases."""

from __future__ import annotations

from typing import Literal, NamedTuple

from gdt.common.errors import unknown

Role = Literal["d", "i", "."]


class Preset(NamedTuple):
    """A named composition."""

    label: str
    """Label in tables and plots."""
    factors: str
    """In the notation of pipeline/notation.py."""


def _row(role: tuple[Role, Role, str]) -> Preset:
    """A row from the roles of time reversal and time shift (distinctive, invariant, not varied) and the modalities.

    Video-only rows use K_g = 2 augmentations; the others pair modalities.
    """
    reversal, shift, modalities = role
    names = ",".join(_MODALITIES[letter] for letter in modalities)
    name = "modality" if modalities in ("V", "VA") else f"modality({names})"
    modality, views = (f"{name}:i:{len(modalities)}:differs", 1) if len(modalities) > 1 else (f"{name}:i:1", 2)
    ts, tr = ("i:1" if contrast == "." else f"{contrast}:2" for contrast in (shift, reversal))
    factors = f"video:d time_shift:{ts} {modality} time_reversal:{tr} augmentation:i:{views}"
    varied = [f"{what} {contrast}" for what, contrast in (("shift", shift), ("reversal", reversal)) if contrast != "."]
    return Preset(", ".join(["-".join(_MODALITIES[letter] for letter in modalities), *varied]), factors)


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
TABLE_1 = {row: _row(roles) for row, roles in _TABLE_1.items()}
TABLE_2 = {f"text-{row}": _row(roles) for row, roles in _TABLE_2.items()}
PRESETS = {
    **TABLE_1,
    **TABLE_2,
    "within-modal": TABLE_1["d"],
    "cross-modal": TABLE_1["e"],
    "three": _row(("i", "d", "VAT")),
    # section 3.1
    "simclr": Preset("video, two augmentations of one clip", "video:d time_shift:i:1 augmentation:i:2"),
    # cross-modal AVID without its memory bank
    "avid": Preset(
        "video-audio, instance discrimination", "video:d time_shift:i:1 modality:i:2:differs augmentation:i:1"
    ),
    # like MIL-NCE: two moments of a video are positives
    "mil-nce": Preset(
        "video-text, several positive moments",
        "video:d time_shift:i:2 modality(video,text):i:2:differs augmentation:i:1",
    ),
    # arrow of time: reversed clips are negatives
    "arrow": Preset("video, reversal d", "video:d time_shift:i:1 time_reversal:d:2 augmentation:i:2"),
}


def preset(name: str) -> Preset:
    """A preset by name. Raises UserError for an unknown one."""
    if name not in PRESETS:
        raise unknown("preset", name, PRESETS)
    return PRESETS[name]
