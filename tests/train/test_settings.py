"""Settings to text and back, across versions and machines."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from gdt.common.errors import UserError
from gdt.common.serialization import to_json
from gdt.pipeline.sources.loading import Loading
from gdt.train.models.network import OwnNetwork
from gdt.train.options import command_of, parse_arguments
from gdt.train.record import decisive, differences, parsed
from gdt.train.schedule import Optimization
from gdt.train.settings import SIZES, Pretrain, RunSettings
from tests.common.test_commandline import TRAINED

TEXT = json.loads(to_json(RunSettings.of(SIZES["tiny"])))
from_json = partial(parsed, RunSettings, source="this text")
MINE = "video:d time_shift:d:2 modality:i:2:differs time_reversal:i:2 augmentation:i:1"


@pytest.mark.parametrize("settings", [*SIZES.values(), replace(TRAINED, size="paper")], ids=[*SIZES, "other"])
def test_settings_survive_json_and_the_command_line(settings: Pretrain) -> None:
    again = from_json(to_json(RunSettings.of(settings)))
    assert RunSettings.of(replace(SIZES["tiny"], factors="video:d:7 augmentation:i:2")).batch_size == 7
    assert again == RunSettings.of(settings)
    assert hash(again) == hash(RunSettings.of(settings))  # fails for lists in place of tuples
    changed = replace(settings, seed=3, split="-x", overwrite=True, optimization=Optimization("adamw", 0.1 + 0.2))
    name, *arguments = command_of(changed)
    assert name == "pretrain" and parse_arguments(arguments) == changed


@pytest.mark.parametrize(
    ("changes", "folder"),
    [
        ({}, "runs/folder-l"),
        ({"preset": "text-b", "seed": 3}, "runs/folder-text-b-seed3"),
        ({"factors": f" {MINE.replace('video:d', 'video:d:16')} ", "seed": 1},
         "runs/folder-time_shift-d-2-modality-i-2-differs-time_reversal-i-2-seed1"),
        ({"factors": "video:d rotation:d:2 augmentation:i:2"}, "runs/folder-rotation-d-2-augmentation-i-2"),
        ({"factors": "video:d speed(1,4):i:2 augmentation:i:1"}, "runs/folder-speed-1,4-i-2"),
        ({"factors": MINE, "out": Path("x"), "seed": 1}, "x"),
    ],
)  # fmt: skip
def test_the_default_folder_names_the_composition_and_the_seed(changes: dict, folder: str) -> None:
    assert replace(Pretrain(dataset="folder"), **changes).run_folder == Path(folder)


def test_differences_list_only_settings_that_affect_results() -> None:
    tiny = SIZES["tiny"]
    other = replace(
        tiny, preset="l", factors="video:d", network=replace(tiny.network, dropout=0.5), out=Path("x"), threads=3,
        loading=Loading(9),
    )  # fmt: skip
    assert differences(decisive(tiny), decisive(tiny)) == []
    run = RunSettings.of(tiny)
    made = [replace(run, network=replace(run.network, video=OwnNetwork(name, 8, ()))) for name in ("a.py:A", "b:B()")]
    assert [text.partition(" was")[0] for text in differences(*map(decisive, made))] == ["network.video"]
    expected = ["composition was l, now video:d", "network.dropout was 0.0, now 0.5", "threads was 0, now 3"]
    assert differences(decisive(tiny), decisive(other)) == expected
    assert differences(decisive(tiny), decisive(other), ignored=("threads", "composition")) == expected[1:2]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        *(
            (text, "^this text holds no settings of this version")
            for text in ("", "{", "[]", "3", "[" * 100_000, json.dumps(TEXT | {"temperature": 10**400}))
        ),
        ({"rho": 1, "zoom": 2}, r"\(unknown: rho, zoom\); use the version that wrote it"),
        ({"clip": {"frames": 8, "zoom": 2}}, r"\(unknown: clip\.zoom\)"),
        ({"seed": True}, r"\(seed is True instead of int\)"),
        ({"device": "tpu"}, r"\(device is 'tpu' instead of one of cpu, cuda\)"),
        ({"temperature": 0.0}, r"\(--temperature is 0\.0; it must be above 0\)"),
        ({"augmentation": TEXT["augmentation"] | {"scale": [36]}}, r"scale is \[36\] instead of a list of 2"),
        ({"network": TEXT["network"] | {"widths": ["a"]}}, r"network\.widths is 'a' instead of int\)"),
    ],
)
def test_what_holds_no_settings_of_this_version_gives_one_message(text: str | dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        from_json(text if isinstance(text, str) else json.dumps(TEXT | text))


def test_a_setting_that_is_missing_has_its_default_and_one_without_is_named() -> None:
    """So a new setting makes no checkpoint useless."""
    older = {name: value for name, value in TEXT.items() if name != "temperature"}
    assert from_json(json.dumps(older)) == from_json(json.dumps(TEXT))
    with pytest.raises(UserError, match=r"\(missing: device\)"):
        from_json(json.dumps({name: value for name, value in TEXT.items() if name != "device"}))
