"""The tutorial's commands run as printed, in order, in a fresh folder, with argap's own checkpoints as the reader's.

The Python blocks of the questions and answers run too, and print the numbers beside them.
"""

import builtins
import re
import shlex
import sys
import sysconfig
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import nbformat
import pytest
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from tests.conftest import RunCommand

ROOT = Path(__file__).parents[2]
TUTORIAL = ROOT / "docs" / "tutorial.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHORTER = ("--limit-document-tokens 1024", "--limit-document-tokens 96")
"""The one change: less text than the page takes. Python's standard library is 38 documents here."""

EXPECTED = (
    "Repeated",  # score: no index, so every repeated bigram is a hit
    "runs/score/report.html",
    "far: repeated AND distance > 256",
    "leaf 1: ",
    "Repeated",  # score, own text
    "distinct)",  # index build
    "AR hits",  # label
)
"""What the command of each line prints, among other things."""


def modules(folder: Path, *names: str) -> None:
    """Text for the reader's folders: modules of Python's standard library."""
    folder.mkdir()
    for name in names:
        source = Path(sysconfig.get_path("stdlib"), f"{name}.py")
        (folder / f"{name}.txt").write_text(source.read_text(encoding="utf-8")[:3000], encoding="utf-8")


def test_the_tutorial_runs_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_command: RunCommand):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    modules(tmp_path / "text", "bisect", "heapq", "shelve", "queue")
    modules(tmp_path / "corpus", "ast", "glob", "random", "socket")
    page = TUTORIAL.read_text(encoding="utf-8")
    expected = iter(EXPECTED)
    for language, block in BLOCK.findall(page):
        if language == "python":
            exec(block, {"__name__": "__main__"})
        if language == "console":
            for line in block.replace("\\\n", " ").splitlines():
                command = line.removeprefix("$ ").replace(*SHORTER)
                assert command.startswith("argap "), f"{line}: the test runs commands of argap"
                code, shown, said = run_command(*shlex.split(command)[1:])
                assert code == 0, f"{command}\n{shown}\n{said}"
                assert next(expected) in shown
    assert next(expected, None) is None


def test_the_page_says_what_the_test_changes():
    assert SHORTER[0] in TUTORIAL.read_text(encoding="utf-8")


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
    """In this process, each in a shell of its own that makes every representation of what a cell ends with."""
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
            shell.run_cell(source).raise_error()
    plt.close("all")


def test_notebooks_hold_no_outputs():
    assert NOTEBOOKS
    for path in NOTEBOOKS:
        if path.stem in WITH_OUTPUTS:
            assert path.stat().st_size < 200_000, path.name
        else:
            assert '"output_type"' not in path.read_text(), f"{path.name}: clear its outputs before committing"
