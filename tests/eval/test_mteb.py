"""MTEB evaluates a model on tasks made of local clips."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gdt
from gdt.common.errors import UserError

mteb = pytest.importorskip("mteb")
datasets = pytest.importorskip("datasets")
pytestmark = pytest.mark.usefixtures("alone")

from mteb.abstasks.classification import AbsTaskClassification  # noqa: E402
from mteb.abstasks.task_metadata import TaskMetadata  # noqa: E402


def task(files: dict[str, list[Path]], *columns: str) -> Any:
    """Classification of local files by their folder."""
    kinds = {"video": datasets.Video(), "audio": datasets.Audio()}
    sound = sorted(columns) == ["audio"]

    class Local(AbsTaskClassification):
        metadata = TaskMetadata(
            name="LocalClips", description="By their folder.", dataset={"path": "x", "revision": "1"},
            type="AudioClassification" if sound else "VideoClassification", category="a2c" if sound else "v2c",
            modalities=[*columns], eval_splits=["test"], eval_langs=["eng-Latn"], main_score="accuracy",
        )  # fmt: skip
        input_column_name = columns[0] if len(columns) == 1 else columns
        samples_per_label, n_experiments = 4, 2

        def load_data(self, **_: Any) -> None:
            self.dataset, self.data_loaded = datasets.DatasetDict(), True
            for split, paths in files.items():
                rows = {name: [str(path) for path in paths] for name in columns}
                named = datasets.Dataset.from_dict(rows | {"label": [path.parent.name for path in paths]})
                for name in columns:
                    named = named.cast_column(name, kinds[name])
                self.dataset[split] = named.class_encode_column("label")

    return Local()


@pytest.mark.parametrize("columns", [("video",), ("audio",), ("video", "audio")])
def test_mteb_evaluates_a_checkpoint_on_local_clips(
    checkpoint: Path, synthetic: Path, columns: tuple[str, ...]
) -> None:
    files = {split: sorted((synthetic / split).rglob("*.mp4")) for split in ("train", "test")}
    model = gdt.mteb(checkpoint, clips=2)
    assert model.mteb_model_meta.name == "gdt/e"
    (found,) = mteb.evaluate(model, task(files, *columns), cache=None).task_results
    assert 0 <= found.get_score() <= 1


def test_rows_are_those_of_embed(
    checkpoint: Path, synthetic: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = sorted((synthetic / "test").rglob("*.mp4"))[:3]
    broken = tmp_path / "broken.mp4"
    broken.write_bytes(b"nonsense")
    rows = datasets.Dataset.from_dict({"video": [str(paths[0]), str(broken), str(paths[1])]})
    inputs = type("Loader", (), {"dataset": rows.cast_column("video", datasets.Video())})
    meta = type("Metadata", (), {"name": "Mine"})
    for kind in ("embeddings", "features"):
        found = gdt.mteb(checkpoint, kind=kind, clips=2).encode(inputs, task_metadata=meta)
        own = gdt.load(checkpoint).embed(paths[:2], kind=kind, clips=2).features["video"]
        assert np.allclose(found[[0, 2]], own, atol=1e-5) and not found[1].any() and len(found) == 3
    assert "Mine: 1 of 3 rows have no usable video" in capsys.readouterr().err
    inputs.dataset = datasets.Dataset.from_dict({"text": ["words"]})
    with pytest.raises(UserError, match="Mine has text"):
        gdt.mteb(checkpoint).encode(inputs, task_metadata=meta)
