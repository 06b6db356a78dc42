"""Weights by name: published ones in the cache of torch.hub, and models in a hub (`train.hub`)."""

import hashlib
import sys
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from urllib.request import urlopen

from tqdm import tqdm

from gdt.common.errors import UserError, first_line
from gdt.common.files import locked, writing
from gdt.common.folders import local_path
from gdt.train import hub

_TIMEOUT = 60.0
"""Seconds without a byte after which a download has failed."""


@dataclass(frozen=True)
class Published:
    address: str
    algorithm: str
    digest: str
    """Digest of the file, or its beginning."""
    licence: str
    expects: str
    """Inputs of the networks."""


_RELEASE = "https://dl.fbaipublicfiles.com/GDT/gdt_{}.pth"
_TORCHVISION = "https://download.pytorch.org/models/r2plus1d_18-91a641e6.pth"
_NC = "CC BY-NC 4.0 (no commercial use)"
_SOUND = "30 frames at 30 fps, (x - 0.45) / 0.225, with 1 s of sound"
_WORDS = "30 frames at 16 fps, x from 0 to 1, with 20 words"
_FRAMES = "frames normalised as torchvision does"
PUBLISHED = {
    "gdt-k400": Published(_RELEASE.format("K400"), "sha1", "7f12c60670346b1aab15194eb44c341906e1bca6", _NC, _SOUND),
    "gdt-ht100m": Published(_RELEASE.format("HT100M"), "sha1", "a9a979c82e83b955794814923af736eb34e6f080", _NC, _WORDS),
    "gdt-ig65m": Published(_RELEASE.format("IG65M"), "sha1", "3dcee3af61691e1e7e47e4b115be6808f4ea8172", _NC, _SOUND),
    "r2plus1d_18": Published(_TORCHVISION, "sha256", "91a641e6", "BSD-3-Clause", _FRAMES),
}
"""By name. The SHA-1 of the GDT release are those that Brain-Score publishes; the release's README puts most of it
under CC BY-NC 4.0. torchvision names files after their SHA-256."""


def located(name: str) -> Path | None:
    """The file of weights by their path, or by a name in its cache: None if a model of a hub is not there.

    Otherwise it may be missing. A file that exists is meant, whatever its name.
    """
    return hub.in_cache(name) if hub.is_on_hub(name) else _local(name)


def _local(name: str) -> Path:
    path = local_path(name)
    if name not in PUBLISHED or path.exists():
        return path
    import torch

    return Path(torch.hub.get_dir(), "checkpoints", PUBLISHED[name].address.rpartition("/")[2])


def fetch(name: str) -> Path:
    """As `located`, with the file of a name downloaded if it is missing; of several processes, one downloads it.

    Raises UserError if that fails, or if the file is not the published one.
    """
    if hub.is_on_hub(name):
        return hub.fetch(name)
    file = _local(name)
    if file == local_path(name):
        return file
    published = PUBLISHED[name]
    if not file.is_file():
        with locked(file.parent, "set TORCH_HOME to another folder", wait=True):
            if not file.is_file():
                _download(name, published, file)
    if not _is_intact(file, published):
        raise UserError(f"{file} is not {published.address}: another {published.algorithm}; delete it and try again")
    return file


def _download(name: str, published: Published, file: Path) -> None:
    instead = f"download {published.address} elsewhere, and give its path instead of the name, or save it as {file}"
    print(f"{name}: {published.licence}; expects {published.expects}; cached in {file.parent}", file=sys.stderr)
    try:
        with urlopen(published.address, timeout=_TIMEOUT) as body, writing(file) as out:
            size = int(body.headers.get("Content-Length") or 0) or None
            with tqdm(total=size, unit="B", unit_scale=True, desc=name, mininterval=1.0) as bar:
                while block := body.read(1 << 20):
                    bar.update(out.write(block))
            out.flush()
            if not _is_intact(Path(out.name), published):
                wrong = f"incomplete or was changed: another {published.algorithm}"
                raise UserError(f"the download of {name} is {wrong}; try again, or {instead}")
    except (OSError, HTTPException) as error:
        raise UserError(f"cannot download {name} ({first_line(error)}); {instead}") from error


def _is_intact(file: Path, published: Published) -> bool:
    with file.open("rb") as content:
        return hashlib.file_digest(content, published.algorithm).hexdigest().startswith(published.digest)
