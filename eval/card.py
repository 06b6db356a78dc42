"""A folder in the form of the Hugging Face hub: weights, config.json and a model card."""

import json
import shlex
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from gdt.common.commandline import arguments_of
from gdt.common.files import write_text
from gdt.common.folders import Folder
from gdt.eval import results
from gdt.eval.results import RANDOM, RESULTS, Answers, Result
from gdt.eval.settings import Downstream
from gdt.eval.tables import Table, pivot, row_label
from gdt.eval.templates import filled
from gdt.train.hub import EXPORTED, is_on_hub
from gdt.train.trained import Trained

CONFIG = "config.json"
CARD = "README.md"


def write(folder: Path, trained: Trained, inputs: str) -> None:
    """Write the folder; `inputs` says what the model expects. Raises OSError."""
    settings = trained.settings
    # without paths of this machine
    paths: dict[str, Any] = {name: None for name, value in vars(settings).items() if isinstance(value, Path | Folder)}
    if settings.init and not is_on_hub(settings.init):
        paths["init"] = Path(settings.init).name
    record = replace(trained.record, settings=replace(settings, **paths))
    replace(trained, record=record).write(folder / EXPORTED)
    config = {
        "model_type": "gdt",
        "modalities": trained.model.modalities,
        "network": asdict(trained.model.network),
        "clip": asdict(trained.inputs.clip),
        "short_side": trained.inputs.short_side,
        "statistics": asdict(trained.inputs.statistics),
        "fps": trained.inputs.fps,
        "steps": trained.step,
    }
    write_text(folder / CONFIG, json.dumps(config, indent=2) + "\n")
    write_text(folder / CARD, _card(folder.resolve().name, trained, inputs))


def _card(name: str, trained: Trained, inputs: str) -> str:
    arguments = [json.dumps(name)]
    for modality, network in trained.model.network.own.items():
        text = network.name if network.name.isidentifier() else json.dumps(network.name)  # the object, or its name
        arguments.append(f"{modality}_network={text}")
    tables, commands = _results(trained, name)
    return filled(
        "card.md.j2",
        name=name,
        trained=trained,
        composition=row_label(trained.name),
        init=Path(trained.settings.init or "").name,
        inputs=inputs,
        arguments=arguments,
        tables=tables,
        commands=commands,
    )


def _results(trained: Trained, name: str) -> tuple[list[Table], list[str]]:
    """What evaluations in runs say of a model, beside random weights, and the commands that repeat them."""
    weights = trained.digest()
    every: list[Result] = []
    known: dict[str, Answers] = {}
    for path in sorted(Path("runs").rglob(RESULTS)):
        rows = results.read(path)
        every += rows
        of_weights = (row for row in rows if row.weights == weights or row.preset == RANDOM)
        known |= results.all_answers(path.parent, of_weights)
    # of one protocol with several settings, the last: a row must not average them
    evaluated = results.current([row for row in every if row.weights == weights and row.preset != RANDOM])
    shared = {(row.shared, row.checkpoint) for row in evaluated}
    random = [row for row in every if row.preset == RANDOM and (row.shared, row.checkpoint) in shared]
    own = [part for modality, net in trained.model.network.own.items() for part in (f"--{modality}-network", net.name)]
    return pivot([*random, *evaluated], answers=known), _commands(evaluated, name, own)


def _commands(rows: Sequence[Result], folder: str, own: Sequence[str]) -> list[str]:
    """The commands that repeat results with the exported folder; `own` are options of networks of the user's own."""
    protocols: dict[tuple[str, ...], dict[str, None]] = {}  # of each command
    for row in rows:
        asked: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in row.settings.items()
        }
        settings = Downstream((folder,), row.dataset, label=row.label, query_split=row.query_split, **asked)
        words = ["--word2vec", "FILE"] if row.words else []
        protocols.setdefault((*arguments_of(settings, Downstream()), *words, *own), {})[row.protocol] = None
    return [shlex.join(["gdt", "evaluate", *shared, "--protocols", *names]) for shared, names in protocols.items()]
