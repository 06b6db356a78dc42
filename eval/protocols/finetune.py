"""Finetuning of a network on labels (table 4, section A.3.6)."""

from gdt.eval.folds import Fold
from gdt.eval.jobs import Job, Outcome
from gdt.eval.training import Finetuning


def finetune(job: Job, fold: Fold) -> Outcome:
    """Top-1 and top-5 accuracy of the finetuned network, of videos and of clips."""
    trained = job.subject.trained
    recipe = Finetuning.recipe_of(job.settings, trained)
    (modality,) = job.settings.modalities
    eval_set = job.eval_set
    run = Finetuning(
        trained,
        eval_set.index,
        fold,
        recipe,
        job.settings.seed,
        job.device,
        job.folder,
        modality,
        eval_set.dataset,
        eval_set.fingerprint,
    )
    metrics = run.run(f"finetune {job.subject.name_on(fold)}")
    return Outcome(metrics, {name: str(value) for name, value in vars(recipe).items()})
