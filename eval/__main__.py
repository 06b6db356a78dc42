"""python -m eval {downstream,ablation,search,embed,nearest,export}, pictures and tables of models
{factors,figures,report}, and what needs none {show-batch,show-tree,theorem}.
"""

from __future__ import annotations

from pipeline.errors import exit_with_message, quiet_until_ready
from pipeline.supervise import supervised


def main() -> None:
    from eval.command import main as command  # torch and DALI, which the parent does not need

    exit_with_message(command)


def console() -> None:
    quiet_until_ready()
    supervised(main, "run the same command again")


if __name__ == "__main__":
    console()
