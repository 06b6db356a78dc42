"""Whether this machine's tools do what preprocessing needs: a known clip is decoded as videos are, and compared.

The clip (FFV1 and FLAC, BT.709) lasts 4 s. Its left quarter has COLOUR, its right half the luma 20 + 5 n in frame n, of
10 per second. Its sound begins at 1.25 s, and holds a tone of 0.02 s at 1.5 s. A second of it is cut out.
"""

import hashlib
import shutil
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import simplejpeg

from gdt.common.errors import UserError
from gdt.preprocess.decode import Extracted, extract_group
from gdt.preprocess.ffmpeg import Extraction, Target
from gdt.preprocess.logmel import SAMPLE_RATE
from gdt.preprocess.process import Limits, Rejected
from gdt.preprocess.videos import ListedVideo

CLIP = Path(__file__).with_name("probe.mkv")
VERSIONS = "5.1 to 9"
"""Versions of ffmpeg that pass the tests; later ones may."""
_INSTALL = "'apt-get install ffmpeg' or 'conda install -c conda-forge ffmpeg'"
COLOUR = (208, 32, 64)
_TOLERANCE = 5
"""Tolerance of colours, which codecs and scalers round."""
_working: dict[tuple[str | None, str | None, Limits], str] = {}
"""The version of each ffmpeg that has decoded the clip in this process."""


def require_tools(limits: Limits, folder: Path) -> str:
    """The version and build of ffmpeg. Raises UserError unless it decodes the clip, once per process."""
    key = (shutil.which("ffmpeg"), shutil.which("ffprobe"), limits)
    if key not in _working:
        for name, path in zip(("ffmpeg", "ffprobe"), key, strict=False):
            if path is None:
                raise UserError(f"{name} is not installed; install ffmpeg {VERSIONS} with {_INSTALL}")
        decode_known_clip(limits, folder)
        _working[key] = _version()
    return _working[key]


def decode_known_clip(limits: Limits, folder: Path) -> None:
    """Decode the clip within a folder. Raises UserError if that fails, or gives other frames or another sound."""
    with tempfile.TemporaryDirectory(prefix=".shard-probe-", dir=folder) as scratch:
        target = Target.within(Path(scratch) / "clip", ListedVideo(CLIP.name, CLIP, segment=(1.0, 2.0)), CLIP)
        fault = _fault(extract_group([target], Extraction(limits=limits))[0])
        if fault:
            raise UserError(
                f"ffmpeg {_version()} does not decode a test clip as it should ({fault}); "
                f"ffmpeg {VERSIONS} does, within the limits (--ffmpeg-memory, ulimit) and with space in {folder}: "
                f"mend that, or install another with {_INSTALL}, and run the same command again"
            )


def _fault(output: Extracted | Rejected) -> str:
    """What is wrong with the extracted second; empty if nothing is."""
    note = str(output) if isinstance(output, Rejected) else output.note
    if isinstance(output, Rejected) or note:
        return note.rstrip(".")
    ends = np.cumsum(output.sizes)
    data = output.jpeg.read_bytes()
    jpegs = [data[end - size : end] for end, size in zip(ends, output.sizes, strict=True)]
    frames = np.stack(list(map(simplejpeg.decode_jpeg, jpegs))).astype(float)
    deviation = frames[:, 4:-4, 2:6].mean((0, 1, 2)) - COLOUR
    if np.abs(deviation).max() > _TOLERANCE:
        return f"its colour is {(deviation + COLOUR).round().tolist()} instead of {list(COLOUR)}"
    luma = frames[:, 4:-4, 20:-4].mean((1, 2, 3)) * 219 / 255 + 16
    shown = ((luma - 20) / 5).round().astype(int).tolist()
    if shown != [10 + k // 3 for k in range(30)]:
        return f"its frames are {shown}"
    loud = np.flatnonzero(np.abs(output.waveform[:].astype(int)) > 3000) / SAMPLE_RATE
    if len(output.waveform) != SAMPLE_RATE or not len(loud) or np.abs(loud[[0, -1]] - [0.5, 0.52]).max() > 0.001:
        return f"{len(output.waveform)} samples of sound, with a tone from {loud[:1]} to {loud[-1:]} s"
    return ""


def _version() -> str:
    """Version and build of ffmpeg; builds of one version have different codecs."""
    printed = subprocess.run(["ffmpeg", "-version"], capture_output=True, text=True, check=False).stdout
    number = (printed.split() + ["unknown"] * 3)[2]  # "ffmpeg version 6.1 …"
    return f"{number} (build {hashlib.sha256(printed.encode()).hexdigest()[:8]})"
