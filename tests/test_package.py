"""The package: one name per module, importable from any folder."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

import gdt
from tests.conftest import ROOT

FOLDERS = ("common", "pipeline", "preprocess", "train", "eval", "studies")
OURS = [path for name in (*FOLDERS, "benchmarks", "tests") for path in (ROOT / name).rglob("*.py")]


def test_every_folder_with_code_is_a_link_in_the_package() -> None:
    links = {path.name: path.readlink() for path in (ROOT / "src" / "gdt").iterdir() if path.is_symlink()}
    assert links == {name: Path("../..") / name for name in FOLDERS}


def test_no_module_is_imported_by_its_folder_alone() -> None:
    """`import train.step` would be a second module with its own classes."""
    for path in OURS:
        for node in ast.walk(ast.parse(path.read_text())):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            assert not {name.split(".")[0] for name in names} & set(FOLDERS), path


BELOW = {
    "common": set(), "pipeline": {"common"}, "preprocess": {"common", "pipeline"}, "train": {"common", "pipeline"},
    "eval": {"common", "pipeline", "preprocess", "train"},
    "studies": {"common", "pipeline", "preprocess", "train", "eval"},
}  # fmt: skip
"""What each folder may import from."""
EXCEPT = {"eval/page/page.py": {"studies"}}
"""The page shows the paper's figures."""


@pytest.mark.parametrize("folder", BELOW)
def test_imports_run_one_way(folder: str) -> None:
    for path in (ROOT / folder).rglob("*.py"):
        name = path.relative_to(ROOT).as_posix()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("gdt."):
                other = (node.module or "").split(".")[1]
                assert other in {folder, *BELOW[folder], *EXCEPT.get(name, set())}, (name, node.module)


def test_no_file_is_two_modules() -> None:
    for module in pkgutil.walk_packages(gdt.__path__, "gdt."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    files: dict[str, str] = {}
    for name, module in [*sys.modules.items()]:
        file = getattr(module, "__file__", None)
        if file and Path(file).resolve().is_relative_to(ROOT) and ".venv" not in file and name != "__main__":
            assert files.setdefault(str(Path(file).resolve()), name) == name


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with this package installed and the dependencies of the running one."""
    folder = tmp_path_factory.mktemp("installed")
    return install(folder / "source", folder / "env")


def install(source: Path, environment: Path, *options: str) -> Path:
    """Copy the package to `source` and install it from there; returns the folder of the environment's commands."""
    for name in ("src", *FOLDERS):
        shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    venv.create(environment, with_pip=False)
    python = environment / "bin" / "python"
    there = Path(sysconfig.get_path("purelib", vars={"base": str(environment), "platbase": str(environment)}))
    # .pth files in this path, such as that of the checkout, are not read
    (there / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    pip = ["install", "--quiet", "--no-deps", "--no-build-isolation", "--disable-pip-version-check", *options, source]
    subprocess.run([sys.executable, "-m", "pip", "--python", python, *pip], check=True)
    return python.parent


def test_a_clone_named_gdt_does_not_shadow_the_package_it_installs(tmp_path: Path) -> None:
    """`import gdt` in the folder that holds the clone."""
    python = install(tmp_path / "gdt", tmp_path / "env", "--editable") / "python"
    script = "import gdt; print(gdt.load.__name__, gdt.common.__file__)"
    done = subprocess.run([python, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout.startswith(f"load {tmp_path / 'gdt'}/"), done.stderr


def test_the_installed_package_ignores_scripts_of_the_same_names(installed: Path, tmp_path: Path) -> None:
    for name in (*FOLDERS, "gdt_train"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('somebody else')")
    script = tmp_path / "mine.py"
    script.write_text(
        "import gdt, gdt.train.step, gdt.eval.command, gdt.preprocess.stage\n"
        "print(gdt.__file__, gdt.load, gdt.train.step.__name__)"
    )
    helps = (["gdt", "--version"], ["gdt", "pretrain", "tiny", "--help"], ["gdt", "eval", "report", "--help"])
    for command in (["python", "mine.py"], *helps):
        done = subprocess.run(
            [installed / command[0], *command[1:]], cwd=tmp_path, env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert str(installed.parent) in done.stdout or done.stdout.startswith(("usage: gdt", "gdt 0."))


def test_data_files_are_installed(installed: Path) -> None:
    (there,) = installed.parent.glob("lib/*/site-packages/gdt")
    for name in FOLDERS:
        for path in (ROOT / name).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                assert (there / path.relative_to(ROOT)).is_file(), path


def test_lazy_names_are_those_of_the_api() -> None:
    from gdt import api

    assert gdt.__all__ == sorted(api.__all__) and gdt.load is api.load
    assert set(api.__all__) <= set(dir(gdt))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = gdt.nothing
