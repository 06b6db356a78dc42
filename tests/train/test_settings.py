"""Settings to text and back, across versions and machines."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from gdt.common.errors import UserError
from gdt.pipeline.leaves import Clip
from gdt.pipeline.sources.loading import Loading
from gdt.pipeline.transformations.augmentation import Augmentation
from gdt.train.models.network import Network
from gdt.train.run import differences, from_json, to_json
from gdt.train.settings import SIZES, Optimization, Pretrain

TEXT = json.loads(to_json(SIZES["tiny"]))
OTHER = Pretrain(
    dataset="mine", shards=Path("/else where/é"), split="val", factors="video:d freeze:d:2", factors_from=Path("no.py"),
    factors_digest="0123", shuffle_shards=4, word2vec=Path("no.bin"), init=Path("no.pt"),
    name="first", overwrite=True, size="tiny", config=Path("a.json"), batch_size=6, steps=9, temperature=0.5, seed=7,
    clip=Clip(5, 6, 64, 98, 17, 2.5),
    augmentation=Augmentation((90, 99), True, 0.25, 0.1, 0.2, 0.3, 0.15, 0.05, 4, 5),
    network=Network("r2plus1d", 8, 9, (1, 2, 3), 3, True, 4, (5, 6), 50, 12, True, 10, 11, 0.125),
    optimization=Optimization("adamw", 1e-7, 3, 0.8, 0.0, 0.5, 0.75),
    loading=Loading(3, "cpu", 2, 9, 7, 5),
    device="cuda", precision="bfloat16", threads=2, checkpoint_minutes=0.1, checkpoint_steps=11, group_size=3,
    gradient_cache="off", probe_every=3, probe_videos=40, probe_split="test", wandb="mine",
    compile="on",
)  # fmt: skip
"""No value is a default. The file of factors does not exist; most machines do not have the GPU, either."""
MINE = "video:d time_shift:d:2 modality:i:2:differs time_reversal:i:2 augmentation:i:1"


@pytest.mark.parametrize("settings", [*SIZES.values(), OTHER], ids=[*SIZES, "other"])
def test_settings_survive_the_round_trip(settings: Pretrain) -> None:
    again = from_json(to_json(settings))
    assert again == settings
    assert hash(again) == hash(settings)  # fails for lists in place of tuples


def test_no_value_of_other_is_a_default() -> None:
    def differ(one: dict, other: dict) -> bool:
        return all(
            differ(one[key], other[key]) if isinstance(one[key], dict) else one[key] != other[key] for key in one
        )

    plain = json.loads(to_json(OTHER)), json.loads(to_json(replace(Pretrain(), loading=Loading(threads=99))))
    for name in ("preset", "epochs", "out"):  # factors, steps and name are set instead
        assert plain[0].pop(name) == plain[1].pop(name)
    assert [settings["network"].pop("backbone") for settings in plain] == ["r2plus1d"] * 2
    assert differ(*plain)


@pytest.mark.parametrize(
    ("changes", "folder"),
    [
        ({}, "runs/folder-l"),
        ({"preset": "text-b", "seed": 3}, "runs/folder-text-b-seed3"),
        ({"factors": MINE}, "runs/folder-time_shift-d-2-modality-i-2-differs-time_reversal-i-2"),
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
    assert differences(to_json(tiny), to_json(tiny)) == []
    expected = ["factors was , now video:d", "network.dropout was 0.0, now 0.5", "threads was 0, now 3"]
    assert differences(to_json(tiny), to_json(other)) == expected
    assert differences(to_json(tiny), to_json(other), ignored=("threads", "factors")) == expected[1:2]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rho": 1, "zoom": 2}, r"\(unknown: rho, zoom\); use the version that wrote it"),
        ({"clip": TEXT["clip"] | {"rate": 2}}, r"\(unknown: clip\.rate\)"),
        ({"clip": {"frames": 8}}, r"\(missing: clip\.stride, clip\.size, clip\.mel_frames, "),
        ({"clip": None}, r"\(clip is None instead of the fields of Clip\)"),
        ({"seed": "3"}, r"\(seed is '3' instead of int\)"),
        ({"seed": True}, r"\(seed is True instead of int\)"),
        ({"seed": 1.5}, r"\(seed is 1\.5 instead of int\)"),
        ({"temperature": None}, r"\(temperature is None instead of float\)"),
        ({"shards": 5}, r"\(shards is 5 instead of Path\)"),
        ({"device": "tpu"}, r"\(device is 'tpu' instead of one of auto, cpu, cuda\)"),
        ({"temperature": 0.0}, r"\(--temperature is 0\.0; it must be above 0\)"),
        (
            {"augmentation": TEXT["augmentation"] | {"scale": [36]}},
            r"scale is \[36\] instead of a list of 2",
        ),
        ({"network": TEXT["network"] | {"widths": 16}}, r"network\.widths is 16 instead of a list\)"),
        ({"network": TEXT["network"] | {"widths": ["a"]}}, r"network\.widths is 'a' instead of int\)"),
    ],
)
def test_settings_of_another_version_give_one_message(change: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        from_json(json.dumps(TEXT | change))


@pytest.mark.parametrize("text", ["", "{", "[]", "3"])
def test_a_text_without_settings_gives_one_message(text: str) -> None:
    with pytest.raises(UserError, match="this text holds no settings of this version"):
        from_json(text)
