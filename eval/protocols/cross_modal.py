"""Recall from one modality to another among held-out videos, which needs no labels."""

from gdt.common.errors import UserError
from gdt.eval.features import sameness
from gdt.eval.folds import Fold
from gdt.eval.jobs import Job, Outcome
from gdt.eval.metrics import measured
from gdt.pipeline.clips import usable
from gdt.train import recall


def cross_modal(job: Job, fold: Fold) -> Outcome:
    """R@k for every pair of modalities, among the queries that have all of them."""
    model = job.subject
    trained = model.trained
    settings = job.settings
    eval_set = job.eval_set
    modalities = model.embedded_modalities(eval_set.index, settings)
    if len(modalities) < 2:
        reason = "the videos have no sound"
        if trained.without_head:
            reason = f"it has no head for {' '.join(trained.without_head)}"
        elif eval_set.index.mel_count.any():
            reason = f"it was trained on {' and '.join(trained.model.modalities)}"
        raise UserError(
            f"cross-modal retrieval needs two modalities; {model.path} has {' '.join(modalities) or 'none'} for these "
            f"videos ({reason}; text needs --word2vec)"
        )
    index = eval_set.index
    clip = trained.settings.clip
    videos = fold.queries[usable(index, clip, modalities)[fold.queries]]
    if len(videos) < 2:
        raise UserError(
            f"cross-modal retrieval needs two videos with {' and '.join(modalities)} as long as a clip; the split "
            f"'{eval_set.split}' has {len(videos)} among its {len(fold.queries)} videos; evaluate on more or longer "
            "videos"
        )
    words = job.words if "text" in modalities else None
    embedded = recall.embed_videos(trained, index, videos, settings.clips, job.device, modalities, words)
    n = len(embedded.videos)
    if n < 2:
        raise UserError(
            f"cross-modal retrieval needs two videos with captions of known words, but the split "
            f"'{eval_set.split}' has {n}; evaluate on more videos, or preprocess with a word2vec file that has "
            "their words"
        )
    metrics = {
        f"{query} to {gallery} R@{k}": measured(correct, 100 * min(k, n) / n)
        for (query, gallery, k), correct in recall.hits(embedded.embeddings).items()
    }
    warning = ""
    if not model.random:
        warning = sameness({name: values.numpy() for name, values in embedded.embeddings.items()})
    return Outcome(metrics, queries=embedded.videos, warning=warning)
