"""Packaging: the wheel, the import root, and fast startup of the command line."""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from importlib import import_module
from pathlib import Path

import pytest

import argap
from argap.corpus.document import Tally
from argap.corpus.hub import read
from argap.errors import ArgapError
from argap.runtime import guard

ROOT = Path(__file__).parents[2]
FOLDERS = ("kernels", "bigram_index", "reports")
BUILD = "import sys; from setuptools import build_meta; getattr(build_meta, sys.argv[1])(sys.argv[2])"


def run(*command: str | Path, cwd: Path) -> str:
    """Run a command that must succeed; returns its standard output."""
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("name", FOLDERS)
def test_top_level_folders_are_reached_through_argap_only(name):
    assert (ROOT / "argap" / name).is_symlink()
    assert (ROOT / "argap" / name).resolve() == ROOT / name
    assert not (ROOT / name / "__init__.py").exists(), "a top-level package of that name would hide others'"


@pytest.mark.parametrize("group", [[], ["index"], ["models"], ["ref"]])
def test_no_line_of_help_is_cut(group, monkeypatch, capsys):
    from argap.cli import main

    monkeypatch.setattr("sys.argv", ["argap", *group, "--help"])
    with pytest.raises(SystemExit):
        main()
    commands = capsys.readouterr().out.partition("Commands:" if group else "Compare models:")[2]
    assert commands
    assert "..." not in commands


def test_the_model_type_is_registered_on_import():
    from transformers import AutoConfig, AutoModelForCausalLM

    import argap.models  # noqa: F401  # pyright: ignore[reportUnusedImport]

    config = AutoConfig.for_model("argap", hidden_size=32, num_hidden_layers=1, vocab_size=64)
    assert type(AutoModelForCausalLM.from_config(config)).__name__ == "ArgapForCausalLM"


def test_the_version_is_the_same_everywhere():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["dynamic"] == ["version"]
    assert project["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "argap.__version__"}
    assert f"\nversion: {argap.__version__}\n" in (ROOT / "CITATION.cff").read_text()


def test_reading_results_needs_no_torch_by_the_requirements():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = {re.split(r"[><=;\[]", each)[0] for each in project["dependencies"]}
    assert names.isdisjoint({"torch", "triton", "transformers", "numba", "liger-kernel"})
    assert "numpy" in names


def test_a_command_says_what_a_small_installation_lacks(monkeypatch, run_command):
    monkeypatch.setitem(sys.modules, "argap.results.pipeline", None)  # its import fails
    monkeypatch.setattr(guard, "TO_SCORE", ("argap",))
    code, _, said = run_command("score", "x", "--ref", "y")
    assert (code, said) == (1, "argap: argap is not installed; run `pip install 'argap[score]'`\n")


def test_every_package_is_listed():
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    modules = (p.parent.relative_to(ROOT) for p in ROOT.glob("argap/**/__init__.py"))
    expected = {".".join(folder.parts) for folder in modules} | {f"argap.{name}" for name in FOLDERS}
    linked = (p.parent.relative_to(ROOT) for name in FOLDERS for p in (ROOT / name).glob("**/__init__.py"))
    expected |= {".".join(("argap", *folder.parts)) for folder in linked}
    assert listed == sorted(expected)


def checkout(folder: Path, *, links: bool = True, weights: bool = False) -> Path:
    """A copy of what goes into the wheel, as git checks it out.

    Without ``links``, as on a system without symbolic links: each is a text file that holds its target. Without
    ``weights``, files of more than a megabyte are empty, which saves their compression.
    """

    def copy(source: str, target: str) -> None:
        if weights or os.path.getsize(source) < 2**20:
            shutil.copyfile(source, target)
        else:
            Path(target).touch()

    for name in ("argap", *FOLDERS):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=ignored, copy_function=copy)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copyfile(ROOT / name, folder / name)
    for link in (folder / "argap" / name for name in FOLDERS if not links):
        target = os.readlink(link)
        link.unlink()
        link.write_text(target)
    return folder


def build(tree: Path, what: str = "build_wheel") -> Path:
    """The wheel, regular or editable, that this environment's setuptools builds; nothing is downloaded."""
    run(sys.executable, "-c", BUILD, what, tree / "dist", cwd=tree)
    (built,) = (tree / "dist").glob("*.whl")
    return built


@pytest.fixture(scope="module")
def archive(tmp_path_factory) -> zipfile.ZipFile:
    """The wheel of this tree, with large files emptied."""
    return zipfile.ZipFile(build(checkout(tmp_path_factory.mktemp("tree"))))


@pytest.fixture(scope="module")
def wheel(archive) -> set[str]:
    """The names of the files in the wheel."""
    return set(archive.namelist())


@pytest.fixture(scope="module")
def installed(archive, tmp_path_factory) -> Path:
    """A folder that holds what the wheel installs."""
    folder = tmp_path_factory.mktemp("installed")
    archive.extractall(folder)
    return folder


def in_a_fresh_interpreter(code: str, installed: Path, cwd: Path) -> str:
    """Run ``code`` with the installed argap outside this checkout; returns its output."""
    return run(sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {str(installed)!r})\n{code}", cwd=cwd)


def test_importing_argap_adds_no_other_top_level_package(installed, tmp_path):
    at_top = re.compile(rf"^ *(?:from|import) (?:{'|'.join(FOLDERS)})\b", re.MULTILINE)
    assert [path for path in installed.rglob("*.py") if at_top.search(path.read_text(encoding="utf-8"))] == []
    code = (
        "import argap.kernels.head.linear_logprob\n"
        "import argap.reports.tables.result, argap.bigram_index.store\n"
        "print(argap.__file__)\n"
        f"paths = [str(sys.modules[name].__path__) for name in {FOLDERS!r} if name in sys.modules]\n"
        f"print([path for path in paths if {str(ROOT)!r} in path or {str(installed)!r} in path])"
    )
    assert in_a_fresh_interpreter(code, installed, tmp_path).splitlines() == [f"{installed}/argap/__init__.py", "[]"]


def test_help_imports_nothing_heavy(installed, tmp_path):
    code = (
        "sys.argv = ['argap', '--help']\n"
        "from argap.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'transformers', 'numpy', 'pandas', 'pyarrow', 'matplotlib', 'numba', 'rich.console'}\n"
        "print('heavy:', sorted(heavy & set(sys.modules)))"
    )
    assert in_a_fresh_interpreter(code, installed, tmp_path).endswith("heavy: []")


def test_the_wheel_contains_the_code_behind_the_links_and_the_demo(wheel):
    for folder in FOLDERS:
        expected = {f"argap/{p.relative_to(ROOT).as_posix()}" for p in (ROOT / folder).rglob("*.py")}
        assert expected
        assert expected <= wheel
    for name in (
        "argap/py.typed",
        "argap/metric/paper_tables/gap.csv",
        "argap/reports/pages/templates/report.html.j2",
        "argap/recall/tasks/fda.yaml",
        "argap/recall/tasks/rows.py",
        "argap/demo/tokenizer/tokenizer.json",
        "argap/demo/index/index.json",
        "argap/models/fla/tuned_hopper.json",
        "argap/demo/checkpoints/attention/model.safetensors",
        "argap/demo/checkpoints/base_conv/train.json",
    ):
        assert name in wheel


def test_the_wheel_contains_nothing_at_the_top_level_but_argap(wheel):
    assert {name.split("/")[0] for name in wheel if ".dist-info" not in name.split("/")[0]} == {"argap"}


def test_a_checkout_without_symbolic_links_builds_the_same_wheel(wheel, tmp_path):
    assert set(zipfile.ZipFile(build(checkout(tmp_path, links=False))).namelist()) == wheel


def test_an_editable_install_needs_no_symbolic_links(tmp_path):
    tree = checkout(tmp_path / "tree", links=False)
    zipfile.ZipFile(build(tree, "build_editable")).extractall(tmp_path / "site")
    code = (
        "import site, sys; from importlib.util import find_spec; site.addsitedir(sys.argv[1])\n"
        "for name in sys.argv[2:]: print(find_spec(name).origin)"
    )
    modules = (
        "argap.kernels.head.linear_logprob",
        "argap.reports.tables.result",
        "argap.bigram_index.store",
        "argap.cli",
    )
    # -S: without the site-packages of this environment, where argap is installed too.
    found = run(sys.executable, "-I", "-S", "-c", code, tmp_path / "site", *modules, cwd=tmp_path).splitlines()
    expected = (
        "kernels/head/linear_logprob.py",
        "reports/tables/result.py",
        "bigram_index/store.py",
        "argap/cli/__init__.py",
    )
    assert found == [str(tree / name) for name in expected]


def test_a_missing_extra_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)  # its import fails, as if it were not installed
    with pytest.raises(ArgapError, match=r"^datasets is not installed; run `pip install 'argap\[datasets\]'`$"):
        next(read("anybody/anything", "text", Tally(), ()))
    monkeypatch.setitem(sys.modules, "lm_eval.api.instance", None)
    for module in ("argap.recall.lm_eval_model", "argap.recall.lm_eval_tasks"):
        monkeypatch.delitem(sys.modules, module, raising=False)
        with pytest.raises(ArgapError, match=r"^lm_eval is not installed; run `pip install 'argap\[recall\]'`$"):
            import_module(module)


@pytest.mark.slow
def test_the_installed_wheel_runs_from_another_folder(tmp_path):
    """Uses a clean environment that shares only this one's dependencies."""
    built = build(checkout(tmp_path / "tree", weights=True))
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv", cwd=tmp_path)
    interpreter = tmp_path / "venv" / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", interpreter, "install", "--no-deps", built, cwd=tmp_path)
    (site,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    # A plain path: the .pth files beside these dependencies, argap's editable install among them, are not read.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()

    def argap(*arguments: str) -> str:  # -I: PYTHONPATH and the working directory are not searched
        return run(interpreter, "-I", interpreter.with_name("argap"), *arguments, cwd=elsewhere)

    assert run(interpreter, "-I", "-c", "import argap; print(argap.__file__)", cwd=elsewhere).startswith(str(site))
    demo = json.loads(argap("demo", "--limit-tokens", "8192", "--out", "demo", "--json"))
    again = json.loads(argap("compare", "demo/base_conv", "demo/hybrid", "--ref", "demo/attention", "--json"))
    assert again["slices"] == demo["slices"]
    assert (elsewhere / "demo" / "report.html").is_file()
