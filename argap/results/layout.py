"""The files that a report adds to a result's folder, so that they can be removed before a new result is written."""

from pathlib import Path

PAGE = "report.html"
TABLES = ("table.md", "table.tex", "table.csv", "slices.csv")
FIGURES = (
    "nll_by_frequency",
    "gap_by_frequency",
    "share_by_threshold",
    "gap_by_distance",
    "gap_by_position",
    "gap_by_domain",
)
"""Names of the figures in ``figures/``, without the suffix of their format."""
FORMATS = ("svg", "png", "pdf")


def remove_report(folder: Path) -> None:
    """Remove a report from ``folder``, and nothing else.

    Call it before a new ``gap.json`` is written, so that no table or figure of the old result stays beside it.
    """
    folder = Path(folder)
    for name in (PAGE, *TABLES):
        (folder / name).unlink(missing_ok=True)
    figures = folder / "figures"
    for name in FIGURES:
        for suffix in FORMATS:
            (figures / f"{name}.{suffix}").unlink(missing_ok=True)
    if figures.is_dir() and not any(figures.iterdir()):
        figures.rmdir()
