"""Every notebook runs from top to bottom."""

import builtins
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import nbformat
import pytest
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
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
        assert '"output_type"' not in path.read_text(), f"{path.name}: clear its outputs before committing"
