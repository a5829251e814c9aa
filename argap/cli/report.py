"""``argap report``: write the page, figures and tables of a result."""

from pathlib import Path
from typing import Annotated

import typer


def report(
    result: Annotated[Path, typer.Argument(help="Folder written by `argap score` or `argap compare`.")],
    out: Annotated[Path | None, typer.Option(help="Output folder, instead of the result's own.")] = None,
    png: Annotated[bool, typer.Option("--png", help="Also write each figure as PNG (200 dpi).")] = False,
) -> None:
    """Write report.html, tables (Markdown, LaTeX, CSV) and figures/ from gap.json, and print the path of the page."""
    from argap.reports.write import write_report

    typer.echo(write_report(result, out, formats=("svg", "png") if png else ("svg",)))
