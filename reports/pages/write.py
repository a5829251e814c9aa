"""Write the report files beside a ``gap.json``; `argap.results.layout` names and removes them."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from argap.files.atomic import write_text
from argap.files.regular import is_there
from argap.records import Examples, Gap, read_gap, read_record
from argap.reports.tables.by_source import sources_table
from argap.reports.tables.formats import in_markdown, latex, markdown
from argap.reports.tables.overview import overview
from argap.reports.tables.provenance import for_others, provenance
from argap.reports.tables.result import csv_text, slices_csv, tables_of
from argap.reports.tables.sentences import headlines
from argap.results.layout import check_report

if TYPE_CHECKING:
    from argap.reports.pages.result import Further
    from argap.results.by_source import BySource


def write_report(
    folder: Path,
    out: Path | None = None,
    *,
    formats: Sequence[str] = ("svg",),
    gap: Gap | None = None,
    further: "Further | None" = None,
) -> Path:
    """Write a result's page, tables and figures; return the path of the page.

    The files are ``report.html``, ``table.md``, ``table.tex``, ``table.csv``, ``figures/`` and, if the result has named
    slices, ``slices.csv``.

    ``folder``: a result of `argap score` or `argap compare`, with ``gap.json`` and, for the example windows,
    ``examples.json``, and for the shares without each source, ``cells.parquet``. ``out``: another folder to write to.
    ``formats``: of the figures; the page shows the SVGs, and ``("svg", "png", "pdf")`` also writes a PNG (200 dpi) and
    a PDF of each. ``gap``: the result itself, by default read from ``gap.json``. ``further``: an extra section of the
    page. Raises `FormatError` for a file that is missing, incomplete or damaged, and, before anything is written, if
    one of the report's names belongs to anything but a file.
    """
    from argap.reports.figures.result import draw_all
    from argap.reports.pages.result import render

    folder = Path(folder)
    out = folder if out is None else Path(out)
    gap = read_gap(folder) if gap is None else gap
    windows = folder / "examples.json"
    examples = read_record(windows, Examples) if is_there(windows) else None
    sources = _sources(folder, gap)
    check_report(out)
    tables = tables_of(gap) if sources is None else [*tables_of(gap), sources_table(sources, gap)]
    write_text(out / "table.md", "\n".join(map(markdown, tables)))
    write_text(out / "table.tex", "\n".join(map(latex, tables)))
    write_text(out / "table.csv", csv_text(gap))
    (out / "slices.csv").unlink(missing_ok=True)
    if gap.named:
        write_text(out / "slices.csv", slices_csv(gap.named, gap.unit))
    figures = draw_all(gap, out / "figures", formats)
    page = out / "report.html"
    write_text(page, render(gap, examples, figures, further, sources))
    return page


def _sources(folder: Path, gap: Gap) -> "BySource | None":
    """Return the gap without each source, paths fit to publish; None without cells, and then pandas is not imported."""
    if not is_there(folder / "cells.parquet"):
        return None
    from argap.results.by_source import read_by_source

    found = read_by_source(folder, gap)
    return found and replace(found, sources=tuple(replace(row, name=for_others(row.name)) for row in found.sources))


def card(gap: Gap) -> str:
    """Return a result as a section of a model card, in Markdown: the finding in words, tables and provenance."""
    summary = overview(gap)
    sentences = [each.sentence for each in headlines(gap)]
    if summary is not None:
        sentences = [f"{summary.title}.", *summary.sentences]
    parts = [
        "## Associative recall",
        " ".join(in_markdown(sentence) for sentence in sentences),
        *(markdown(table).strip() for table in tables_of(gap)),
        "### Where it comes from",
        "\n".join(f"- {name}: {in_markdown(value)}" for name, value in provenance(gap)),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"
