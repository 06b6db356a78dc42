"""The notebook, from its first cell to its last."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tests.conftest import ROOT

NOTEBOOK = ROOT / "docs" / "sound_search.ipynb"


def test_the_notebook_goes_from_a_folder_to_a_search(
    synthetic: Path, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert all(not cell.get("outputs") for cell in notebook.cells)  # what is committed is without
    (paths,) = (cell for cell in notebook.cells if cell.cell_type == "code" and "CHECKPOINT = " in cell.source)
    paths.source = f"VIDEOS, CHECKPOINT = {str(synthetic / 'test')!r}, {str(checkpoint)!r}"
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.chdir(tmp_path)
    NotebookClient(notebook, timeout=200, kernel_name="python3").execute()
    said = "".join(output.get("text", "") for cell in notebook.cells for output in cell.get("outputs", []))
    assert "12 videos; pictures (12, 128), sounds (12, 128); skipped: []" in said
    assert said.count(".mp4") == 1 + 3 and "recall@1 " in said and "(chance 8.3 %)" in said
    shown = [output for cell in notebook.cells for output in cell.get("outputs", []) if "data" in output]
    assert sum("<video" in output["data"].get("text/html", "") for output in shown) == 4
    assert any("image/png" in output["data"] for output in shown)
