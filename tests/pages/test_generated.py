"""What ``tools/pages.py`` builds from committed results is what is committed, to the byte."""

import shutil
from contextlib import nullcontext
from pathlib import Path

import pages
import pytest
import readers

from tests.conftest import figures_sketched

PARTS = {"families", "journeys", "readers", "functions"}
BUILT = sorted(pages.GENERATED.keys() - PARTS)  # parts of pages, with tests of their own


def changed(name: str, to: Path) -> list[str]:
    """Build the files of a name anew; return those committed of which the new ones are absent or have other bytes."""
    each = pages.GENERATED[name]
    committed, folder = pages.ROOT / each.folder, to / name
    names = each.committed()
    assert names or name == "attention-64-epochs"  # one model of one width: no page shows its table
    shutil.copytree(committed, folder, ignore=shutil.ignore_patterns("report.html", "*.tex", "solve.svg"))
    for file in names:
        (folder / file).unlink()
    each.build(folder)
    new = {file: (folder / file).read_bytes() for file in names if (folder / file).exists()}
    return [file for file in names if new.get(file) != (committed / file).read_bytes()]


@pytest.mark.parametrize("name", BUILT)
def test_generated_files_are_those_committed(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the figures of the suites, which take long to draw; those of one are sketched, for its report."""
    if name in pages.SUITES and name != "table2-mini":
        monkeypatch.setattr("argap.reports.pages.suite.draw_suite", lambda result, folder: {})
        monkeypatch.setattr("argap.reports.pages.suite.write_report", lambda folder, **options: None)
    with figures_sketched() if name in pages.SUITES else nullcontext():
        found = changed(name, tmp_path)
    assert [file for file in found if not (name in pages.SUITES and "/figures/" in f"/{file}")] == []


@pytest.mark.parametrize(("name", "page"), [("readers", "SECURITY.md"), ("functions", "slices.md")])
def test_tables_in_pages_are_those_committed(name: str, page: str, tmp_path: Path) -> None:
    each = pages.GENERATED[name]
    shutil.copy(pages.ROOT / each.folder / page, tmp_path)
    each.build(tmp_path)
    assert (tmp_path / page).read_text() == (pages.ROOT / each.folder / page).read_text()


def test_everything_that_is_read_has_a_row() -> None:
    rows = [reader for row in readers.ROWS for reader in row.readers]
    assert len(rows) == len(set(rows))
    assert readers.found() - set(rows) == set(), "give each a guard, a limit and a test in tools/readers.py"
    assert set(rows) - readers.found() == set()
    assert [row.test for row in readers.ROWS if not (pages.ROOT / "tests" / row.test).is_file()] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", pages.SUITES)
def test_figures_of_suites_are_those_committed(name: str, tmp_path: Path) -> None:
    assert changed(name, tmp_path) == []
