"""``argap report``: write the page, figures and tables of a result."""

from pathlib import Path
from typing import Annotated

import typer

from argap.errors import ArgapError


def report(
    result: Annotated[Path, typer.Argument(help="Folder written by `argap score` or `argap compare`.")],
    out: Annotated[Path | None, typer.Option(help="Output folder, instead of the result's own.")] = None,
    png: Annotated[bool, typer.Option("--png", help="Also write each figure as PNG (200 dpi).")] = False,
    pdf: Annotated[bool, typer.Option("--pdf", help="Also write each figure as PDF with selectable text.")] = False,
    card: Annotated[bool, typer.Option("--card", help="Print a section for a model card; write no file.")] = False,
) -> None:
    """Write report.html, tables (Markdown, LaTeX, CSV) and figures/ from gap.json, and print the path of the page."""
    if card:
        from argap.records import read_gap
        from argap.reports.pages.write import card as section

        if out is not None or png or pdf:
            raise ArgapError("--card prints to the terminal; give it without --out, --png and --pdf")
        typer.echo(section(read_gap(result)), nl=False)
        return
    from argap.reports.pages.write import write_report

    formats = ["svg", *["png"] * png, *["pdf"] * pdf]
    typer.echo(write_report(result, out, formats=formats))
