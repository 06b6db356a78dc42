"""Finetuning of a network on labels (table 4, section A.3.6)."""

from pathlib import Path

import numpy as np
from torch import Tensor, nn

from gdt.eval.classification import top_k
from gdt.eval.evaluator import Evaluator, Outcome
from gdt.eval.folds import Fold
from gdt.eval.metrics import Measured
from gdt.eval.subjects import FINETUNED, Subject
from gdt.eval.training import ClassifierTraining, train_and_test
from gdt.train.models.foreign import Foreign, outputs_of
from gdt.train.weights import OUTPUTS


def finetune(evaluator: Evaluator, model: Subject, fold: Fold, folder: Path) -> Outcome:
    """Top-1 and top-5 accuracy of the finetuned network, of videos and of clips."""
    return train_and_test(Finetuning, evaluator, model, fold, folder)


class Classifier(nn.Module):
    """A trunk with a linear layer, named as in the published finetuned checkpoints."""

    def __init__(self, base: nn.Module, dim: int, classes: int) -> None:
        super().__init__()
        self.base = base
        self.classifier = nn.Linear(dim, classes)
        nn.init.orthogonal_(self.classifier.weight)
        nn.init.zeros_(self.classifier.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.base(x))


class Finetuning(ClassifierTraining):
    """Trains the whole network, and keeps it."""

    name = "finetune"
    classifier = Classifier

    def test(self, name: str) -> dict[str, Measured]:
        """Top-1 and top-5 accuracy of videos, whose clips are averaged, and of clips."""
        target = self.test_target
        per_video = self.recipe.test_clips
        videos, clips = self.scores(name)
        of_videos = top_k(videos, target, (1, 5))
        of_clips = top_k(clips, np.repeat(target, per_video), (1, 5))
        # the clips of a video are not independent: they count as one answer in the interval
        metrics = {f"{self.name} top-{k}": measured for k, measured in of_videos.items()}
        for k, measured in of_clips.items():
            answers = measured.answers.reshape(-1, per_video).mean(1)
            metrics[f"clip top-{k}"] = Measured(measured.metric._replace(answers=len(target)), answers)
        return metrics

    def keep(self) -> None:
        """Save the finetuned weights, which --ckpt reads."""
        weights = {name: value.cpu() for name, value in self.model.state_dict().items()}
        computed = {}
        if isinstance(self.model.base, Foreign):
            computed = {self.modality: outputs_of(self.model.base, self.modality, self.pretrained_clip).tolist()}
        self.write(FINETUNED, {"model": weights, "epoch": self.recipe.epochs, OUTPUTS: computed} | self.metadata)
