"""What the command line imports, how its help is arranged, what it completes, and how commands end."""

import errno
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from argap.cli import commands
from argap.cli.complete import architectures, references, results
from argap.cli.help import EXAMPLES, GROUPS, PANELS
from tests.conftest import RunCommand
from tests.pages.test_docs import mistakes

ROOT = Path(__file__).parents[2]

WITHOUT_MODELS = (
    *("--help", "score --help", "suite run nosuch.yaml", "suite table nosuch.yaml", "train", "models list"),
    *("models show mamba", "models show no/such", "ref list", "index info nosuch", "slice nosuch --where repeated"),
    *("slice --list", "view nosuch", "report nosuch", "compare nosuch --ref attention", "paper", "convert nosuch out"),
    *("score ./nosuch --ref attention", "score attention --ref attention --data nosuch", "label nosuch"),
    *("synthetics sweep nosuch.yaml", f"suite status {ROOT}/suites/table1-mini.yaml"),
    f"suite table {ROOT}/suites/today-7m.yaml --out nosuch",
)
"""Commands that load no model, or are refused before they would."""


def test_commands_without_a_model_import_no_torch(tmp_path: Path) -> None:
    """All in one process, so that the first to import it is named."""
    code = (
        "import os, sys\n"
        "os.environ['HF_HUB_OFFLINE'] = '1'\n"
        "from argap.cli import main\n"
        f"for line in {WITHOUT_MODELS!r}:\n"
        "    sys.argv = ['argap', *line.split()]\n"
        "    try: main()\n"
        "    except SystemExit: pass\n"
        "    if 'torch' in sys.modules or 'transformers' in sys.modules: sys.exit(line)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-500:]


def test_a_missing_package_is_one_line(tmp_path: Path) -> None:
    """As after ``pip install --no-deps``; ``-S`` hides the installed packages."""
    command = [sys.executable, "-S", "-m", "argap", "--version"]
    done = subprocess.run(command, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    expected = r"argap: \w+ is not installed for .*; install argap there with what it needs: `pip install argap`\n"
    assert re.fullmatch(expected, done.stderr)


def test_figures_need_no_backend_of_matplotlib(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "argap", "report", str(ROOT / "results" / "table2-mini" / "7m"), "--out", tmp_path]
    done = subprocess.run(
        command, env=os.environ | {"MPLBACKEND": "/nowhere"}, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def leaves(command, *words: str):
    """Yield the words of every command that runs something, and the command."""
    children = getattr(command, "commands", {})
    if not children:
        yield " ".join(words), command
    for name, child in children.items():
        yield from leaves(child, *words, name)


def test_every_command_has_an_example_that_parses() -> None:
    found = dict(leaves(commands()))
    assert EXAMPLES.keys() >= found.keys(), f"argap/cli/help.py: no example of {found.keys() - EXAMPLES.keys()}"
    for words, line in EXAMPLES.items():
        assert line.startswith(f"argap {words}")
        assert list(mistakes(line.removeprefix("argap "))) == []


def test_help_has_groups_panels_and_an_example(run_command: RunCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [name for group in GROUPS.values() for name in group]
    assert len(names) == len(set(names))
    assert commands().commands.keys() <= set(names)
    shown = run_command("--help")[1]
    assert all(f"\n{heading}:\n" in shown for heading in GROUPS)
    monkeypatch.setenv("COLUMNS", "80")
    shown = run_command("score", "--help")[1]
    assert [heading for heading in PANELS if f"\n{heading}:\n" in shown] == [name for name in PANELS if name != "Tasks"]
    assert "--packing <packed|document>" in shown
    assert shown.endswith(f"\nExample:\n  {EXAMPLES['score']}\n")
    assert "Text:" not in run_command("report", "--help")[1]  # few options need no headings


def test_help_fits_80_columns_and_cuts_no_summary() -> None:
    root = commands()
    groups = [(name, each) for name, each in root.commands.items() if hasattr(each, "commands")]
    lines = []
    for words, command in [("", root), *groups, *leaves(root)]:
        context = command.context_class(command, info_name=f"argap {words}", terminal_width=80)
        lines += [line for line in command.get_help(context).splitlines() if not line.startswith("Usage:")]
    assert len(lines) > 1000
    assert [line for line in lines if len(line) > 80 or re.match(r"  [a-z-]+  +[A-Z].*\.\.\.$", line)] == []


def test_completion(token_result: Path, run_command: RunCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(token_result.parent)
    name = token_result.name
    assert name in results("")
    assert results(name[:1]) == [name]
    assert results(f"{name}x") == []
    assert references("att") == ["attention"]
    assert "mamba2_hybrid" in architectures("mamba2")
    monkeypatch.setenv("_ARGAP_COMPLETE", "complete_zsh")
    monkeypatch.setenv("_TYPER_COMPLETE_ARGS", f"argap discover {name} --model ")
    shown = run_command()[1]
    assert "m-1" in shown
    assert "ref" not in shown


def test_compare_says_where_the_result_is(token_result: Path, tmp_path: Path, run_command: RunCommand) -> None:
    out = str(tmp_path / "my result")
    runs = [str(token_result / "m-1"), "--ref", str(token_result / "ref")]
    code, _, said = run_command("compare", *runs, "--out", out)
    assert code == 0
    assert said.endswith(f"result: {out}\nnext: argap view {shlex.quote(out)}\n")


def test_a_run_is_answered_with_its_result(token_result: Path, run_command: RunCommand, monkeypatch) -> None:
    monkeypatch.chdir(token_result.parent)
    name = token_result.name
    expected = f"argap: {name}/m-1: part of the result {name}; give that folder instead\n"
    assert run_command("view", f"{name}/m-1") == (1, "", expected)


def test_the_demo_copies_its_checkpoints(tmp_path: Path, run_command: RunCommand) -> None:
    code, printed, _ = run_command("demo", "--copy", str(tmp_path / "models"))
    folders = [Path(line) for line in printed.split()]
    assert (code, [each.name for each in folders]) == (0, ["attention", "base_conv", "hybrid"])
    assert all((each / name).is_file() for each in folders for name in ("model.safetensors", "tokenizer.json"))
    assert run_command("demo", "--copy", str(tmp_path / "models"))[0] == 1
    code, printed, _ = run_command("demo", "--copy", str(tmp_path / "more"), "--json")
    assert (code, json.loads(printed)) == (0, [str(tmp_path / "more" / each.name) for each in folders])


def test_a_disk_that_fills_up_under_the_demos_copies_keeps_none(
    tmp_path: Path, run_command: RunCommand, monkeypatch
) -> None:
    copied, copyfile = [], shutil.copyfile

    def fill(source: Path, to: Path) -> None:
        copied.append(to)
        if len(copied) > 8:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(to))
        copyfile(source, to)

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "copyfile", fill)
        code, _, said = run_command("demo", "--copy", str(tmp_path / "models"))
    assert (code, said.count("\n")) == (1, 1)
    assert "could not be written (No space left on device)" in said
    assert not any((tmp_path / "models").iterdir())
    assert run_command("demo", "--copy", str(tmp_path / "models"))[0] == 0


def test_the_end_of_a_file_in_a_library_is_no_end_of_input(run_command: RunCommand, monkeypatch, tmp_path) -> None:
    """The command-line library says "Aborted!" and no more."""

    def cut_off(*_: object) -> None:
        raise EOFError("Ran out of input")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("argap.checkpoints.references.references", cut_off)
    code, printed, said = run_command("ref", "list")
    assert (code, printed) == (70, "")
    assert said.startswith("argap: internal error (RuntimeError: the end of a file: Ran out of input)")
