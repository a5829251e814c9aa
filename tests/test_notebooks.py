"""Every notebook runs from top to bottom."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parent.parent / "notebooks").glob("*.ipynb"))

EXECUTE = """
import sys, nbformat
from nbclient import NotebookClient
notebook = nbformat.read(sys.argv[1], as_version=4)
NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
print("executed", sum(cell.cell_type == "code" for cell in notebook.cells))
"""


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_notebook_runs(path, tmp_path):
    # In a process of its own: the client's event loop and its warnings are not ours.
    done = subprocess.run(
        [sys.executable, "-c", EXECUTE, str(path)],
        cwd=tmp_path,
        env={**os.environ, "MPLBACKEND": "agg"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.startswith("executed")


def test_notebooks_hold_no_outputs():
    assert NOTEBOOKS
    for path in NOTEBOOKS:
        assert '"output_type"' not in path.read_text(), f"{path.name}: clear its outputs before committing"
