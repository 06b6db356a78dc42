"""The command line of the studies."""

from __future__ import annotations

from collections.abc import Sequence

from gdt.common.variables import Variables
from gdt.eval import command
from gdt.studies.figures.settings import Figures
from gdt.studies.settings import Claim, ClaimPredictions, Grid, Predictions
from gdt.studies.theorem.settings import Theorem

COMMANDS = {
    "claim": command.Command(Claim, "gdt.studies.claim:claim"),
    "claim-predictions": command.Command(ClaimPredictions, "gdt.studies.claim_predictions:claim_predictions"),
    "figures": command.Command(Figures, "gdt.studies.figures.draw:figures"),
    "grid": command.Command(Grid, "gdt.studies.grid:grid"),
    "predictions": command.Command(Predictions, "gdt.studies.predictions:predictions"),
    "theorem": command.Command(Theorem, "gdt.studies.theorem.report:theorem"),
}


def main(arguments: Sequence[str]) -> None:
    what = "Study the paper's theorem, figures and claim, check predictions, prepare the GRID corpus."
    command.main(arguments, COMMANDS, "gdt study", what)


def options(arguments: Sequence[str]) -> Variables:
    return command.options(arguments, COMMANDS)
