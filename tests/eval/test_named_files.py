"""Python files that a checkpoint names are never run; only those that the user gives to a command or a process are."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import gdt
from gdt.common.errors import UserError
from gdt.eval.downstream import evaluate
from gdt.eval.export import export
from gdt.eval.folds import Fold
from gdt.eval.settings import Downstream, Export
from gdt.eval.training import Finetuning
from gdt.pipeline.notation import read_transformations
from gdt.pipeline.shards.index import Index
from gdt.train.checkpoint import load_model
from gdt.train.experiment import compose
from gdt.train.flops import step_flops
from gdt.train.pretrain import pretrain
from gdt.train.run import CHECKPOINT, SETTINGS_FILE
from gdt.train.settings import SIZES
from tests.conftest import Run, commands_in, few
from tests.eval.test_finetune import finetuning
from tests.pipeline.test_notation import FREEZE
from tests.tamper import edit_record

EVIL = "video:d evil:i:1 modality:i:2:differs augmentation:i:1"
OWN = "video:d time_shift:d:2 freeze:d:2 modality:i:2:differs augmentation:i:1"


@pytest.fixture(scope="module")
def evil(checkpoint: Path, index: Index, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of downloaded models, in every form, that name evil.py."""
    folder = tmp_path_factory.mktemp("evil")
    ran = folder / "RAN"
    (folder / "evil.py").write_text(f"open({str(ran)!r}, 'w').write('x')\n" + FREEZE.replace("freeze", "evil"))
    named = {
        "factors": EVIL, "preset": "l", "factors_from": str(folder / "evil.py"),
        "own_networks": {"video_network": [f"{folder}/evil.py:Evil"]},
    }  # fmt: skip
    shutil.copytree(checkpoint.parent, folder / "run")
    path = folder / "run" / SETTINGS_FILE
    path.write_text(json.dumps(json.loads(path.read_text()) | named))
    path = folder / "run" / CHECKPOINT
    torch.save(edit_record(torch.load(path, weights_only=True), named), path)
    trained = load_model(checkpoint)
    written = replace(trained.settings, factors=EVIL, preset="l", factors_from=folder / "evil.py")
    trained = replace(trained, record=replace(trained.record, settings=written))
    trained.write(folder / "evil.safetensors")
    train = (index.split == "train").nonzero()[0]
    fold = Fold(0, train, train, index.label[train].astype(str), index.label[train].astype(str))
    finetuning(trained, (index, fold), Finetuning.recipe_of(Downstream(), trained), folder).save(12)
    assert not ran.exists()
    return folder


EVALUATE = ("evaluate", "--protocols", "retrieval", "--clips", 1, "--random-weights", "exclude", "--ckpt")
EMBED, FACTORS = ("embed", "--kind", "features", "--clips", 1, "--ckpt"), ("factors", "--videos", 5, "--ckpt")
INIT = ("pretrain", "--steps", 1, "--batch-size", 4, "--out", "again", "--init")


@pytest.mark.parametrize(
    ("words", "name", "error"),
    few(
        [
            (EVALUATE, "run", ""),
            (EVALUATE, "evil.safetensors", ""),
            (EMBED, "run", ""),
            (EMBED, "evil.safetensors", ""),
            (EMBED, "finetuned.pt", ""),
            (FACTORS, "run", "unknown factor 'evil'"),
            (("export", "--out", "o.safetensors", "--ckpt"), "run", ""),
            (("export", "--to", "hub", "--ckpt"), "run", ""),
            (INIT, "run", ""),
            (INIT, "finetuned.pt", ""),
        ],
        3,
    ),
)
def test_no_command_runs_a_file_that_a_checkpoint_names(
    command: Run, evil: Path, shards: Path, words: tuple[str, ...], name: str, error: str
) -> None:
    done = command(*words, evil / name, *(() if words[0] == "export" else ("--shards", shards)))
    assert not (evil / "RAN").exists()
    assert "Traceback" not in done.stderr and error in done.stderr
    assert done.returncode == (2 if error else 0), done.stderr


def test_nor_do_reports_or_resumption(evil: Path, shards: Path, tmp_path: Path) -> None:
    command = commands_in(evil)
    shutil.copytree(evil / "run", tmp_path / "run")
    same = ("--size", "tiny", "--shards", shards, "--batch-size", 4, "--out", tmp_path / "run")
    for factors in (("--preset", "e"), ("--factors", EVIL)):
        done = command("pretrain", *same, "--steps", 4, *factors)
        assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
    assert "unknown factor 'evil'" in done.stderr
    assert command("report", "--runs", evil).returncode == 0
    assert command("embed", "--ckpt", "run", "--shards", shards, "--clips", 1, "--out", "f.npz").returncode == 0
    assert command("nearest", "--features", "f.npz", "--query", "nothing").returncode == 2
    gdt.load(evil / "run")
    assert not (evil / "RAN").exists()


@pytest.fixture(scope="module")
def own(shards: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint of a run with factors of its own, from mine.py beside its folder."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "mine.py").write_text(FREEZE)
    settings = replace(
        SIZES["tiny"], shards=shards, out=folder / "run", factors=OWN, factors_from=folder / "mine.py", batch_size=4,
        steps=3, device="cpu",
    )  # fmt: skip
    return pretrain(settings)


def test_evaluation_needs_only_the_numbers_in_the_checkpoint(own: Path, on_shards: Downstream, tmp_path: Path) -> None:
    text = json.loads(torch.load(own, weights_only=True)["record"])["settings"]
    assert text["factors_from"] is None and len(load_model(own).record.factors) == 16
    settings = load_model(own).settings
    composition = compose(settings, read_transformations(own.parent.parent / "mine.py")[0])
    videos, flops = composition.batch_size, step_flops(load_model(own).model, composition, settings.clip)
    export(Export(tmp_path / "x.safetensors", ckpt=own))
    assert load_model(tmp_path / "x.safetensors").record.factors == load_model(own).record.factors
    with pytest.raises(UserError, match="unknown factor 'freeze'"):
        compose(settings)
    models = (own, tmp_path / "x.safetensors")
    results = evaluate(replace(on_shards, ckpt=models, protocols=("retrieval",))).results
    assert len(results) == len(models)
    for each in results:
        assert (each.videos, each.tflop) == (3 * videos, 3 * flops / 1e12) and videos == 4 and flops > 1e6
        assert each.preset == OWN


def test_factors_are_measured_with_the_file_of_the_run(command: Run, own: Path, shards: Path, tmp_path: Path) -> None:
    asked = ("factors", "--ckpt", own, "--shards", shards, "--videos", 5, "--out", "out")
    refused = command(*asked)
    assert refused.returncode == 2 and "give the same file with --factors-from" in refused.stderr
    (tmp_path / "other.py").write_text(FREEZE.replace("// 2", "// 3"))
    other = command(*asked, "--factors-from", "other.py")
    assert other.returncode == 2 and "the file given is another or has changed" in other.stderr
    same = ("--shards", shards, "--out", own.parent, "--batch-size", 4, "--steps", 3, "--factors", OWN)
    resumed = command("pretrain", "--size", "tiny", *same, "--factors-from", "other.py")
    assert "holds a run with different settings (the file of --factors-from)" in resumed.stderr
    done = command(*asked, "--factors-from", own.parent.parent / "mine.py")
    assert done.returncode == 0 and "freeze" in done.stdout, done.stderr
