"""The command line of the studies."""

from __future__ import annotations

import re

import pytest

from gdt.studies import command


@pytest.mark.parametrize("name", ["", *command.COMMANDS])
def test_help_is_sorted_and_at_most_100_columns(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.main([*name.split(), "--help"])
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 100
    assert name or "Study the paper's theorem, figures and claim" in text
    names = re.findall(r"• ([\w-]+)", text)
    assert names == sorted(names) and (name or names == [*command.COMMANDS])
