"""Cores within the quotas of control groups."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest

from gdt.common import machine


@pytest.mark.parametrize(
    ("member", "files", "cores"),
    [
        ("0::/", {"cpu.max": "200000 100000"}, 2),
        ("0::/", {"cpu.max": "max 100000"}, 8),
        ("0::/a/b", {"a/cpu.max": "350000 100000", "a/b/cpu.max": "max 100000"}, 3),  # of the group around it
        ("0::/a/b", {"cpu.max": "50000 100000"}, 1),  # a container, which sees its group at the root
        ("4:cpu,cpuacct:/x\n0::/", {"cpu,cpuacct/x/cpu.cfs_quota_us": "150000"}, 1),
        ("4:cpu,cpuacct:/x", {"cpu,cpuacct/cpu.cfs_quota_us": "-1"}, 8),
        ("4:cpuset:/x\n5:cpu:/x", {"cpuset/x/cpu.cfs_quota_us": "100000", "cpu/x/cpu.cfs_quota_us": "400000"}, 4),
        ("", {"cpu/cpu.cfs_quota_us": "300000"}, 3),
    ],
)
def test_quotas_of_both_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, member: str, files: Mapping[str, str], cores: int
) -> None:
    for name, text in files.items():
        path = tmp_path / "groups" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        if path.name == "cpu.cfs_quota_us":
            path.with_name("cpu.cfs_period_us").write_text("100000")
    (tmp_path / "member").write_text(member)
    monkeypatch.setattr(machine, "_GROUPS", tmp_path / "groups")
    monkeypatch.setattr(machine, "_MEMBER", tmp_path / "member")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(8))
    assert machine.cores() == cores
    taken: list[int] = []
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(set_num_threads=taken.append))
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    machine.limit_threads()
    assert (os.environ["OMP_NUM_THREADS"], taken) == ("5", [])
    monkeypatch.delenv("OMP_NUM_THREADS")
    machine.limit_threads()
    assert os.environ.get("OMP_NUM_THREADS") == (str(cores) if cores < 8 else None)
    assert taken == [cores] * (cores < 8)  # it has been imported, so that the variable comes too late
