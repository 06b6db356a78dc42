"""The command line: `gdt <command>`, also as `python -m gdt <command>`.

A command's module is imported only when the command runs, and torch and DALI only when something is computed.
"""

import atexit
import contextlib
import faulthandler
import gc
import importlib.metadata
import io
import os
import signal
import sys
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, NamedTuple

from gdt.common.errors import UserError, exit_with_message, unknown
from gdt.common.machine import leave_terminal


class Command(NamedTuple):
    """A command. Names are module:attribute below `gdt`."""

    settings: str
    """Its settings, whose fields are the options; `require_inputs` refuses what can be refused without torch."""
    run: str
    """The function that takes the settings and returns what to print; imported after the options are parsed."""
    help: str
    parse: str = ""
    """The function that parses the arguments, if defaults depend on them."""


COMMANDS = {
    "preprocess": Command("preprocess.settings:Preprocess", "preprocess.stage:command", "turn videos into shards"),
    "verify": Command("preprocess.settings:Verify", "preprocess.verify:command", "check shards for damage"),
    "generate": Command(
        "preprocess.settings:Generate", "preprocess.synthetic.files:command", "make labelled videos to try it on"
    ),
    "pretrain": Command(
        "train.settings:Pretrain",
        "train.pretrain:command",
        "train a model on shards",
        "train.options:parse_arguments",
    ),
    "evaluate": Command(
        "eval.settings:Downstream",
        "eval.downstream:downstream",
        "retrieval, few-shot, linear probes, finetuning, cross-modal recall",
    ),
    "ablation": Command(
        "eval.ablation.settings:Ablation", "eval.ablation.runs:ablation", "pretrain and compare compositions"
    ),
    "factors": Command(
        "eval.factors.settings:Factors", "eval.factors.evaluate:factors", "measure what moves the features"
    ),
    "embed": Command("eval.settings:Embed", "eval.embed:embed", "write features of videos to a file"),
    "nearest": Command("eval.settings:Nearest", "eval.nearest:nearest", "find videos similar to one"),
    "duplicates": Command(
        "eval.settings:Duplicates", "eval.duplicates:duplicates", "find videos that are nearly the same"
    ),
    "export": Command("eval.settings:Export", "eval.export:export", "write weights for other programs"),
    "report": Command("eval.settings:Report", "eval.page.page:report", "write one page of all runs"),
    "show-batch": Command("eval.settings:ShowBatch", "eval.show:show_batch", "draw the clips of one video"),
    "show-tree": Command("eval.settings:ShowTree", "eval.show:show_tree", "draw a composition and its pairs"),
}
_LIST = "\n".join(f"  {name:12} {command.help}" for name, command in COMMANDS.items())
_HELP = f"""usage: gdt <command> [options]

Pretrain video and audio networks on compositions of transformations.

commands:
{_LIST}

'gdt <command> --help' lists the options of a command; 'gdt --version' prints the version."""


def console() -> None:
    """Run the command line."""
    _open_standard_streams()
    faulthandler.enable()  # says where compiled code crashed
    gc.disable()  # while modules are imported, whose objects stay
    atexit.register(gc.freeze)  # a last collection of these takes half a second
    exit_with_message(_main)


def _open_standard_streams() -> None:
    """Open the null device as those that are closed, as under cron: other files must not take their place."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)
    os.close(number)
    sys.stdin = sys.stdin or os.fdopen(0)
    sys.stdout = sys.stdout or os.fdopen(1, "w")
    sys.stderr = sys.stderr or os.fdopen(2, "w")


def _main() -> None:
    name, *arguments = sys.argv[1:] or ["--help"]
    if name in ("-h", "--help"):
        print(_HELP)
    elif name == "--version":
        print(f"gdt {importlib.metadata.version('gdt-video')}")
    elif name in COMMANDS:
        try:
            Path.cwd()
        except FileNotFoundError:
            raise UserError("the current folder has been removed; run the command in another") from None
        run(name, arguments)
    else:
        raise unknown("command", name, COMMANDS)


def run(name: str, arguments: list[str]) -> None:
    """Parse a command's options, run it, and print what it returns."""
    first = os.environ.get("RANK", "0") == "0"
    sys.orig_argv[:] = ["gdt", name, *arguments]  # recorded as the command of the run
    # of several processes, the first says what is wrong with the options
    with contextlib.nullcontext() if first else contextlib.redirect_stderr(io.StringIO()):
        settings = parse_command(name, arguments)
    if hasattr(settings, "require_inputs"):
        settings.require_inputs()
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_DFL:  # nohup ignores SIGHUP
            signal.signal(number, _stop)
    command = below_gdt(COMMANDS[name].run)
    gc.freeze()  # else the first collection visits all that was imported
    gc.enable()
    text = command(settings)
    if text:
        print(text)


def _stop(number: int, frame: object) -> None:
    """End with the clean-up of an exception."""
    if number == signal.SIGHUP:
        leave_terminal()
    sys.exit(128 + number)


def parse_command(name: str, arguments: list[str]) -> Any:
    """The settings of a command. Exits like `common.commandline.parse`."""
    from gdt.common.commandline import options, parse

    command = COMMANDS[name]
    kind = below_gdt(command.settings)
    try:
        return below_gdt(command.parse)(arguments) if command.parse else parse(kind, f"gdt {name}", arguments)
    except SystemExit as error:
        if error.code:
            for word in arguments:
                option = word.partition("=")[0].replace("_", "-")
                having = [key for key, each in COMMANDS.items() if option in options(below_gdt(each.settings))]
                if having and name not in having:
                    print(f"{option} is an option of {', '.join(having)}", file=sys.stderr)
        raise


def below_gdt(name: str) -> Any:
    """What a name of `Command` stands for."""
    return resolve_name(f"gdt.{name}")
