"""Recorded values, in the JSON files beside the tests.

`python -m pytest tests/golden --record` records them anew, with `-m ''` those of slow tests, too. A commit that does so
changes behaviour and must say why. Values that depend on dropout or on several batch-norm groups have their own files.
"""

import json
import math
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

Golden = Callable[..., None]
Alike = Callable[[Any, Any], bool]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record", action="store_true", help="record the values of tests/golden anew")


@cache
def machine() -> str:
    """All that the last digits depend on: the processor, and the versions of the programs that compute."""
    cpuinfo = Path("/proc/cpuinfo")
    about = dict(re.findall(r"^(.+?)\s*: (.*)$", cpuinfo.read_text(), re.M)) if cpuinfo.is_file() else {}
    parts = [about.get(key, "") for key in ("model name", "cpu family", "model", "stepping")]
    parts += [platform.machine(), torch.backends.cpu.get_cpu_capability()]
    parts += [f"{name} {version(name)}" for name in ("torch", "numpy", "scipy", "simplejpeg", "pillow")]
    if shutil.which("ffmpeg"):
        parts += subprocess.run(["ffmpeg", "-version"], capture_output=True, text=True).stdout.split(" ")[:3]
    return " ".join(parts)


def alike(rtol: float = 0.0, atol: float = 0.0, **rtols: float) -> Alike:
    """Whether values are equal, but for `hash` and for numbers, which are close; `rtols` are those of some names."""

    def same(one: Any, other: Any) -> bool:
        if isinstance(one, dict):
            names = one.keys() - {"hash"}
            return one.keys() == other.keys() and all(
                alike(rtols.get(name, rtol), atol, **rtols)(one[name], other[name]) for name in names
            )
        if isinstance(one, list):
            return len(one) == len(other) and all(map(same, one, other))
        return one == other if isinstance(one, str) else math.isclose(one, other, rel_tol=rtol, abs_tol=atol)

    return same


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """golden(file, name, found, elsewhere, exactly): `found` equals the recorded value.

    With `elsewhere`, that holds on the machine that recorded it; on others, elsewhere(recorded, found) is true, and so
    it is everywhere if not `exactly`.
    """

    def check(file: str, name: str, found: Any, elsewhere: Alike | None = None, exactly: bool = True) -> None:
        path, found = Path(__file__).with_name(f"{file}.json"), json.loads(json.dumps(found))
        held = json.loads(path.read_text()) if path.is_file() else {}
        own = {"machine": machine()} if elsewhere else {}
        if exactly and request.config.getoption("--record", False):
            kept = held if held.get("machine") == own.get("machine") else {}
            path.write_text(_text(kept | own | {name: found}, depth=2) + "\n")
        elif elsewhere and not (exactly and held["machine"] == machine()):
            assert elsewhere(held[name], found), f"{path}, {name}: {found}"
        else:
            assert found == held[name], f"{path}, {name}"

    return check


def _text(value: Any, depth: int) -> str:
    """JSON with a line for each value down to a depth."""
    if not depth or not isinstance(value, dict):
        return json.dumps(value)
    return "{\n" + ",\n".join(f"{json.dumps(key)}: {_text(value[key], depth - 1)}" for key in sorted(value)) + "\n}"


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """Sums of several threads have other last digits."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
