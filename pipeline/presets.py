"""Named compositions: the rows of the paper's tables 1 and 2, and special cases."""

from typing import NamedTuple

from gdt.common.errors import unknown


class Preset(NamedTuple):
    label: str
    """Label in tables and plots."""
    factors: str
    """In the notation of pipeline/notation.py."""


def _row(modalities: str, shift: str = "", reversal: str = "") -> Preset:
    """A row from its modalities and the roles of time shift and time reversal: d, i, or empty if they are not varied.

    Video-only rows use K_g = 2 augmentations; the others pair modalities.
    """
    names = modalities.split("-")
    modality = "modality" if modalities in ("video", "video-audio") else f"modality({','.join(names)})"
    modality += f":i:{len(names)}:differs" if len(names) > 1 else ":i:1"
    views = 1 if len(names) > 1 else 2
    ts, tr = (f"{role}:2" if role else "i:1" for role in (shift, reversal))
    factors = f"video:d time_shift:{ts} {modality} time_reversal:{tr} augmentation:i:{views}"
    varied = [f"{what} {role}" for what, role in (("shift", shift), ("reversal", reversal)) if role]
    return Preset(", ".join([modalities, *varied]), factors)


TABLE_1 = {
    "a": _row("video"),
    "b": _row("video", reversal="i"),
    "c": _row("video", shift="i"),
    "d": _row("video", shift="i", reversal="i"),
    "e": _row("video-audio"),
    "f": _row("video-audio", reversal="i"),
    "g": _row("video-audio", shift="i"),
    "h": _row("video-audio", shift="i", reversal="i"),
    "i": _row("video-audio", reversal="d"),
    "j": _row("video-audio", shift="d"),
    "k": _row("video-audio", shift="i", reversal="d"),
    "l": _row("video-audio", shift="d", reversal="i"),
    "m": _row("video-audio", shift="d", reversal="d"),
}
TABLE_2 = {
    "text-a": _row("video"),
    "text-b": _row("video-text"),
    "text-c": _row("video-text", reversal="d"),
    "text-d": _row("video-text", shift="d"),
    "text-e": _row("video-text", shift="i", reversal="d"),
    "text-f": _row("video-text", shift="d", reversal="i"),
    "text-g": _row("video-text", shift="d", reversal="d"),
}
PRESETS = {
    **TABLE_1,
    **TABLE_2,
    "within-modal": TABLE_1["d"],
    "cross-modal": TABLE_1["e"],
    "three": _row("video-audio-text", shift="d", reversal="i"),
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
