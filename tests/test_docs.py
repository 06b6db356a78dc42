"""README, docs/, their site and the notebook: what they show runs or is parsed; links, files and options exist."""

import importlib.util
import os
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

import gdt
from gdt.cli import parse_command
from gdt.pipeline import presets
from tests.conftest import ROOT, commands_in, few
from tests.test_cli import all_options, make

PAGES = ("README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")))
EVERYTHING = (*PAGES, "CONTRIBUTING.md", "CHANGELOG.md")
TEXT = {name: (ROOT / name).read_text() for name in EVERYTHING}
GUIDES = tuple(name for name in PAGES if name not in ("README.md", "docs/benchmarks.md", "docs/results.md"))
"""Pages whose commands run, after those of the README; those of the others take minutes to hours."""
PARSED = {
    r"^make (demo|bench)|^python -m benchmarks": "minutes",
    r"gdt-k400|--query (/my|bark)": "needs a download",
    r"GPUS=|kinetics|ucf|hmdb|esc50|howto100m|audioset|s3://|^gdt verify --full": "needs the data set, or GPUs",
    r"^(make|gdt) ablation": "trains many times; tests/eval/test_ablation.py",
}
"""What is parsed instead of run, and why."""
OTHERS = r"(dask|tensorboard|git|pip|source|export|python -m pytest) |make (setup|test|oracles|lint|help)$"
"""What is neither: other programs, and targets without options."""
SHORTER = {
    "pretrain": ["--steps", "2", "--batch-size", "4"], "evaluate": ["--clips", "2"], "embed": ["--clips", "2"],
    "factors": ["--videos", "8", "--split", "train"],
}  # fmt: skip
"""Options that make commands short."""


def blocks(page: str, kind: str) -> list[str]:
    """The blocks of a page in a language."""
    return re.findall(rf"^```{kind}\n(.*?)^```$", TEXT[page], re.M | re.S)


def shell_lines(page: str) -> list[str]:
    """The commands of a page without comments."""
    text = "".join(blocks(page, "sh")).replace("\\\n", " ")
    lines = (re.sub(r"\s+#.*$", "", line).strip() for line in text.splitlines())
    return [line for line in lines if line and not re.match(OTHERS, line)]


def write_transformations(page: str, folder: Path) -> None:
    """Write the user's file of transformations that a page shows, if any."""
    for text in blocks(page, "python"):
        if "import gdt\n" not in text:
            (folder / "mine.py").write_text(text)


def gdt_commands(line: str) -> list[list[str]]:
    """The words after `gdt` of the commands that a line starts itself or with make; none for benchmarks."""
    words = shlex.split(line)
    if words[0] == "gdt":
        return [words[1:]]
    if words[0] == "make":
        done = make(*words[1:])
        assert done.returncode == 0, (line, done.stderr)
        line = done.stdout
    found = [re.findall(r"\[(.*?)\]", part, re.S) for part in line.split("[-m][gdt]")[1:]]
    modules = re.findall(r"benchmarks\.\w+", line)
    assert (found or modules) and all(map(importlib.util.find_spec, modules)), f"not a command: {line}"
    return found


@pytest.fixture(scope="module")
def type_page(synthetic: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], None]:
    """Types the blocks of a page in a folder, after those of the README, with two classes of videos and one beside."""
    folder, typed = tmp_path_factory.mktemp("reader"), set[str]()
    videos, command = folder / "my" / "videos", commands_in(folder)
    classes = sorted(path for path in (synthetic / "train").iterdir() if path.is_dir())
    for name, source in zip(("cats", "dogs"), classes, strict=False):
        (videos / name).mkdir(parents=True)
        for path, letter in zip(sorted(source.glob("*.mp4")), "abcdefgh", strict=True):
            shutil.copy(path, videos / name / f"{letter}.mp4")
    shutil.copy(videos / "cats" / "a.mp4", videos / "a.mp4")

    def type_page(page: str) -> None:
        write_transformations(page, folder)
        for line in shell_lines(page):
            if line in typed or any(re.search(pattern, line) for pattern in PARSED):
                continue
            typed.add(line)
            for words in gdt_commands(line.replace("/my/videos", str(videos))):
                command(*words, *SHORTER.get(words[0], []), check=True)  # --help wins
        for text in blocks(page, "python"):
            if "import gdt\n" in text:
                (folder / "script.py").write_text(text.replace("/my/videos", str(videos)))
                command("script.py", check=True)

    type_page("README.md")
    assert len(typed) > 8 and (folder / "features.h5").is_file()
    return type_page


@pytest.mark.parametrize("page", few(["README.md", *GUIDES]))
def test_commands_and_python_run(page: str, type_page: Callable[[str], None]) -> None:
    if page != "README.md":
        type_page(page)


@pytest.mark.parametrize("page", EVERYTHING)
def test_commands_are_parsed(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_transformations(page, tmp_path)
    for line in shell_lines(page):
        for name, *options in gdt_commands(line):
            if "--help" not in options:
                parse_command(name, options)


@pytest.mark.parametrize("page", EVERYTHING)
def test_links_files_targets_variables_and_options_exist(page: str) -> None:
    text, folder, makefile = TEXT[page], (ROOT / page).parent, (ROOT / "Makefile").read_text()
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)#?([^)]*)\)", text):
        path = (folder / target).resolve() if target else ROOT / page
        assert path.exists(), (page, target)
        headings = re.findall(r"^#+ (.*)$", path.read_text(), re.M) if anchor else []
        slugs = [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]
        assert not anchor or anchor in slugs, (page, target, anchor)
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    inline = " ".join(re.findall(r"`[^`]+`", prose)) if page != "CHANGELOG.md" else ""  # which names what is gone
    for name in re.findall(r"`((?:common|pipeline|preprocess|train|eval|benchmarks|tests|docs)/[\w/.-]+)", inline):
        assert (ROOT / name).exists(), (page, name)
    for test in re.findall(r"`(tests/[\w/]+\.py::\w+)`", inline):
        file, _, name = test.partition("::")
        assert f"\ndef {name}(" in (ROOT / file).read_text(), (page, test)
    for target in re.findall(r"\bmake ([a-z][a-z0-9-]+)", inline):
        assert re.search(rf"^\.PHONY: (.*\\\n)*.*\b{target}\b", makefile, re.M), (page, target)
    for name in re.findall(r"\b(?!GDT_)([A-Z][A-Z_]+)=", inline):
        assert re.search(rf"^variables := .*\b{name}\b", makefile, re.M) or name == "ARGS", (page, name)
    for name in re.findall(r"(?<![\w-])(--[a-z][\w.-]*)", inline):
        assert name in all_options() | {"--protocol", "--version", "--help"}, (page, name)


def test_the_table_of_presets_is_the_presets() -> None:
    rows = re.findall(r"^\| `([\w-]+)` \| ([\w-]+) \| ([di]?) ?\| ([di]?) ?\|$", TEXT["docs/compositions.md"], re.M)
    assert [name for name, *_ in rows] == [*presets.TABLE_1, *presets.TABLE_2]
    for name, modalities, shift, reversal in rows:
        varied = [f"{what} {role}" for what, role in (("shift", shift), ("reversal", reversal)) if role]
        assert presets.PRESETS[name].label == ", ".join([modalities, *varied])


def test_the_index_and_the_site_list_every_page() -> None:
    site = (ROOT / "mkdocs.yml").read_text()
    for name in (page.removeprefix("docs/") for page in PAGES[1:]):
        assert re.search(rf": {re.escape(name)}$", site, re.M), name
        assert name == "README.md" or f"({name})" in TEXT["docs/README.md"], name


def test_the_reference_has_every_public_name() -> None:
    assert sorted(re.findall(r"^::: gdt\.(\w+)$", TEXT["docs/api.md"], re.M)) == sorted(gdt.__all__)


@pytest.mark.slow
def test_the_site_is_built_without_warnings_and_describes_every_public_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mkdocstrings_handlers.python", reason="needs the requirements of the tests")
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    monkeypatch.chdir(ROOT)  # the paths of the plugins are relative
    build(load_config(str(ROOT / "mkdocs.yml"), site_dir=str(tmp_path), strict=True))  # raises for a warning
    page = (tmp_path / "api" / "index.html").read_text()
    described = re.findall(r'<h3 id="gdt\.(\w+)"', page)
    assert sorted(described) == sorted(gdt.__all__)
    for name in described:
        text = page.partition(f'<h3 id="gdt.{name}"')[2].partition("<h3 ")[0]
        assert re.search(r"<p>\w", text), f"{name} has no docstring"


@pytest.mark.slow
def test_the_notebook_goes_from_clips_to_a_search(
    synthetic: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notebook = nbformat.read(ROOT / "docs" / "sound_search.ipynb", as_version=4)
    paths, *others = (cell for cell in notebook.cells if cell.cell_type == "code")
    assert all(cell.outputs for cell in others)  # committed with outputs
    folders = [str(synthetic), str(synthetic / "test"), "out"]
    paths.source = f"from pathlib import Path\nVIDEOS, SEARCH, OUT = map(Path, {folders})\nTEST, STEPS = None, 2"
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.chdir(tmp_path)
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})  # one worker decodes; each takes seconds to start
    try:
        NotebookClient(notebook, kernel_name="python3").execute()
    finally:
        os.sched_setaffinity(0, cores)
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    text = "".join(output.get("text", "") for output in outputs if output.get("name") == "stdout")
    for line in ("42 of 42 videos kept", "2 steps, loss ", "random weights", "V→A"):
        assert line in text
    assert text.count(".mp4\n") == 1 + 3
    assert sum("<video" in output.get("data", {}).get("text/html", "") for output in outputs) == 4
    assert any("image/png" in output.get("data", {}) for output in outputs)
