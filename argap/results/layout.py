"""List the files of a result, and those of its report, which are removed before a new result is written."""

from pathlib import Path

from argap.files.regular import check_replaceable, is_folder

RESULT = ("gap.json", "cells.parquet", "examples.json", "checksums.json")
PAGE = "report.html"
TABLES = ("table.md", "table.tex", "table.csv", "slices.csv")
OWN_SCALES = "_own_scales"
"""Ends the name of a figure drawn again with a scale for each model."""
FIGURES = (
    "nll_by_frequency",
    "gap_by_frequency",
    "share_by_threshold",
    "gap_by_distance",
    "gap_by_position",
    "gap_by_domain",
    "context_use",
    *(f"gap_by_{by}{OWN_SCALES}" for by in ("frequency", "distance", "position", "domain")),
)
"""Names of the figures in ``figures/``, without suffix."""
FORMATS = ("svg", "png", "pdf")


def check_report(folder: Path) -> None:
    """Raise `FormatError` if anything but a file has the name of a page, table or figure of a report in ``folder``."""
    is_folder(folder / "figures")
    check_replaceable(report_files(folder))


def check_result(folder: Path) -> None:
    """Raise `FormatError` if anything but a file has the name of a file of a result in ``folder``, or of its report."""
    check_replaceable(folder / name for name in RESULT)
    check_report(folder)


def remove_report(folder: Path) -> None:
    """Remove a report from ``folder``, and nothing else.

    Call it before a new ``gap.json`` has its name, so that no table or figure of the old result is left. Raises what
    `check_report` raises, before anything is removed.
    """
    check_report(folder)
    for path in report_files(folder):
        path.unlink(missing_ok=True)
    figures = folder / "figures"
    if figures.is_dir() and not any(figures.iterdir()):
        figures.rmdir()


def report_files(folder: Path) -> list[Path]:
    """Return the paths of all files that a report may have in ``folder``."""
    figures = [f"figures/{name}.{suffix}" for name in FIGURES for suffix in FORMATS]
    return [folder / name for name in (PAGE, *TABLES, *figures)]
