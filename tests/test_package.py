"""The package: one name per module, importable from any folder, beside anything."""

import ast
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import gdt
from gdt.pipeline.notation import TRANSFORMATIONS
from gdt.pipeline.presets import PRESETS
from gdt.preprocess.settings import Preprocess
from tests.conftest import ROOT, preprocess

BELOW = {
    "common": set(), "pipeline": {"common"}, "preprocess": {"common", "pipeline"}, "train": {"common", "pipeline"},
    "eval": {"common", "pipeline", "preprocess", "train"},
}  # fmt: skip
"""The folders with code, and what each may import from."""


def test_every_folder_with_code_is_a_link_in_the_package() -> None:
    links = {path.name: path.readlink() for path in (ROOT / "src" / "gdt").iterdir() if path.is_symlink()}
    assert links == {name: Path("../..") / name for name in BELOW}


@pytest.mark.parametrize("folder", [*BELOW, "benchmarks", "tests"])
def test_imports_run_one_way(folder: str) -> None:
    """And through the package: `import train.step` would be a second module with its own classes."""
    for path in (ROOT / folder).rglob("*.py"):
        name = path.relative_to(ROOT).as_posix()
        for node in ast.walk(ast.parse(path.read_text())):
            modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            modules += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for module in modules:
                assert module.split(".")[0] not in BELOW, name
                if folder in BELOW and module.startswith("gdt."):
                    assert module.split(".")[1] in {folder, *BELOW[folder]}, (name, module)


EXECUTING = [
    *(ROOT / "pipeline" / name for name in ("loader.py", "graphs.py", "colour.py", "leaves.py", "tree.py")),
    *(ROOT / "pipeline" / "sources").glob("*.py"),
    *(ROOT / "train").glob("*.py"), *(ROOT / "eval").glob("*.py"), *(ROOT / "eval" / "page").glob("*.py"),
    *(ROOT / "train" / "models").glob("*.py"),
]  # fmt: skip
"""Code that executes plans, where names of factors and presets must not decide anything."""
OTHERS = {"video", "augmentation", "cross-modal"}  # of a modality and a column, a group of settings and a protocol, too


@pytest.mark.parametrize("path", EXECUTING, ids=lambda path: str(path.relative_to(ROOT)))
def test_names_of_factors_and_presets_decide_nothing(path: Path) -> None:
    """Names of presets may be defaults of settings only."""
    nodes = [*ast.walk(ast.parse(path.read_text()))]
    strings = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    assert not strings & TRANSFORMATIONS.keys() - OTHERS
    subscripts = [
        node.slice.value
        for node in nodes
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant)
        if getattr(node.value, "attr", "") == "columns"
    ]
    assert {*subscripts} <= {"leaf"}
    compared = [
        side.value
        for node in nodes if isinstance(node, ast.Compare)
        for side in (node.left, *node.comparators) if isinstance(side, ast.Constant)
    ]  # fmt: skip
    assert not {*compared} & PRESETS.keys() - OTHERS - ({"l"} if path.name == "settings.py" else set())


def install(source: Path, environment: Path, *options: str) -> Path:
    """Copy the package to `source` and install it from there, beside the dependencies of the running environment.

    Returns the folder of the commands.
    """
    for name in ("src", *BELOW):
        shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    venv.create(environment, with_pip=False)
    python = environment / "bin" / "python"
    # .pth files in these paths, such as that of the checkout, are not read
    dependencies = "\n".join(path for path in sys.path if path.endswith("site-packages"))
    (packages(environment) / "dependencies.pth").write_text(dependencies)
    pip = ["install", "--quiet", "--no-deps", "--no-build-isolation", "--disable-pip-version-check", *options, source]
    subprocess.run([sys.executable, "-m", "pip", "--python", python, *pip], check=True)
    return python.parent


def packages(environment: Path) -> Path:
    return Path(sysconfig.get_path("purelib", vars={"base": str(environment), "platbase": str(environment)}))


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("installed")
    return install(folder / "source", folder / "env")


def run(command: list[str | Path], folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(folder)}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_a_clone_named_gdt_does_not_shadow_the_package_it_installs(tmp_path: Path) -> None:
    """`import gdt` in the folder that holds the clone."""
    python = install(tmp_path / "gdt", tmp_path / "env", "--editable") / "python"
    done = run([python, "-c", "import gdt; print(gdt.load.__name__, gdt.common.__file__)"], tmp_path)
    assert done.stdout.startswith(f"load {tmp_path / 'gdt'}/"), done.stderr


@pytest.mark.slow
def test_the_installed_package_ignores_scripts_of_the_same_names(installed: Path, tmp_path: Path) -> None:
    for name in BELOW:
        (tmp_path / f"{name}.py").write_text("raise SystemExit('somebody else')")
    script = tmp_path / "mine.py"
    script.write_text("import gdt, gdt.train.step\nprint(gdt.__file__, gdt.load, gdt.train.step.__name__)")
    done = run([installed / "python", script], tmp_path)
    assert done.stdout.startswith(str(installed.parent)), done.stderr
    assert run([installed / "gdt", "--version"], tmp_path).stdout.startswith("gdt 0.")


@pytest.mark.slow
def test_data_files_are_installed(installed: Path) -> None:
    for name in BELOW:
        for path in (ROOT / name).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                assert (packages(installed.parent) / "gdt" / path.relative_to(ROOT)).is_file(), path


@pytest.mark.slow
def test_preprocessing_needs_neither_torchaudios_binary_nor_an_extra(
    installed: Path, synthetic: Path, tmp_path: Path
) -> None:
    """As in an environment with torch for CPUs. Captions name the extra that they need."""
    for name, error in {
        "torchaudio": "OSError('libcudart.so.13: cannot open shared object file')",
        "gensim": "ImportError", "ijson": "ImportError", "bokeh": "ImportError",
    }.items():  # fmt: skip
        (packages(installed.parent) / f"{name}.py").write_text(f"raise {error}")
    assert "libcudart" in run([installed / "python", "-c", "import torchaudio"], tmp_path).stderr
    command = [installed / "gdt", "preprocess", "--layout", "folder", "--workers", "1", "--source"]
    done = run([*command, synthetic / "val", "--destination", "there"], tmp_path)
    assert done.returncode == 0, done.stderr
    preprocess(Preprocess("folder", synthetic / "val", tmp_path / "here"))
    (shard,) = (tmp_path / "here").glob("shard-*.h5")
    assert (tmp_path / "there" / shard.name).read_bytes() == shard.read_bytes()

    (tmp_path / "words.txt").write_text("1 2\nword 0 1\n")
    done = run([*command, synthetic, "--word2vec", "words.txt"], tmp_path)
    assert done.returncode == 2
    assert done.stderr.endswith("error: captions need gensim, ijson and webvtt-py; run pip install 'gdt-video[text]'\n")


def test_lazy_names_are_those_of_the_api() -> None:
    from gdt import api

    assert dir(gdt) == sorted(gdt.__all__) and gdt.__all__ == api.__all__
    assert gdt.load is api.load
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = gdt.nothing


def test_requirements_are_few_ranges_that_the_pinned_versions_meet() -> None:
    pinned = dict(re.findall(r"^([\w-]+)==(.+)$", (ROOT / "constraints.txt").read_text(), re.M))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    base = [Requirement(line) for line in project["dependencies"]]
    extras = [Requirement(line) for lines in project["optional-dependencies"].values() for line in lines]
    assert len(base) <= 20
    for each in [*base, *extras]:
        assert "==" not in str(each.specifier)
        assert each.name == "gdt-video" or each.specifier.contains(pinned[each.name])
