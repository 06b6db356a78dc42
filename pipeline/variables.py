"""What make says of variables that were typed and that it does not heed.

python -m pipeline.variables TARGETS REFUSED HEEDED KNOWN: lists of names, each in one argument. It may be run by any
Python 3, since nothing is set up yet.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Sequence

_ALIKE = 0.65
"""PRESETS and PRESET, DATA and DATASET are; STEPS and SEEDS are not."""


def refusal(targets: Sequence[str], refused: Sequence[str], heeded: Sequence[str], known: Sequence[str]) -> str:
    """A sentence: what each of the refused variables might be, and which ones these targets heed."""
    make = f"make {' '.join(targets)}"
    heeded = list(dict.fromkeys(heeded))
    unknown = []
    for name in sorted(refused):
        meant = name.upper().replace("-", "_")
        if meant in known and meant not in heeded:
            unknown.append(f"{meant} has no effect on '{make}'")
        elif near := difflib.get_close_matches(meant, heeded, 1, _ALIKE):
            unknown.append(f"'{make}' knows no variable {name}; write {near[0]}")
        elif "ARGS" in heeded:
            option = f'ARGS="--{name.lower().replace("_", "-")} ..."'
            unknown.append(f"'{make}' knows no variable {name}; if an option of the program is meant, write {option}")
        else:
            unknown.append(f"'{make}' knows no variable {name}")
    return f"{'; '.join(unknown)} (its variables: {', '.join(heeded) or 'none'})"


if __name__ == "__main__":
    print(f"error: {refusal(*(names.split() for names in sys.argv[1:5]))}")
