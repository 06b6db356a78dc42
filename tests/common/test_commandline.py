"""Settings as options and back."""

from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

from gdt.common.commandline import arguments_of, options, parse
from gdt.common.folders import Folder
from gdt.eval.settings import Downstream
from gdt.pipeline.leaves import Clip
from gdt.pipeline.sources.loading import Loading
from gdt.pipeline.transformations.augmentation import Augmentation
from gdt.train.models.network import Network, OwnNetworks
from gdt.train.schedule import Optimization
from gdt.train.settings import Pretrain

HERE = Path("/a b/-é")
TRAINED = Pretrain(
    "-d", Folder("s3://bucket/x"), "-x", 1, "e", "", "tiny", HERE, HERE, str(HERE), HERE, True, 2, 3, 0, 0.5, 4, 5,
    "on",
    Clip(5, 6, 64, 98, 17, 2.5), Augmentation((90, 99), True, 0.1, 0.2, 0.3, 0.5, 0.1, 0.2, 4, 5),
    Network(widths=(1, 2, 3), depth=1, hidden=2, embedding=3, dropout=0.1),
    OwnNetworks(("a.py:Net(x=1)",), ("b.py:Net",)),
    Optimization("adamw", 0.1 + 0.2, 1, 0.5, 0.25, 2.5, 0.75), Loading(1, "cpu", 2, 3, 4, 5), "cpu", "float64", "off",
    6, 7, 8, "-w", "5GB",
)  # fmt: skip
TESTED = Downstream(
    (str(HERE), str(HERE)), "-d", Folder(HERE), ("finetune", "few-shot", "linear", "cross-modal"), (1, 2), HERE, "-l,m",
    "-g", "-q", 3, "only", ("audio",), 4, 0.5, 5, 6, 0.25, 7, 8, HERE, False, "5GB",
    own_networks=OwnNetworks(("a.py:Net",), ("b.py:Net", "c:Net")),
)  # fmt: skip


@pytest.mark.parametrize(
    "several",
    [(TRAINED, replace(TRAINED, preset="l", factors="video:d x:d:2", epochs=0, steps=9)), (TESTED,)],
    ids=["Pretrain", "Downstream"],
)
def test_every_setting_becomes_an_option_that_means_it(several: tuple[Any, ...]) -> None:
    kind = type(several[0])
    default = kind()
    for changed in several:
        assert parse(kind, "gdt", arguments_of(changed, default)) == changed
    names = options(kind).values()
    assert all(any(attrgetter(name)(x) != attrgetter(name)(default) for x in several) for name in names)


def test_what_is_on_or_set_by_default_can_be_taken_off() -> None:
    on = replace(Pretrain(), overwrite=True, augmentation=Augmentation(center_crop=True))
    assert parse(Pretrain, "gdt", arguments_of(Pretrain(), on), on) == Pretrain()
    assert (
        parse(Downstream, "gdt", arguments_of(Downstream(), Downstream((str(HERE),))), Downstream((str(HERE),)))
        == Downstream()
    )
