"""One section of the benchmark, in its own process."""

from __future__ import annotations

import importlib
import sys

from benchmarks.gpu import stubs
from benchmarks.gpu.settings import SECTIONS, Settings, parse_arguments
from benchmarks.gpu.table import Rows

if __name__ in ("__main__", "__mp_main__"):  # also in processes that this one starts
    stubs.install_stubs()


def measure(name: str, settings: Settings, deadline: float) -> None:
    """Measure the rows of a section; `deadline` as of time.time()."""
    from benchmarks.gpu import device

    module = importlib.import_module(f"benchmarks.gpu.{SECTIONS[name]}")
    path = settings.out / "rows.jsonl"
    if name in ("machine", "shards"):  # without a device, `machine` fails in its row
        getattr(module, name)(settings, Rows(path, name, deadline))
    else:
        where = device.device_of(settings.device)
        getattr(module, name)(settings, Rows(path, name, deadline, lambda: device.reset(where)), where)


if __name__ == "__main__":
    measure(sys.argv[1], parse_arguments(sys.argv[3:]), float(sys.argv[2]))
