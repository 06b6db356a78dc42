"""Names of data sets, the usual folders of their shards, and the commands that make and check these."""

import re
from pathlib import Path

from gdt.common.commandline import gdt_command
from gdt.common.errors import UserError
from gdt.common.folders import Folder

DATASET_NAMES = ("audioset", "esc50", "folder", "hmdb51", "howto100m", "kinetics", "synthetic", "ucf101", "vggsound")
"""Data sets of preprocess/datasets."""


def dataset_name(dataset: str, shards: Folder | Path | None) -> str:
    """The name of a data set: by default that of the folder of its shards, else kinetics.

    Raises UserError if it is not that of one folder: it becomes part of paths, and may come from a downloaded file.
    """
    name = dataset or (Folder(shards).name if shards else "kinetics")
    if Path(name).name != name or name == ".." or not name.isprintable():
        raise UserError(f"--dataset is {name!r}; give a name without slashes and control characters")
    return name


def shard_folder(dataset: str, named: Folder | Path | None = None) -> Folder:
    """Folder of a data set's shards: `named` if given, else the default."""
    return Folder(named or Path("data/shards") / dataset)


def shard_name(number: int) -> str:
    return f"shard-{number:06d}.h5"


def is_shard(name: str, or_partial: bool = False) -> bool:
    """Whether a file is a shard, or maybe one that is being written; people may have other files beside them."""
    pattern = r"shard-\d{6,}\.h5" + r"(\.\d+\.partial)?" * or_partial
    return re.fullmatch(pattern, name) is not None


def verify_hint(folder: Folder) -> str:
    """How to find and rebuild the damaged files of a folder."""
    command = gdt_command("verify", "--shards", folder, "--remove")
    return f"remove damaged shards with `{command}`, then run the same preprocessing command again to rebuild them"
