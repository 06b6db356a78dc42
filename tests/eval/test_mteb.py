"""MTEB evaluates a model on tasks made of local clips."""

import errno
import subprocess
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

import gdt
from gdt.common.errors import UserError
from gdt.preprocess.process import Unread
from tests.sounds import tone

mteb = pytest.importorskip("mteb")
datasets = pytest.importorskip("datasets")

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
def test_mteb_evaluates_checkpoints_on_local_clips(checkpoint: Path, synthetic: Path, columns: tuple[str, ...]) -> None:
    files = {split: sorted((synthetic / split).rglob("*.mp4")) for split in ("train", "test")}
    model = gdt.mteb(checkpoint, clips=2)
    assert model.mteb_model_meta.name == "gdt/e"
    (found,) = mteb.evaluate(model, task(files, *columns), cache=None).task_results
    assert 0 <= found.get_score() <= 1


def inputs_of(rows: dict[str, list[Any]], **kinds: Any) -> Any:
    """What MTEB gives to `encode`: a loader of a data set."""
    named = datasets.Dataset.from_dict(rows)
    for name, kind in kinds.items():
        named = named.cast_column(name, kind)
    return type("Loader", (), {"dataset": named})


META = type("Metadata", (), {"name": "Mine"})


@pytest.mark.parametrize("fault", ["full disk", "unread", "missing"])
def test_a_fault_of_the_machine_ends_the_evaluation(
    checkpoint: Path, synthetic: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """It never becomes a row of 0."""
    path, model = next((synthetic / "test").rglob("*.mp4")), gdt.mteb(checkpoint, clips=1)
    if fault == "full disk":
        full = OSError(errno.ENOSPC, "No space left on device")
        monkeypatch.setattr("gdt.preprocess.worker.write_shard", Mock(side_effect=full))
    if fault == "unread":
        unread = Unread("it cannot be read (Input/output error); the next run tries it again")
        monkeypatch.setattr("gdt.preprocess.worker.extract_group", lambda targets, _: [unread for _ in targets])
    files = [str(tmp_path / "gone.mp4" if fault == "missing" else path)]
    message = {
        "full disk": "no space left on the disk", "missing": "cannot read .*ne",
        "unread": f"Mine: row 0, {path}: it cannot be read",
    }[fault]  # fmt: skip
    with pytest.raises(UserError, match=message):
        model.encode(inputs_of({"video": files}, video=datasets.Video()), task_metadata=META)


def test_rows_without_sound_or_file_are_named_and_0(
    checkpoint: Path, synthetic: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where a whole batch of files has none."""
    path = next((synthetic / "test").rglob("*.mp4"))
    mute, short = tmp_path / "mute.mp4", tmp_path / "short.wav"
    subprocess.run(["ffmpeg", "-v", "error", "-i", path, "-an", "-c", "copy", mute], check=True)
    tone(short, 300, 0.3)
    model = gdt.mteb(checkpoint, clips=1)
    for names, lacking in (([mute, path, None, short], [0, 2, 3]), ([mute, short], [0, 1]), ([None], [0])):
        rows = [name and {"path": str(name), "bytes": None} for name in names]
        inputs = inputs_of({"audio": rows}, audio=datasets.Audio(decode=False))
        found = model.encode(inputs, task_metadata=META)
        assert np.flatnonzero(~found.any(1)).tolist() == lacking and np.isfinite(found).all()
        said = capsys.readouterr().err
        assert f"{len(lacking)} of {len(names)} rows have no usable audio and are 0:\n" in said
        for n in lacking:
            assert f"\n  row {n}, {names[n] or 'its bytes'}: " in said


def test_rows_are_those_of_embed(
    checkpoint: Path, synthetic: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = sorted((synthetic / "test").rglob("*.mp4"))[:3]
    broken = tmp_path / "broken.mp4"
    broken.write_bytes(b"nonsense")
    inputs = inputs_of({"video": [str(paths[0]), str(broken), str(paths[1])]}, video=datasets.Video())
    for kind in ("embeddings", "features"):  # each warns once
        found = gdt.mteb(checkpoint, kind=kind, clips=2).encode(inputs, task_metadata=META)
        own = gdt.load(checkpoint).embed(paths[:2], kind=kind, clips=2).features["video"]
        assert np.allclose(found[[0, 2]], own, atol=1e-5) and not found[1].any() and len(found) == 3
        assert capsys.readouterr().err.count(f"  row 1, {broken}: ffmpeg cannot decode it: ") == 1
    with pytest.raises(UserError, match="Mine has text"):
        gdt.mteb(checkpoint).encode(inputs_of({"text": ["words"]}), task_metadata=META)
