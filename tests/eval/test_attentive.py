"""The attentive probe: attention against a loop, a frozen trunk, and its result among others."""

import math
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from gdt.eval.protocols.attentive import Attentive, AttentiveProbe
from gdt.eval.settings import Downstream
from gdt.eval.subjects import FINETUNED
from gdt.eval.training import Recipe
from gdt.pipeline.leaves import Clip
from gdt.pipeline.transformations.augmentation import Augmentation
from gdt.train.models.backbone import Backbone
from gdt.train.trained import Trained
from tests.eval.test_finetune import Task, task, trained  # noqa: F401 - fixtures
from tests.pipeline.test_loader import CPU


class Maps(Backbone):
    """Clips are maps already."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(()))

    def maps(self, x: Tensor) -> Tensor:
        return x * self.scale


def test_the_query_attends_to_every_position() -> None:
    torch.manual_seed(0)
    probe, x = Attentive(Maps(), 128, 3).eval(), torch.randn(2, 128, 3, 2, 2)
    weights, bias = probe.attention.in_proj_weight, probe.attention.in_proj_bias
    found = probe.requires_grad_(False)(x)
    for clip in range(2):
        places = [probe.positions(x[clip, :, t, i, j]) for t in range(3) for i in range(2) for j in range(2)]
        query = probe.query[0, 0]
        q, ks, vs = (
            weights[:128] @ query + bias[:128],
            [weights[128:256] @ p + bias[128:256] for p in places],
            [weights[256:] @ p + bias[256:] for p in places],
        )
        heads = []
        for head in (slice(0, 64), slice(64, 128)):
            shares = torch.tensor([math.exp(float(q[head] @ k[head]) / 8) for k in ks])
            heads.append(sum(share * v[head] for share, v in zip(shares / shares.sum(), vs, strict=True)))
        out = query + probe.attention.out_proj(torch.cat(heads))
        assert torch.allclose(found[clip], probe.classifier(out + probe.mlp(probe.pooled(out))), atol=1e-5)
    order = torch.randperm(3)
    assert torch.allclose(probe(x[:, :, order]), found, atol=1e-5)


def test_the_trunk_stays_and_the_rest_learns(
    trained: Trained, task: Task, tmp_path: Path  # noqa: F811
) -> None:  # fmt: skip
    recipe = AttentiveProbe.recipe_of(Downstream(clips=2, epochs=3, clips_per_epoch=2), trained)
    assert (recipe.lr, recipe.clip, Recipe().clip.frames) == (1e-3, trained.settings.clip, 32)
    larger = replace(trained.settings, size="paper", clip=Clip(size=160), augmentation=Augmentation(scale=(176, 200)))
    of_larger = replace(trained, record=replace(trained.record, settings=larger))
    cropped = AttentiveProbe.recipe_of(Downstream(clips=2), of_larger)
    assert (cropped.clip.size, cropped.augmentation.scale) == (160, (176, 200))
    run = AttentiveProbe(trained, *task, replace(recipe, lr=0.01, batch=16), 0, CPU, tmp_path)
    before = {name: value.clone() for name, value in run.model.state_dict().items()}
    found = run.run("x")
    assert list(found) == ["attentive top-1"] and len(found["attentive top-1"].answers) == len(task[1].queries)
    for name, value in run.model.state_dict().items():
        assert torch.equal(value, before[name]) == name.startswith("base."), name
    assert not (tmp_path / FINETUNED).exists()
