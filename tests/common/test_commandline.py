"""Settings on the command line: in groups, and otherwise as their dataclass has them."""

from __future__ import annotations

import re
from dataclasses import fields, is_dataclass, replace
from typing import get_type_hints

import pytest
import tyro

from gdt.common.commandline import Options
from gdt.eval.command import COMMANDS as EVAL
from gdt.pipeline.leaves import Clip
from gdt.preprocess.stage import Preprocess
from gdt.studies.command import COMMANDS as STUDIES
from gdt.train.settings import SIZES, Pretrain

KINDS = {name: Options(one.settings) for name, one in {**EVAL, **STUDIES}.items()} | {
    "preprocess": Options(Preprocess), "pretrain": Options(Pretrain),
}  # fmt: skip

SUPPRESSED = ("factors_digest", "default_batch_size")


@pytest.mark.parametrize("name", KINDS)
def test_every_setting_is_under_one_heading_and_has_a_text(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    options = KINDS[name]
    with pytest.raises(SystemExit):
        tyro.cli(options.type, prog="x", args=["--help"])
    shown = capsys.readouterr().out
    kind = options._kind
    types = get_type_hints(kind)
    names = [f.name for f in fields(kind) if not is_dataclass(types[f.name]) and f.name not in SUPPRESSED]
    for option in (name.replace("_", "-") for name in names):
        assert len(re.findall(rf"^[│ ] --{option}(?![-\w])", shown, re.M)) == 1, option
    for title, below in getattr(kind, "headings", {}).items():
        (box,) = re.findall(rf"^\W*{title} options\W*\n(.*?)(?=^\W*\w+ options\W*\n|\Z)", shown, re.M | re.S)
        assert all(f"--{n.replace('_', '-')}" in box for n in below if n not in SUPPRESSED), title


def test_settings_come_back_as_they_were_given() -> None:
    options, base = Options(Pretrain), SIZES["tiny"][1]
    assert options.settings(options.of(base)) == base
    given = ["--dataset", "mine", "--steps", "7", "--clip.size", "24", "--probe-every", "3"]
    parsed = tyro.cli(options.type, default=options.of(base), args=given)
    clip = replace(base.clip, size=24)
    assert options.settings(parsed) == replace(base, dataset="mine", steps=7, clip=clip, probe_every=3)
    assert options.settings(tyro.cli(options.type, args=[])) == Pretrain()
    assert isinstance(options.settings(parsed).clip, Clip)
