"""Finetuning of a network on labels (table 4, section A.3.6)."""

from pathlib import Path

from gdt.eval.evaluator import Evaluator, Outcome
from gdt.eval.folds import Fold
from gdt.eval.subjects import Subject
from gdt.eval.training import Finetuning


def finetune(evaluator: Evaluator, model: Subject, fold: Fold, folder: Path) -> Outcome:
    """Top-1 and top-5 accuracy of the finetuned network, of videos and of clips; its files are in `folder`."""
    settings = evaluator.settings
    eval_set = evaluator.eval_set
    recipe = Finetuning.recipe_of(settings, model.trained)
    (modality,) = settings.modalities
    run = Finetuning(
        model.trained,
        eval_set.index,
        fold,
        recipe,
        settings.seed,
        evaluator.device,
        folder,
        modality,
        eval_set.dataset,
        eval_set.fingerprint,
    )
    metrics = run.run(f"finetune {model.name_on(fold)}")
    return Outcome(metrics, {name: str(value) for name, value in vars(recipe).items()})
