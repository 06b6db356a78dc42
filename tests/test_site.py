"""The documentation as a site, with the API reference made from the docstrings."""

import re
from pathlib import Path

import pytest

import gdt
from tests.conftest import ROOT

pytest.importorskip("mkdocstrings_handlers.python", reason="needs the requirements of the tests")


def test_the_reference_has_every_public_name() -> None:
    assert sorted(re.findall(r"^::: gdt\.(\w+)$", (ROOT / "docs" / "api.md").read_text(), re.M)) == sorted(gdt.__all__)


@pytest.mark.slow
def test_the_site_is_built_without_warnings_and_describes_every_public_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    monkeypatch.chdir(ROOT)  # the paths of the plugins are relative
    build(load_config(str(ROOT / "mkdocs.yml"), site_dir=str(tmp_path), strict=True))  # raises for a warning
    page = (tmp_path / "api" / "index.html").read_text()
    described = re.findall(r'<h3 id="gdt\.(\w+)"', page)
    assert sorted(described) == sorted(gdt.__all__)
    for name in described:
        text = page.partition(f'<h3 id="gdt.{name}"')[2].partition("<h3 ")[0]
        assert re.search(r"<p>\w", text), f"{name} has no docstring"
