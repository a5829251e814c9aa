"""The commands of README and of the tutorials run as printed, in order, in a fresh folder.

The Python blocks of the questions and answers run too, and print the numbers beside them.
"""

import builtins
import os
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import nbformat
import pytest
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from argap.corpus import stdlib
from argap.result import open_result
from tests.conftest import RunCommand

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LESS_TEXT = {
    "--limit-document-tokens 1024": "--limit-document-tokens 96",
    "--limit-document-tokens 256": "--limit-document-tokens 96",
    "--limit-tokens 20000": "--limit-tokens 2000",
    "make demo": "argap demo --limit-tokens 2000",
}
"""The changes to commands: less text than the page takes, and the installation that is there already."""
NOT_RUN = ("pip ", "for ", "mv ", "cat ", "sha256sum ", ". .venv")
"""Commands of other programs, which fetch what the test is given."""
MODULES = 24
"""Of Python's standard library, where a page takes ``stdlib:train``."""

EXPECTED = {
    "README.md": ("AR hits", "runs/demo", "AR hits"),
    "docs/tutorial.md": (
        "models/base_conv",
        "Repeated",  # score: no index, so every repeated bigram is a hit
        "runs/score/report.html",
        "far: repeated AND distance > 256",
        "leaf 1: ",
        "Repeated",  # score, own text
        "distinct)",  # index build
        "AR hits",  # label
    ),
    "docs/tutorial-pretrained.md": ("Bits per byte", "runs/two/report.html", "far: ", "Bits per byte"),
}
"""What each command of a page prints, among other things."""


def console_lines(page: Path) -> list[str]:
    """Return the commands of a page's console blocks, without comments."""
    blocks = [block for language, block in BLOCK.findall(page.read_text(encoding="utf-8")) if language == "console"]
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines() if line.startswith("$ ")]
    return [line.removeprefix("$ ").partition("  #")[0].strip() for line in lines]


def follow(page: str, run_command: RunCommand) -> tuple[str, ...]:
    """Run the commands of a page here, and its Python blocks after them; return what is expected and was printed."""
    expected, printed = iter(EXPECTED[page]), []
    for line in console_lines(ROOT / page):
        command = next((line.replace(*each) for each in LESS_TEXT.items() if each[0] in line), line)
        if command.startswith(NOT_RUN):
            continue
        assert command.startswith("argap "), f"{line}: the test runs commands of argap"
        if command.startswith("argap view "):  # which waits for a browser
            shown = str(open_result(command.split()[2]).folder)
        else:
            code, shown, said = run_command(*shlex.split(command)[1:])
            assert code == 0, f"{command}\n{shown}\n{said}"
        wanted = next(expected, "no further command")
        printed.append(wanted if wanted in shown else shown)
    for language, block in BLOCK.findall((ROOT / page).read_text(encoding="utf-8")):
        if language == "python":
            exec(block, {"__name__": "__main__"})
    return tuple(printed)


def test_the_demos_table_stands_as_it_is_printed() -> None:
    shown = (ROOT / "README.md").read_text().partition("The demo scores")[2].split("```")[1].strip("\n").splitlines()
    assert len(shown) == 5
    assert len({len(line) for line in shown}) == 1


@pytest.mark.parametrize("page", [pytest.param("README.md", marks=pytest.mark.slow), "docs/tutorial.md"])
def test_a_page_runs_as_printed(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_command: RunCommand
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    of_split = stdlib.modules
    monkeypatch.setattr(stdlib, "modules", lambda split: of_split(split)[:MODULES])
    assert follow(page, run_command) == EXPECTED[page]


@pytest.mark.slow
def test_the_tutorial_with_pretrained_models(tmp_path: Path, monkeypatch, run_command: RunCommand) -> None:
    """The two GGUF files of docs/tutorial-pretrained.md are in the folder ``$ARGAP_GGUF``."""
    if (folder := os.environ.get("ARGAP_GGUF")) is None:
        pytest.skip("set ARGAP_GGUF to the folder of smollm2.gguf and gemma3.gguf")
    monkeypatch.chdir(tmp_path)
    for name in ("smollm2.gguf", "gemma3.gguf"):
        (tmp_path / name).symlink_to(Path(folder, name).resolve())
    page = "docs/tutorial-pretrained.md"
    assert follow(page, run_command) == EXPECTED[page]


def test_pages_say_what_the_test_changes() -> None:
    pages = "".join((ROOT / page).read_text(encoding="utf-8") for page in EXPECTED)
    assert [each for each in LESS_TEXT if each not in pages] == []


def test_the_numbers_of_the_answers_are_computed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.chdir(ROOT)
    (block,) = [
        block for language, block in BLOCK.findall((ROOT / "docs" / "faq.md").read_text()) if language == "python"
    ]
    exec(block, {"__name__": "__main__"})
    printed = [f"{float(number):.3f}" for number in capsys.readouterr().out.split()]
    assert printed == re.findall(r"# (0\.\d+):", block)
    assert len(printed) == 2


NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))
WITH_OUTPUTS = {"quantisation"}
"""Notebooks whose outputs need a model that is not here; they run on the demo's instead, as slow tests."""


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=[pytest.mark.slow] * (path.stem in WITH_OUTPUTS)) for path in NOTEBOOKS],
    ids=lambda p: p.stem,
)
def test_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process, on one window, each in a shell of its own that makes every representation of what a cell ends
    with."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("MPLBACKEND", "agg")
    # What a shell sets for its whole process is as before afterwards.
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    monkeypatch.setattr(sys, "path", [*sys.path])
    for module, names in ((sys, ("ps1", "ps2", "ps3")), (builtins, ("display", "__IPYTHON__"))):
        for name in names:
            monkeypatch.setattr(module, name, None, raising=False)
    shell: Any = InteractiveShell(config=Config(HistoryManager={"enabled": False}))
    shell.display_formatter.active_types = shell.display_formatter.format_types
    cells = [cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    assert cells
    with mpl.rc_context():
        for source in cells:
            shell.run_cell(re.sub(r"limit_tokens=\d \* 1024", "limit_tokens=1024", source)).raise_error()
    plt.close("all")


def test_notebooks_hold_no_outputs():
    assert NOTEBOOKS
    for path in NOTEBOOKS:
        if path.stem in WITH_OUTPUTS:
            assert path.stat().st_size < 200_000, path.name
        else:
            assert '"output_type"' not in path.read_text(), f"{path.name}: clear its outputs before committing"
