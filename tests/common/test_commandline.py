"""Command-line options: grouped under headings, with the names and defaults of their dataclass."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import ClassVar, get_type_hints

import pytest
import tyro

from gdt import cli as gdt_command_line
from gdt.common.commandline import Options, expand_home
from gdt.common.errors import UserError, plural
from gdt.eval.command import COMMANDS as EVAL
from gdt.pipeline.leaves import Clip
from gdt.preprocess.stage import Preprocess
from gdt.preprocess.verify import Verify
from gdt.train.settings import SIZES, Pretrain

KINDS = {name: Options(one.settings) for name, one in EVAL.items()} | {
    "preprocess": Options(Preprocess), "pretrain": Options(Pretrain), "verify": Options(Verify),
}  # fmt: skip


def shown_help(options: Options, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit):
        tyro.cli(options.type, prog="x", args=["--help"])
    return capsys.readouterr().out


@pytest.mark.parametrize("name", KINDS)
def test_help_shows_every_option_once_under_its_heading(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    text, kind = shown_help(KINDS[name], capsys), KINDS[name]._kind
    types = get_type_hints(kind, include_extras=True)
    hidden = {name for name, hint in types.items() if tyro.conf.Suppress in getattr(hint, "__metadata__", ())}
    names = [f.name for f in fields(kind) if not is_dataclass(types[f.name]) and f.name not in hidden]
    for option in (name.replace("_", "-") for name in names):
        assert len(re.findall(rf"^[│ ] --{option}(?![-\w])", text, re.M)) == 1, option
    for title, below in getattr(kind, "headings", {}).items():
        (box,) = re.findall(rf"^\W*{title} options\W*\n(.*?)(?=^\W*\w+ options\W*\n|\Z)", text, re.M | re.S)
        assert all(f"--{n.replace('_', '-')}" in box for n in below if n not in hidden), title


@dataclass(frozen=True)
class Part:
    size: int = 1
    """Size."""


@dataclass(frozen=True)
class Example:
    headings: ClassVar[dict[str, tuple[str, ...]]] = {"data": ("source", "paths"), "advanced": ("rate", "fast")}

    source: Path | None = None
    """Folder."""
    paths: tuple[Path, ...] = ()
    """Files."""
    rate: float = 0.5
    """Rate."""
    fast: bool = False
    """Faster."""
    part: Part = Part()
    """Parts."""


def test_help_is_short_and_ends_with_advanced_options(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown_help(Options(Example), capsys)
    lines = [" ".join(line.strip(" │").split()) for line in text.splitlines()]
    for line in ("--source PATH Folder.", "--paths PATH ... Files.", "--rate FLOAT Rate. (default: 0.5)",
                 "--fast, --no-fast Faster."):  # fmt: skip
        assert line in lines, text
    assert re.findall(r"(\w+) options", text) == ["data", "part", "advanced"]


def test_settings_survive_the_command_line() -> None:
    options, base = Options(Pretrain), SIZES["tiny"][1]
    assert options.settings(options.defaults(base)) == base
    given = ["--dataset", "mine", "--steps", "7", "--clip.size", "24", "--probe-every", "3"]
    parsed = tyro.cli(options.type, default=options.defaults(base), args=given)
    clip = replace(base.clip, size=24)
    assert options.settings(parsed) == replace(base, dataset="mine", steps=7, clip=clip, probe_every=3)
    assert options.settings(tyro.cli(options.type, args=[])) == Pretrain()
    assert isinstance(options.settings(parsed).clip, Clip)


def test_home_is_expanded_in_every_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    parsed = Options(Example).parse("x", ["--source=~/My videos", "--paths", "~/a", "b/~", "~nobody-here/c"])
    assert parsed == Example(Path("/home/me/My videos"), (Path("/home/me/a"), Path("b/~"), Path("~nobody-here/c")))
    nested = expand_home((Example(Path("~")), "~", 1))
    assert nested == (Example(Path("/home/me")), "~", 1)
    assert Options(Verify).parse("x", ["--shards", "~/s"]).shards == Path("/home/me/s")


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("pretrain tiny --sted 3", "unknown option '--sted'; did you mean '--seed'? 'gdt pretrain tiny --help' lists"),
        (
            "eval downstream --ckt x",
            "unknown option '--ckt'; did you mean '--ckpt'? 'gdt eval downstream --help'",
        ),
        ("verify --zzz", "unknown option '--zzz'; 'gdt verify --help' lists the options"),
        ("eval downstream --dry", "unknown option '--dry'; 'gdt eval"),  # no option is similar
        ("preprocess /videos", "unexpected argument '/videos'; 'gdt preprocess --help' lists the options"),
        (
            "preprocess --duplicates frist",
            "unknown --duplicates 'frist'; did you mean 'first'? Available: refuse, first",
        ),
        (
            "eval downstream --ckpt x --protocols linear,retrieval",
            "unknown --protocols 'linear,retrieval'; separate several by spaces",
        ),
        ("preprocess --val x", "--val is 'x'; it must be a number"),
        ("pretrain tiny --steps abc", "--steps is 'abc'; it must be an integer"),
        ("pretrain tiny --augmentation.scale a b", "--augmentation.scale is 'a', 'b'; it must be two integers"),
        ("pretrain tiny --seed", "--seed lacks a value; it must be an integer"),
        ("eval export", "gdt eval export needs --ckpt PATH and --out PATH; 'gdt eval export --help' lists the options"),
        ("eval downstream --ckpt", "--ckpt lacks a value"),
        ("eval ablation --rows", "--rows lacks a value"),
        ("eval ablation --seeds --rows e", "--seeds lacks a value"),
        ("generate --identty 1", "unknown option '--identty'; did you mean '--identity'? 'gdt generate --help' lists"),
        ("pretrain tin", "unknown size 'tin'; did you mean 'tiny'? Available:\n  paper, tiny, paper-ablation"),
        ("pretrain --sted 3", "unknown option '--sted'; did you mean '--seed'? 'gdt pretrain --help' lists"),
        ("pretrain --preset help", "row e"),  # without a size, as in make, the default one
    ],
)
def test_mistakes_of_a_command_line_are_one_short_message(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str, message: str
) -> None:
    name, *arguments = command.split()
    monkeypatch.setattr(sys, "orig_argv", [])
    with pytest.raises((UserError, SystemExit)) as error:
        gdt_command_line._run(name, arguments)
    assert message in f"{error.value}{''.join(capsys.readouterr())}"


def test_a_command_of_a_group_is_named_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["gdt", "show-tree"])
    with pytest.raises(UserError, match="unknown command 'show-tree'; did you mean 'gdt eval show-tree'"):
        gdt_command_line._main()


@pytest.mark.parametrize(("n", "text"), [(0, "0 classes"), (1, "1 class"), (2, "2 classes")])
def test_nouns_agree_with_their_number(n: int, text: str) -> None:
    assert plural(n, "class", "classes") == text and plural(n, "video").endswith("s") == (n != 1)
