"""``argap demo``: the whole pipeline on the shipped checkpoints and Python's standard library."""

from pathlib import Path
from typing import Annotated

import typer

from argap.cli.options import Json, LimitTokens
from argap.cli.output import Latex, Markdown, form_of, print_gap


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the runs and the report.")] = Path("runs/demo"),
    limit_tokens: LimitTokens = None,
    as_json: Json = False,
    latex: Latex = False,
    markdown: Markdown = False,
) -> None:
    """Compute the paper's Table 1 for three small checkpoints shipped with argap, on real text, and write a report."""
    form = form_of(latex=latex, markdown=markdown, as_json=as_json)
    from argap.demo import run_demo

    gap, report = run_demo(out, limit_tokens)
    print_gap(gap, as_json=as_json, form=form)
    typer.echo(f"report: {report}", err=True)
