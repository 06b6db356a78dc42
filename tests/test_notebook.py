"""The notebook runs from its first cell to its last."""

import os
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tests.conftest import ROOT

NOTEBOOK = ROOT / "docs" / "sound_search.ipynb"


@pytest.mark.slow
def test_the_notebook_goes_from_clips_to_a_search(
    synthetic: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    paths, *others = (cell for cell in notebook.cells if cell.cell_type == "code")
    assert all(cell.outputs for cell in others)  # committed with outputs
    folders = [str(synthetic), str(synthetic / "test"), "out"]
    paths.source = f"from pathlib import Path\nVIDEOS, SEARCH, OUT = map(Path, {folders})\nTEST, STEPS = None, 2"
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.chdir(tmp_path)
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})  # one worker decodes; each takes seconds to start
    try:
        NotebookClient(notebook, kernel_name="python3").execute()
    finally:
        os.sched_setaffinity(0, cores)
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    text = "".join(output.get("text", "") for output in outputs if output.get("name") == "stdout")
    for line in ("42 of 42 videos kept", "2 steps, loss ", "random weights", "V→A"):
        assert line in text
    assert text.count(".mp4\n") == 1 + 3
    assert sum("<video" in output.get("data", {}).get("text/html", "") for output in outputs) == 4
    assert any("image/png" in output.get("data", {}) for output in outputs)
