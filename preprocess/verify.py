"""gdt verify: check that every shard is as it was written."""

import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial

from tqdm import tqdm

from gdt.common.commandline import gdt_command
from gdt.common.errors import UserError
from gdt.common.folders import Folder
from gdt.common.machine import cores
from gdt.common.wording import plural
from gdt.pipeline.shards import container
from gdt.pipeline.shards.container import Damaged, OtherSchema
from gdt.pipeline.shards.index import require_index
from gdt.pipeline.shards.layout import INDEX
from gdt.pipeline.shards.naming import is_shard
from gdt.preprocess.settings import Verify

Finding = Damaged | OSError | UserError
"""What is wrong with a file."""


def verify(settings: Verify) -> dict[str, Finding]:
    """Check the shards, also those of an unfinished run, and the index; returns what is wrong, by name of the file.

    With --remove, no run can start during the check. Raises UserError if there are no shards.
    """
    folder = settings.shard_folder
    if not any(is_shard(name) or name == INDEX for name in folder.files()):
        require_index(folder)
    with folder.locked("leave out --remove") if settings.remove else nullcontext():
        present = {name for name in folder.files() if is_shard(name)}
        findings: dict[str, Finding] = {}
        lines: dict[str, bytes] = {}
        try:
            with folder.local(INDEX) as path:
                index, _ = container.read(path)
            lines = dict(zip(container.texts(index["shard/name"]), index["shard/line"], strict=True))
        except (Damaged, OSError, UserError) as error:
            findings[INDEX] = error
        names = sorted(present | lines.keys())
        with ThreadPoolExecutor(cores()) as pool:
            checked = tqdm(pool.map(partial(_check, folder, lines), names), "verify", len(names), unit="shard")
            findings |= {name: finding for name, finding in zip(names, checked, strict=True) if finding}
        for name, finding in findings.items():
            if settings.remove and is_damaged(finding):
                folder.remove(name)
    return findings


def is_damaged(finding: Finding) -> bool:
    """Whether --remove removes the file: not if it cannot be read or is of another version."""
    return isinstance(finding, Damaged) and not isinstance(finding, OtherSchema)


def _check(folder: Folder, lines: dict[str, bytes], name: str) -> Finding | None:
    """What is wrong with a shard, given the first lines of those in the index."""
    try:
        with folder.local(name) as path:
            header = container.check_shard(path)
    except (Damaged, OSError, UserError) as error:
        return error
    known = lines.get(name, header.line) == header.line
    return None if known else OtherSchema("it is not the shard that the index was made from")


def command(settings: Verify) -> str:
    """Verify, and print what is wrong. Raises UserError, with what to do, if anything is."""
    findings = verify(settings)
    folder = settings.shard_folder
    for name, finding in sorted(findings.items()):
        what = finding.strerror if isinstance(finding, OSError) else finding
        print(f"{folder.address(name)}: {what}", file=sys.stderr)
    if not findings:
        return f"every shard in {folder} is intact"
    removal = ""
    if any(map(is_damaged, findings.values())):
        remove = gdt_command("verify", "--shards", folder, "--remove")
        removal = "damaged ones were removed; " if settings.remove else f"remove damaged ones with `{remove}`; "
    raise UserError(
        f"something is wrong with {plural(len(findings), 'file')} in {folder}; {removal}"
        "the same preprocessing command as before rebuilds what is missing"
    )
