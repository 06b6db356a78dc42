"""README and docs/: commands and Python run on small data, quoted errors come, links and names exist."""

from __future__ import annotations

import importlib
import importlib.util
import math
import re
import shlex
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest
import tyro

from gdt.cli import COMMANDS
from gdt.eval import command as evaluation
from gdt.eval.show_tree import partners
from gdt.pipeline import presets
from gdt.preprocess.stage import Preprocess
from gdt.train import command as training
from tests.conftest import ROOT, Run, commands_in
from tests.test_mistakes import make

pytestmark = pytest.mark.usefixtures("alone")
PAGES = ("README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")))
EVERYTHING = (*PAGES, "CONTRIBUTING.md", "CHANGELOG.md")
TEXT = {name: (ROOT / name).read_text() for name in EVERYTHING}
STUDIES = {"docs/benchmarks.md", "docs/results.md"}
"""Pages of experiments that take minutes to hours; their commands are parsed."""
GUIDES = tuple(name for name in PAGES if name not in STUDIES)
PARSED = {
    r"^make (demo|test|setup)$": "all of this, and minutes",
    r"^make bench": "minutes",
    r"GPUS=": "needs GPUs",
    r"SCHEDULER=": "needs other machines; tests/preprocess/test_cluster.py",
    r"DATASET=(kinetics|howto100m|ucf101|hmdb51)|^make eval-(ucf|hmdb)": "needs the data set; tests of its area",
    r"^make ablation |^gdt eval ablation ": "trains many times; tests/eval/test_ablation.py",
    r"DATASET=mine CKPT=\.\.\.": "names no file",
}
"""What is parsed instead of run, and why."""
SHORTER = {
    "pretrain": ["--steps", "2", "--batch-size", "4"], "eval downstream": ["--clips", "2"],
    "eval embed": ["--clips", "2"],
    "eval factors": ["--videos", "8", "--starts", "1", "--cv-folds", "2", "--split", "train"],
}  # fmt: skip
"""Options that make the commands short."""
ERRORS = {
    "torch finds no GPU": "pretrain tiny --dataset folder --device cuda",
    "without sound": "pretrain tiny --dataset silent",
    "with different settings": "pretrain tiny --dataset folder --steps 2 --batch-size 8",
}
"""Quoted errors, and the commands that end with them."""


def blocks(page: str) -> list[tuple[str, str]]:
    """(language, text) of every block of a page."""
    return re.findall(r"^```(\w*)\n(.*?)^```$", TEXT[page], re.M | re.S)


def shell_lines(page: str) -> list[str]:
    """The commands of a page without comments."""
    text = "".join(block for kind, block in blocks(page) if kind == "sh")
    text = text.replace("\\\n", " ")
    return [line for line in (re.sub(r"\s+#.*$", "", line) for line in text.splitlines()) if line.strip()]


def prose(page: str) -> str:
    return re.sub(r"^```.*?^```$", "", TEXT[page], flags=re.M | re.S)


def parsed_only(line: str) -> bool:
    return any(re.search(pattern, line) for pattern in PARSED)


@cache
def gdt_commands(line: str, stamp: Path) -> list[list[str]]:
    """The commands of gdt and benchmarks that a line starts: a make target's, or its own."""
    line = re.sub(r"^([A-Z_]+=\S+ )+", "", line)
    if line.startswith(("gdt ", "python -m ")):
        return [shlex.split(line.removeprefix("gdt ").removeprefix("python -m "))]
    if re.match(r"(dask|tensorboard) |make (test|setup|lint|help)$", line):
        return []
    assert line.startswith("make "), f"not a command: {line}"
    made = make(*shlex.split(line)[1:], stamp=stamp)
    assert made.returncode == 0, (line, made.stderr)
    return [shlex.split(command.removeprefix("gdt ")) for command in made.stdout.splitlines()]


def parse(command: list[str]) -> None:
    """Read the options of a command; an error ends the test."""
    name, *arguments = command
    if "--help" in arguments:
        return
    if name == "pretrain":
        training.settings_of(training.with_size(arguments))
    elif name == "eval":
        evaluation.settings_of(arguments)
    elif name == "preprocess":
        tyro.cli(Preprocess, config=(tyro.conf.OmitArgPrefixes,), args=arguments)
    elif name not in COMMANDS:  # a module, such as those of benchmarks
        assert importlib.util.find_spec(name) is not None, name


@pytest.fixture(scope="module")
def stamp(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file that tells make that everything is installed."""
    path = tmp_path_factory.mktemp("make") / ".stamp"
    path.touch()
    return path


@pytest.fixture(scope="module")
def my_videos(synthetic: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's videos: two classes in folders, and a video next to them."""
    folder = tmp_path_factory.mktemp("my") / "videos"
    classes = sorted(path for path in (synthetic / "train").iterdir() if path.is_dir())[:2]
    for name, source in zip(("cats", "dogs"), classes, strict=True):
        (folder / name).mkdir(parents=True)
        for path, letter in zip(sorted(source.glob("*.mp4")), "abcdefgh", strict=False):
            shutil.copy(path, folder / name / f"{letter}.mp4")
    shutil.copy(folder / "cats" / "a.mp4", folder / "a.mp4")
    return folder


class Reader:
    """Somebody who types the blocks of pages in a folder."""

    def __init__(self, folder: Path, command: Run, my_videos: Path, stamp: Path) -> None:
        self.folder, self.command, self.my_videos, self.stamp = folder, command, my_videos, stamp
        self.typed: set[str] = set()

    def type_page(self, page: str) -> int:
        """Run every block; the number of commands that ran."""
        scripts = [text for kind, text in blocks(page) if kind == "python"]
        for text in scripts:
            if "import gdt\n" not in text:  # a user's file with a transformation
                (self.folder / "mine.py").write_text(text)
        ran = 0
        for line in shell_lines(page):
            for arguments in gdt_commands(line.replace("/my/videos", str(self.my_videos)), self.stamp):
                if not parsed_only(line) and line not in self.typed:
                    name = " ".join(arguments[: 2 if arguments[0] == "eval" else 1])
                    asks = {"--help", "help"} & set(arguments)
                    done = self.command(*arguments, *([] if asks else SHORTER.get(name, [])))
                    assert done.returncode == 0, (line, done.stderr)
                    ran += 1
            self.typed.add(line)
        for text in scripts:
            if "import gdt\n" in text:
                (self.folder / "script.py").write_text(text.replace("/my/videos", str(self.my_videos)))
                done = self.command("script.py")
                assert done.returncode == 0, done.stderr
        return ran


@pytest.fixture(scope="module")
def reader(
    server: subprocess.Popen[str], my_videos: Path, shards: Path, stamp: Path, tmp_path_factory: pytest.TempPathFactory
) -> Reader:
    """A reader who has gone through the README."""
    folder = tmp_path_factory.mktemp("reader")
    (folder / "data" / "shards").mkdir(parents=True)
    (folder / "data" / "shards" / "synthetic").symlink_to(shards)
    reader = Reader(folder, commands_in(folder, server), my_videos, stamp)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GDT_TEST_ALONE", "1")
        assert reader.type_page("README.md") > 8
    assert (folder / "runs" / "report.html").is_file() and (folder / "features.h5").is_file()
    return reader


@pytest.mark.parametrize("page", [page for page in GUIDES if page != "README.md"])
def test_commands_and_python_run(page: str, reader: Reader) -> None:
    assert reader.type_page(page) or page in ("docs/README.md", "docs/design.md")


def test_quoted_errors_come(reader: Reader, synthetic: Path) -> None:
    quoted = [text for page in GUIDES for kind, text in blocks(page) if kind == "text" and text.startswith("error: ")]
    silent = reader.folder / "silent"
    silent.mkdir()
    for path in (synthetic / "train").rglob("*.mp4"):
        copy = ["ffmpeg", "-v", "error", "-i", path, "-an", "-c:v", "copy", silent / path.name]
        subprocess.run(copy, check=True)
    made = reader.command("preprocess", "--source", silent, "--destination", "data/shards/silent")
    assert made.returncode == 0, made.stderr
    for text in quoted:
        (line,) = [line for words, line in ERRORS.items() if words in text]
        done = reader.command(*line.split(), CUDA_VISIBLE_DEVICES="")
        pattern = ".*".join(re.escape(part) for part in text.strip().split("…"))
        assert done.returncode == 2 and re.match(pattern, done.stderr.splitlines()[-1]), done.stderr
    assert len(quoted) == len(ERRORS)


def test_all_commands_are_parsed(my_videos: Path, stamp: Path) -> None:
    lines = list(dict.fromkeys(line for page in PAGES for line in shell_lines(page)))
    for line in lines:
        for command in gdt_commands(line.replace("/my/videos", str(my_videos)), stamp):
            parse(command)
    assert all(any(re.search(pattern, line) for line in lines) for pattern in PARSED)


@pytest.mark.parametrize("page", EVERYTHING)
def test_links_and_names_exist(page: str) -> None:
    """Links with their anchors, files, make targets and modules."""
    text, folder = TEXT[page], (ROOT / page).parent
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)#?([^)]*)\)", text):
        path = (folder / target).resolve() if target else ROOT / page
        assert path.exists(), (page, target)
        if anchor:
            headings = re.findall(r"^#+ (.*)$", path.read_text(), re.M)
            assert anchor in {slug(heading) for heading in headings}, (page, target, anchor)
    for name in re.findall(r"`((?:common|pipeline|preprocess|train|eval|benchmarks|tests|docs)/[\w/.-]+)`", text):
        assert (ROOT / name).exists(), (page, name)
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"\bmake ([a-z][a-z-]+)", " ".join(re.findall(r"`[^`\n]+`", text))):
        assert re.search(rf"^{target}:", makefile, re.M), (page, target)
    for module in re.findall(r"python -m (benchmarks[a-z_.]+)", text):
        assert importlib.util.find_spec(module.rstrip(".")), (page, module)


def slug(heading: str) -> str:
    """The anchor that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize("page", GUIDES)
def test_options_and_variables_in_prose_exist(page: str) -> None:
    modules = [importlib.import_module(one.module) for one in COMMANDS.values()]
    known = {name: option for module in modules for name, option in module.options([]).items()}
    options = {option.name for option in known.values()} | {"--help", "--protocol"}
    inline = " ".join(re.findall(r"`[^`]+`", prose(page)))
    for name in re.findall(r"(?<![\w-])(--[a-z][\w.-]*)", inline):
        assert name in options or name.replace("--no-", "--") in options, (page, name)
    for name in re.findall(r"\b([A-Z][A-Z_0-9]+)=", inline):
        assert name in {*known, "ARGS", "GPUS"}, (page, name)


def test_the_tree_in_design_lists_files_that_exist() -> None:
    (tree,) = [text for _, text in blocks("docs/design.md") if text.startswith("gdt/ ")]
    top = ROOT
    for line in tree.splitlines():
        top = ROOT / match[1] if (match := re.match(r"(\w+)/", line)) else top
        inside = top / match[1] if (match := re.match(r"  (\w+)/", line)) else top
        for name in re.findall(r"\w+\.py", line):
            assert (top / name).is_file() or (inside / name).is_file(), (line, name)


def test_every_line_of_the_parity_tables_names_its_test() -> None:
    rows = [line for line in TEXT["docs/parity.md"].splitlines() if re.match(r"\| [a-z]", line)]
    assert len(rows) > 15
    for row in rows:
        *_, found = row.strip("| ").split(" | ")
        if match := re.fullmatch(r"`(tests/[\w/]+\.py)::(test_\w+)`", found):
            assert f"\ndef {match[2]}(" in (ROOT / match[1]).read_text(), row
        else:
            assert re.fullmatch(r"\[.+\]\(.+\)|`(gdt|make) .+`", found), row


def test_tables_of_presets_are_the_presets() -> None:
    tables = re.findall(r"^\| \| (.*) \|\n\|[-|]+\n\| TR \| (.*) \|\n\| TS \| (.*) \|\n\| modality \| (.*) \|$",
                        TEXT["docs/compositions.md"], re.M)  # fmt: skip
    rows = [row for table in tables for row in zip(*(line.split(" | ") for line in table), strict=True)]
    assert [name for name, *_ in rows] == [*presets.TABLE_1, *presets.TABLE_2]
    for name, reversal, shift, modality in rows:
        assert presets.PRESETS[name].label == f"{modality}, TR {reversal}, TS {shift}".replace("·", ".")


def test_losses_of_untrained_networks_are_those_of_the_presets() -> None:
    rows = re.findall(r"^\| ([a-m, ]+) \| (\d+) \+ ([\d,]+) \| ([\d.]+) \| (.*) \|$", TEXT["docs/faq.md"], re.M)
    assert len(rows) == 4
    for names, positives, negatives, loss, least in rows:
        for name in names.split(", "):
            counts = [int(n) for n in partners(presets.composition(name, batch_size=512))]
            assert counts == [int(positives), int(negatives.replace(",", ""))]
            assert f"{math.log(sum(counts)):.2f}" == loss
            assert least == (f"ln {positives} = {math.log(counts[0]):.2f}" if counts[0] > 1 else "0")


def test_the_readme_is_short() -> None:
    assert len(TEXT["README.md"].splitlines()) <= 160


def test_pages_say_what_they_answer_and_begin_with_something_to_type() -> None:
    for page in GUIDES[1:]:
        if page != "docs/README.md":
            first, *_ = TEXT[page].split("\n## ")
            assert re.search(r"^This page answers", first, re.M) and "minute" in first, page
            assert "```sh" in first or "```python" in first, page


def test_the_index_and_the_site_list_every_page() -> None:
    site = (ROOT / "mkdocs.yml").read_text()
    for name in (page.removeprefix("docs/") for page in PAGES[1:]):
        assert re.search(rf": {re.escape(name)}$", site, re.M), name
        assert name == "README.md" or f"({name})" in TEXT["docs/README.md"], name
