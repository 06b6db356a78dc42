"""Where a result comes from."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path


def git_commit(file: Path = Path(__file__)) -> str:
    """The commit of the checkout in which a file is tracked, with `-dirty` where tracked files differ from it.

    Empty where it is in none, or git is not there or does not answer.
    """
    elsewhere = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE")  # of a repository that the caller may be about
    environment = {name: value for name, value in os.environ.items() if name not in elsewhere}

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", "--no-optional-locks", *arguments], cwd=file.resolve().parent, env=environment, check=True,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, timeout=30,
        ).stdout.strip()  # fmt: skip

    try:
        git("ls-files", "--error-unmatch", file.name)  # or it was installed into the folder of another project
        return git("describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")
    except (OSError, subprocess.SubprocessError):
        return ""
