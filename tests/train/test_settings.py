"""Settings as text and back, across versions and machines."""

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
from gdt.train.settings import SIZES, Optimization, Pretrain, differences, from_json, to_json

FIRST = """
{"dataset": "kinetics", "shards": "/data/shards", "split": "train", "preset": "e", "out": null,
 "videos_per_batch": 64, "epochs": 0, "steps": 600, "temperature": 0.07, "seed": 3,
 "clip": {"frames": 8, "stride": 4, "size": 32, "mel_frames": 99},
 "augmentation": {"scale": [36, 46], "center_crop": false, "flip": 0.5, "brightness": 0.4, "contrast": 0.4,
                  "saturation": 0.4, "hue": 0.1, "volume": 0.1, "frequency_mask": 3, "time_mask": 6},
 "network": {"stem": 16, "stem_middle": 16, "widths": [16, 32, 64, 128], "depth": 1, "slim": true, "audio_stem": 16,
             "audio_widths": [16, 32, 64], "hidden": 256, "embedding": 128, "dropout": 0.0},
 "optimization": {"method": "adamw", "rate": 0.003, "per_videos": 0, "momentum": 0.9, "weight_decay": 0.01,
                  "warmup_epochs": 0, "decay": 0.25},
 "loading": {"threads": 1, "readers": 4, "clips_at_once": 32, "prefetch": 2},
 "device": "cpu", "precision": "float32", "threads": 1, "checkpoint_minutes": 2.0, "checkpoint_steps": 0}
"""
"""The settings of a run of the first version that made checkpoints; every later version must read them."""

OTHER = Pretrain(
    dataset="mine", shards=Path("/else where/é"), split="val", factors="video:d freeze:d:2", factors_from=Path("no.py"),
    factors_digest="0123", shuffle_shards=4, word2vec=Path("no.bin"), init=Path("no.pt"),
    out=Path("run"), videos_per_batch=6, epochs=0, steps=9, temperature=0.5, seed=7,
    clip=Clip(5, 6, 64, 98, 17, 2.5),
    augmentation=Augmentation((90, 99), True, 0.25, 0.1, 0.2, 0.3, 0.15, 0.05, 4, 5),
    network=Network(8, 9, (1, 2, 3), 3, True, 4, (5, 6), 50, 12, 10, 11, 0.125),
    optimization=Optimization("adamw", 1e-7, 3, 0.8, 0.0, 0.5, 0.75),
    loading=Loading(3, "cpu", False, 2, 9, 7, 5, "skip"),
    device="cuda", precision="bfloat16", threads=2, checkpoint_minutes=0.1, checkpoint_steps=11, norm_leaves=3,
    chunk_leaves=6, probe_every=3, probe_videos=40, probe_split="test", wandb="mine", profile=4, compile="on",
)  # fmt: skip
"""No value is a default. The file of factors and, on most machines, the GPU are not there."""


@pytest.mark.parametrize("settings", [*(settings for _, settings in SIZES.values()), OTHER], ids=[*SIZES, "other"])
def test_settings_come_back_as_they_were(settings: Pretrain) -> None:
    again = from_json(to_json(settings))
    assert again == settings
    assert hash(again) == hash(settings)  # lists in place of tuples would have none


def test_the_other_settings_differ_from_the_defaults_everywhere() -> None:
    def differ(one: dict, other: dict) -> bool:
        return all(
            differ(one[key], other[key]) if isinstance(one[key], dict) else one[key] != other[key] for key in one
        )

    plain = json.loads(to_json(OTHER)), json.loads(to_json(replace(Pretrain(), loading=Loading(threads=99))))
    assert plain[0].pop("preset") == plain[1].pop("preset")  # of which the factors are another name
    assert differ(*plain)


def test_a_run_from_before_a_setting_did_what_was_done_then() -> None:
    settings = from_json(FIRST)
    assert (settings.factors, settings.factors_from, settings.loading.damaged) == ("", None, "stop")
    tiny = SIZES["tiny"][1]
    assert settings == replace(
        tiny, dataset="kinetics", shards=Path("/data/shards"), preset="e", videos_per_batch=64, seed=3,
        network=replace(tiny.network, text_width=2048), device="cpu", precision="float32", threads=1, norm_leaves=0,
        loading=replace(tiny.loading, readers=4),
    )  # fmt: skip
    changed = json.loads(FIRST)
    del changed["augmentation"]["hue"]  # always there, so a text without it is none of ours: its default has changed
    with pytest.raises(
        UserError, match=r"x\.pt holds settings of another version .*\(missing: augmentation\.hue\); use"
    ):
        from_json(json.dumps(changed), "x.pt")


def test_a_run_from_before_a_setting_goes_on_with_what_was_done_then() -> None:
    settings = from_json(FIRST)
    assert differences(FIRST, to_json(settings)) == []
    # which had no effect without words
    assert differences(FIRST, to_json(replace(settings, network=replace(settings.network, text_width=256)))) == []
    assert differences(FIRST, to_json(replace(settings, factors="video:d", preset="l"))) == [
        "factors was , now video:d",
        "preset was e, now l",
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rho": 1, "zoom": 2}, r"\(unknown: rho, zoom\); use the version that wrote it"),
        ({"clip": {"frames": 8, "stride": 4, "size": 32, "mel_frames": 99, "rate": 2}}, r"\(unknown: clip\.rate\)"),
        ({"clip": {"frames": 8}}, r"\(missing: clip\.stride, clip\.size, clip\.mel_frames\)"),
        ({"clip": None}, r"\(clip is None instead of the fields of Clip\)"),
        ({"seed": "3"}, r"\(seed is '3' instead of int\)"),
        ({"seed": True}, r"\(seed is True instead of int\)"),
        ({"seed": 1.5}, r"\(seed is 1\.5 instead of int\)"),
        ({"temperature": None}, r"\(temperature is None instead of float\)"),
        ({"shards": 5}, r"\(shards is 5 instead of Path\)"),
        ({"device": "tpu"}, r"\(device is 'tpu' instead of one of auto, cpu, cuda\)"),
        ({"temperature": 0.0}, r"\(--temperature is 0\.0; it must be above 0\)"),
        (
            {"augmentation": json.loads(FIRST)["augmentation"] | {"scale": [36]}},
            r"scale is \[36\] instead of a list of 2",
        ),
        ({"network": json.loads(FIRST)["network"] | {"widths": 16}}, r"network\.widths is 16 instead of a list\)"),
        ({"network": json.loads(FIRST)["network"] | {"widths": ["a"]}}, r"network\.widths is 'a' instead of int\)"),
    ],
)
def test_settings_of_another_version_are_one_sentence(change: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        from_json(json.dumps(json.loads(FIRST) | change))


@pytest.mark.parametrize("text", ["", "{", "[]", "3"])
def test_a_text_that_holds_no_settings_is_one_sentence(text: str) -> None:
    with pytest.raises(UserError, match="this text holds settings of another version"):
        from_json(text)
