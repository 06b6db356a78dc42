"""A folder in the form of the Hugging Face hub: weights, config.json and a model card."""

import json
import re
import shlex
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from gdt.common.files import write_text
from gdt.common.folders import Folder
from gdt.eval import answers, results
from gdt.eval.answers import Answers
from gdt.eval.results import RANDOM, RESULTS, Key, Result
from gdt.eval.tables import pivot, row_label
from gdt.train import portable
from gdt.train.hub import EXPORTED, is_on_hub
from gdt.train.trained import Trained

CONFIG = "config.json"
CARD = "README.md"
_CARD = """\
---
library_name: gdt
license: other
license_name: fill-in  # the licence that you publish under
pipeline_tag: feature-extraction
tags: [{tags}, self-supervised-learning, contrastive-learning]
---

# {name}

Networks for {modalities}, pretrained with [compositions of transformations](https://arxiv.org/abs/2003.04298).

{facts}

```python
import gdt

model = gdt.load({load})  # this folder; or "hf://OWNER/{name}", which needs pip install "gdt-video[hub]"
model.embed("video.mp4").features
```

## Results

{results}
"""


def write(folder: Path, trained: Trained, inputs: str) -> None:
    """Write the folder; `inputs` says what the model expects. Raises OSError."""
    settings = trained.settings
    # without paths of this machine
    paths: dict[str, Any] = {name: None for name, value in vars(settings).items() if isinstance(value, Path | Folder)}
    if settings.init and not is_on_hub(settings.init):
        paths["init"] = Path(settings.init).name
    record = replace(trained.record, settings=replace(settings, **paths))
    portable.write(folder / EXPORTED, replace(trained, record=record))
    config = {
        "model_type": "gdt",
        "modalities": trained.model.modalities,
        "network": asdict(trained.model.network),
        "clip": asdict(trained.inputs.clip),
        "short_side": trained.inputs.short_side,
        "statistics": trained.inputs.statistics.to_numbers(),
        "fps": trained.inputs.fps,
        "steps": trained.step,
    }
    write_text(folder / CONFIG, json.dumps(config, indent=2) + "\n")
    write_text(folder / CARD, _card(folder.resolve().name, trained, inputs))


def _card(name: str, trained: Trained, inputs: str) -> str:
    settings = trained.settings
    modalities = trained.model.modalities
    if trained.origin:
        facts = {"weights": str(trained.origin)}
    else:
        shards = trained.record.data.fingerprint[:12] or "unknown"
        facts = {
            "data": f"{settings.dataset or 'unknown'}, split {settings.split}, shards {shards}",
            "composition": row_label(trained.name),
            "training": f"{trained.step:,} steps of {settings.batch_size} videos, seed {settings.seed}",
        }
        if settings.init:
            facts["initial weights"] = Path(settings.init).name
    facts["inputs"] = inputs
    arguments = [json.dumps(name)]
    for modality, network in trained.model.network.own.items():
        text = network.name if network.name.isidentifier() else json.dumps(network.name)  # the object, or its name
        arguments.append(f"{modality}_network={text}")
    return _CARD.format(
        name=name,
        load=", ".join(arguments),
        tags=", ".join(modalities),
        modalities=" and ".join(modalities),
        facts="\n".join(f"- {key}: {value}" for key, value in facts.items()),
        results=_results(trained.digest(), name),
    )


def _results(weights: str, name: str) -> str:
    """What evaluations in runs say of these weights, beside random weights, and their commands."""
    every: list[Result] = []
    known: dict[Key, Answers] = {}
    for path in sorted(Path("runs").rglob(RESULTS)):
        rows = results.read(path)
        every += rows
        known |= answers.read_all(path.parent, (row for row in rows if row.weights == weights or row.preset == RANDOM))
    # of one protocol with several settings, the last: a row must not average them
    evaluated = results.latest([row for row in every if row.weights == weights and row.preset != RANDOM])
    if not evaluated:
        return "Not evaluated yet."
    conditions = {(row.conditions, row.checkpoint) for row in evaluated}
    random = [row for row in every if row.preset == RANDOM and (row.conditions, row.checkpoint) in conditions]
    tables = "\n\n".join(map(str, pivot([*random, *evaluated], answers=known)))
    commands = [_portable(row.provenance.get("command", ""), row.checkpoint, name) for row in evaluated]
    unique = "\n".join(dict.fromkeys(commands))
    return f"```text\n{tables}\n```\n\n```sh\n{unique}\n```"


def _portable(command: str, checkpoint: str, folder: str) -> str:
    """A command that evaluates the exported folder instead of its checkpoint.

    Of other absolute paths, also of those in JSON, which are of this machine, the last names are left.
    """
    whole_path = re.compile(rf"""(?<![^\s=,"'\[]){re.escape(checkpoint)}(?![^\s,"'\]])""")
    words = [whole_path.sub(lambda _: folder, word) for word in shlex.split(command)]
    if words[:2] == ["gdt", "evaluate"] and words == shlex.split(command):  # it took the latest checkpoint
        words += ["--ckpt", folder]
    words = [re.sub(r"""(?<![^\s=,"'])/(?:[^,"']*/)?(?=[^/,"'])""", "", word) for word in words]
    return shlex.join(words)
