"""The generated data set, made where it is not there yet (see preprocess/synthetic for what it holds).

source/train/bounce/*.mp4, source/val/..., source/test/..., source/captions.json, source/synthetic.json
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from preprocess.datasets import folder
from preprocess.datasets.listing import Listing
from preprocess.synthetic import generate


def listing(source: Path) -> Listing:
    """Generate the default set into `source` unless a complete set is there; ids are file stems, as in captions."""
    if not (source / "synthetic.json").is_file():
        generate(source)
    found = folder.listing(source)
    return Listing([replace(video, id=video.path.stem) for video in found.videos])
