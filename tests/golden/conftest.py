"""Recorded values, in the JSON files beside the tests.

`python -m pytest tests/golden --record` records them anew, with `-m ''` those of slow tests, too. A commit that does so
changes behaviour and must say why. Files with "groups" or "dropout" in their names hold what depends on them.
"""

from __future__ import annotations

import json
import platform
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.train.drawn import draw

Golden = Callable[..., None]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record", action="store_true", help="record the values of tests/golden anew")


@cache
def machine() -> str:
    """All that the last digits depend on: the processor and the versions of the libraries that compute."""
    cpuinfo = Path("/proc/cpuinfo")
    about = dict(re.findall(r"^(.+?)\s*: (.*)$", cpuinfo.read_text(), re.M)) if cpuinfo.is_file() else {}
    parts = [about.get(key, "") for key in ("model name", "cpu family", "model", "stepping")]
    parts += [platform.machine(), torch.backends.cpu.get_cpu_capability()]
    parts += [f"{name} {version(name)}" for name in ("torch", "numpy", "scipy", "simplejpeg", "pillow")]
    if shutil.which("ffmpeg"):
        parts += subprocess.run(["ffmpeg", "-version"], capture_output=True, text=True).stdout.split(" ")[:3]
    return " ".join(parts)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """golden(file, name, found, elsewhere, exactly): `found` equals the recorded value.

    With `elsewhere`, that holds on the machine that recorded it; on others, elsewhere(recorded, found) is true, and so
    it is everywhere if not `exactly`.
    """

    def check(
        file: str, name: str, found: Any, elsewhere: Callable[[Any, Any], bool] | None = None, exactly: bool = True
    ) -> None:
        path, found = Path(__file__).with_name(f"{file}.json"), json.loads(json.dumps(found))
        held = json.loads(path.read_text()) if path.is_file() else {}
        if exactly and request.config.getoption("--record", False):
            of_machine = {"machine": machine()} if elsewhere else {}
            kept = held if held.get("machine") == of_machine.get("machine") else {}
            lines = (
                f"{json.dumps(k)}: {json.dumps(v)}" for k, v in sorted((kept | of_machine | {name: found}).items())
            )
            path.write_text("{\n" + ",\n".join(lines) + "\n}\n")
        elif elsewhere and not (exactly and held["machine"] == machine()):
            assert elsewhere(held[name], found), f"{file}.json, {name}: recorded {held[name]}, now {found}"
        else:
            assert found == held[name], f"{file}.json, {name}"

    return check


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Sums of several threads have other last digits."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Shards of 12 videos drawn by formulas, and the vectors of their words."""
    return draw(tmp_path_factory.mktemp("golden"), videos=12)
