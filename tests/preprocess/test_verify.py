"""Damage of any kind is found and named; intact files are not reported, and only damaged ones are removed."""

import errno
import os
import random
from pathlib import Path
from unittest.mock import Mock

import pytest

from gdt.common.errors import UserError
from gdt.common.files import locked
from gdt.pipeline.shards import container
from gdt.preprocess import verify as module
from gdt.preprocess.settings import Preprocess, Verify
from gdt.preprocess.stage import run
from gdt.preprocess.verify import verify
from tests.conftest import Run
from tests.preprocess.test_stage import digests
from tests.tamper import changed, flip


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != ".lock")


def test_every_flipped_bit_is_found(copy: Path) -> None:
    """Of an index, see test_shards.py."""
    path, draw = copy / "shard-000000.h5", random.Random(0)
    assert verify(Verify(shards=copy)) == {}
    length = path.stat().st_size
    places = [draw.randrange(length) for _ in range(60)] + [draw.randrange(6000) for _ in range(60)]
    for place in places:
        flip(path, place, bit := draw.randrange(8))
        with pytest.raises(container.Damaged):
            container.check_shard(path)
        flip(path, place, bit)
    for damaged in (path, copy / "index.h5"):
        flip(damaged, places[-1])
    found = {name: module.is_damaged(finding) for name, finding in verify(Verify(shards=copy)).items()}
    assert found == {path.name: True, "index.h5": True}


def test_command_names_and_removes_damage_and_preprocessing_rebuilds(
    command: Run, copy: Path, shards: Path, synthetic: Path
) -> None:
    done = command("verify", "--shards", copy)
    assert done.returncode == 0 and "every shard" in done.stdout
    flipped, cut = copy / "shard-000000.h5", copy / "shard-000002.h5"
    with changed(flipped) as file:
        file["frames/jpeg"][1000] += 1
    cut.write_bytes(cut.read_bytes()[:-5])
    done = command("verify", "--shards", copy)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert f"{flipped}: checksum mismatch (" in done.stderr and f"{cut}: it has" in done.stderr
    assert "something is wrong with 2 files in " in done.stderr and flipped.exists()
    assert command("verify", "--shards", copy, "--remove").returncode == 2
    assert not flipped.exists() and not cut.exists()
    done = command("verify", "--shards", copy)
    assert done.stderr.count("No such file") == 2 and "--remove" not in done.stderr
    settings = Preprocess("synthetic", synthetic, copy, videos_per_shard=16)
    assert run(settings).shards_made == 2 and digests(copy) == digests(shards)
    cut.write_bytes(cut.read_bytes()[:-1000])  # and without the command
    assert run(settings).shards_made == 1 and digests(copy) == digests(shards)


def test_an_unfinished_data_set_is_checked(command: Run, copy: Path) -> None:
    (copy / "index.h5").unlink()
    done = command("verify", "--shards", copy)
    assert done.returncode == 2 and "index.h5: No such file" in done.stderr
    with locked(copy):  # as during a run
        flip(copy / "shard-000001.h5", 9000)
        done = command("verify", "--shards", copy)
        assert done.returncode == 2 and "shard-000001.h5: checksum mismatch" in done.stderr
        done = command("verify", "--shards", copy, "--remove")
        assert done.returncode == 2 and "run is writing to" in done.stderr
    assert len(list(copy.glob("shard-*.h5"))) == 3


def test_unreadable_shards_are_never_removed(
    copy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = names(copy)
    monkeypatch.setattr(module.container, "check_shard", Mock(side_effect=OSError(errno.EIO, os.strerror(errno.EIO))))
    with pytest.raises(UserError, match=r"^something is wrong with 3 files in .*; the same preproc"):
        module.command(Verify(shards=copy, remove=True))
    assert "shard-000002.h5: Input/output error" in capsys.readouterr().err
    assert names(copy) == before


def test_a_stray_shard_is_kept(command: Run, copy: Path, synthetic: Path) -> None:
    with changed(copy / "shard-000001.h5", hidden=True) as file:
        file["video/silence"][3] = 2
    done = command("verify", "--shards", copy, "--remove")
    assert done.returncode == 2 and "it is not the shard that the index was made from" in done.stderr
    assert "remove" not in done.stderr
    assert run(Preprocess("synthetic", synthetic, copy, videos_per_shard=16)).shards_made == 0
    assert command("verify", "--shards", copy).returncode == 0


def test_non_files_and_shards_of_another_version_are_named_and_kept_and_the_rest_checked(
    command: Run, copy: Path, synthetic: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (copy / "shard-000005.h5").mkdir()
    (copy / "shard-000007.h5").symlink_to("nowhere")
    with monkeypatch.context() as patch:
        patch.setattr(container, "SCHEMA", 9)
        container.write(copy / "shard-000002.h5", {}, {})
    flip(copy / "shard-000001.h5", 9000)
    before = names(copy)
    done = command("verify", "--shards", copy, "--remove")
    assert done.returncode == 2 and "Traceback" not in done.stderr
    version = "it has schema 9 but this version reads schema 3"
    for number, what in ((1, "checksum mismatch"), (2, version), (5, "Is a directory"), (7, "No such file")):
        assert f"shard-00000{number}.h5: {what}" in done.stderr
    assert sorted([*names(copy), "shard-000001.h5"]) == before
    (copy / "shard-000005.h5").rmdir()
    with pytest.raises(UserError, match=f"holds shards of another version: {version}; set --destination"):
        run(Preprocess("synthetic", synthetic, copy))
    assert (copy / "shard-000002.h5").exists()
