"""Files that change are decoded again, whatever their size and time; files that do not are never."""

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from gdt.common.errors import UserError
from gdt.pipeline.shards.index import Index
from gdt.pipeline.shards.reader import ShardReader
from gdt.preprocess import checks, stage
from gdt.preprocess.decode import extract_group
from gdt.preprocess.settings import Preprocess
from gdt.preprocess.stage import run
from tests.preprocess.test_stage import digests
from tests.sounds import tone
from tests.tamper import interrupted

LOW, HIGH = 300, 3000
NAMES = [f"{kind}/{k}.wav" for kind in "ab" for k in range(2)]


@pytest.fixture
def sounds(tmp_path: Path) -> Preprocess:
    """Sounds of equal size and time, as archives unpack them, in two shards: low ones in a, high ones in b."""
    root = tmp_path / "sounds"
    for name in NAMES:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        tone(root / name, LOW if name[0] == "a" else HIGH, seconds=1.2)
        os.utime(root / name, (1e9, 1e9))
    return Preprocess("folder", root, tmp_path / "shards", videos_per_shard=2)


def high(settings: Preprocess) -> set[str]:
    """The ids of the sounds that are high in the shards."""
    index = Index.open(settings.shard_folder.root)
    reader = ShardReader(index)
    levels = {str(index.id[row]): reader.logmel(row, 0, 100).mean(0) for row in range(len(index))}
    return {id for id, level in levels.items() if level[23] > level[4]}  # of about 3000 and 300 Hz


def swap(settings: Preprocess) -> None:
    """Swap a sound of a with one of b; their sizes and times of modification are the same."""
    first, second = (settings.source_folder.root / name for name in (NAMES[0], NAMES[2]))
    aside = first.with_suffix(".aside")
    first.rename(aside)
    second.rename(first)
    aside.rename(second)


SWAPPED = {NAMES[0], NAMES[3]}
NEVER = Mock(side_effect=AssertionError("a file was read"))


def test_a_file_replaced_by_one_of_the_same_size_and_time_is_decoded_again(sounds: Preprocess) -> None:
    run(sounds)
    assert high(sounds) == {NAMES[2], NAMES[3]}
    swap(sounds)
    assert stage.dry_run(sounds).endswith("0 with 0 videos are not made yet; 2 files of the others changed in time: "
                                          "their content will be compared")  # fmt: skip
    summary = run(sounds)
    assert (summary.shards_made, summary.decoded) == (2, 4) and high(sounds) == SWAPPED
    other = replace(sounds, destination=sounds.shard_folder.root.with_name("other"))
    run(other)
    assert digests(other.shard_folder.root) == digests(sounds.shard_folder.root)


def test_a_rejected_file_that_is_completed_at_the_same_size_is_decoded(sounds: Preprocess) -> None:
    """As of a download that had its full size from the start."""
    path = sounds.source_folder.root / NAMES[1]
    whole = path.read_bytes()
    path.write_bytes(bytes(len(whole)))
    assert run(sounds).kept == 3
    path.write_bytes(whole)
    assert run(sounds).kept == 4


def test_a_touched_or_copied_tree_is_compared_once_if_it_can_be_read_and_not_decoded(
    sounds: Preprocess, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(sounds)
    before = digests(sounds.shard_folder.root)
    copy = shutil.copytree(sounds.source_folder, sounds.source_folder.root.with_name("copy"))
    for path in copy.rglob("*.wav"):
        os.utime(path)
    settings = replace(sounds, source=copy)
    with monkeypatch.context() as patch:
        patch.setattr(checks, "hash_of", lambda path: "")
        with pytest.raises(UserError, match="cannot read .*a/0.wav, which may have changed; check its disk and perm"):
            run(settings)
    for _ in range(2):
        assert run(settings).shards_made == 0 and digests(sounds.shard_folder.root) == before
        monkeypatch.setattr(checks, "hash_of", NEVER)  # the second time
    other = replace(sounds, source=copy, destination=sounds.shard_folder.root.with_name("other"))
    run(other)
    assert digests(other.shard_folder.root) == before


@pytest.mark.parametrize("moment", ["_make_shards", "finish"])
def test_an_interrupted_run_forgets_no_change(sounds: Preprocess, moment: str) -> None:
    run(sounds)
    swap(sounds)
    with interrupted(f"gdt.preprocess.stage.{moment}"):
        run(sounds)
    run(sounds)
    assert high(sounds) == SWAPPED


def test_shards_of_an_interrupted_run_are_not_compared(sounds: Preprocess, monkeypatch: pytest.MonkeyPatch) -> None:
    with interrupted("gdt.preprocess.stage.finish"):
        run(sounds)
    (sounds.shard_folder.root / "shard-000001.h5").unlink()
    monkeypatch.setattr(checks, "hash_of", NEVER)
    assert run(sounds).shards_made == 1


@pytest.mark.parametrize("back", [False, True])
def test_a_file_that_changes_while_it_is_decoded_is_decoded_again(
    sounds: Preprocess, monkeypatch: pytest.MonkeyPatch, back: bool
) -> None:
    def swapping(*arguments: Any) -> Any:
        swap(sounds)
        try:
            return extract_group(*arguments)
        finally:
            if back:
                swap(sounds)

    with monkeypatch.context() as patch:
        patch.setattr("gdt.preprocess.worker.extract_group", swapping)
        run(replace(sounds, videos_per_shard=4))
    run(sounds)
    assert high(sounds) == ({NAMES[2], NAMES[3]} if back else SWAPPED)
