"""Models in a hub of Hugging Face, in the form that `gdt export --to` writes: hf://owner/name.

Of a repository, only the file with the weights is downloaded. It also holds the settings, and no code.
"""

import os
import re
from pathlib import Path

from gdt.common.errors import UserError, first_line

EXPORTED = "model.safetensors"
"""The weights in a folder of `gdt export --to`, and in a repository."""
_ADDRESS = re.compile(r"hf://(?P<repository>[\w.-]+/[\w.-]+)(?:@(?P<revision>[\w.-]+))?")
_DEFAULT_SITE = "https://huggingface.co"


def is_on_hub(name: str) -> bool:
    return name.startswith("hf://")


def in_cache(name: str) -> Path | None:
    """The weights of a model in the cache of the hub; None if they are not there."""
    try:
        import huggingface_hub
    except ImportError:
        return None
    repository, revision = _parsed(name)
    file = huggingface_hub.try_to_load_from_cache(repository, EXPORTED, revision=revision)
    return Path(file) if isinstance(file, str) else None


def fetch(name: str) -> Path:
    """The weights of a model in the cache of the hub, downloaded if they are missing or the hub has other ones.

    Raises UserError if the package is missing, the model cannot be had, or the name has another form.
    """
    try:
        import huggingface_hub
    except ImportError:
        raise UserError(f"{name} needs huggingface_hub; run pip install 'gdt-video[hub]'") from None
    repository, revision = _parsed(name)
    site = os.environ.get("HF_ENDPOINT", _DEFAULT_SITE).rstrip("/")
    try:
        return Path(huggingface_hub.hf_hub_download(repository, EXPORTED, revision=revision, endpoint=site))
    except Exception as error:  # those of the HTTP library, too
        cause = f"{type(error).__name__}: {first_line(error.__cause__ or error)}"
        raise UserError(
            f"cannot download {EXPORTED} of {repository} from {site} ({cause}); check the name, the revision and the "
            "network, and run 'hf auth login' for a gated or private model"
        ) from error


def _parsed(name: str) -> tuple[str, str | None]:
    """Repository and revision of a model. Raises UserError if the name has another form."""
    match = _ADDRESS.fullmatch(name)
    if match is None:
        raise UserError(f"{name} is not a model in a hub; write hf://owner/name or hf://owner/name@revision")
    return match["repository"], match["revision"]
