"""Named compositions: the rows of the paper's tables 1 and 2, and special cases."""

from __future__ import annotations

from typing import NamedTuple

from gdt.common.errors import unknown


class Preset(NamedTuple):
    label: str
    """Label in tables and plots."""
    factors: str
    """In the notation of pipeline/notation.py."""


def _row(roles: str) -> Preset:
    """A row from the roles of time reversal and time shift (distinctive, invariant, . not varied) and the modalities.

    Video-only rows use K_g = 2 augmentations; the others pair modalities.
    """
    reversal = roles[0]
    shift = roles[1]
    letters = roles[2:]
    names = [_MODALITIES[letter] for letter in letters]
    modality = "modality" if letters in ("V", "VA") else f"modality({','.join(names)})"
    modality += f":i:{len(letters)}:differs" if len(letters) > 1 else ":i:1"
    views = 1 if len(letters) > 1 else 2
    ts, tr = ("i:1" if role == "." else f"{role}:2" for role in (shift, reversal))
    factors = f"video:d time_shift:{ts} {modality} time_reversal:{tr} augmentation:i:{views}"
    varied = [f"{what} {role}" for what, role in (("shift", shift), ("reversal", reversal)) if role != "."]
    return Preset(", ".join(["-".join(names), *varied]), factors)


_MODALITIES = {"V": "video", "A": "audio", "T": "text"}
_TABLE_1 = "a=..V b=i.V c=.iV d=iiV e=..VA f=i.VA g=.iVA h=iiVA i=d.VA j=.dVA k=diVA l=idVA m=ddVA"
_TABLE_2 = "a=..V b=..VT c=d.VT d=.dVT e=diVT f=idVT g=ddVT"
TABLE_1 = {row: _row(roles) for row, roles in (entry.split("=") for entry in _TABLE_1.split())}
TABLE_2 = {f"text-{row}": _row(roles) for row, roles in (entry.split("=") for entry in _TABLE_2.split())}
PRESETS = {
    **TABLE_1,
    **TABLE_2,
    "within-modal": TABLE_1["d"],
    "cross-modal": TABLE_1["e"],
    "three": _row("idVAT"),
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
