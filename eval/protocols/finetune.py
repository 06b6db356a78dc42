"""Finetuning of a network on labels (table 4, section A.3.6)."""

from gdt.eval.folds import Fold
from gdt.eval.jobs import Job, Outcome
from gdt.eval.training import Finetuning


def finetune(job: Job, fold: Fold) -> Outcome:
    """Top-1 and top-5 accuracy of the finetuned network, of videos and of clips."""
    recipe = Finetuning.recipe_of(job.settings, job.subject.trained)
    return Outcome(Finetuning(job, fold, recipe).run(), {name: str(value) for name, value in vars(recipe).items()})
