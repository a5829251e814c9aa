"""``argap demo``: run the whole pipeline on the bundled checkpoints and Python's standard library."""

from pathlib import Path
from typing import Annotated

import typer

from argap.cli.options import LimitTokens
from argap.cli.output import Output


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the runs and the report.")] = Path("runs/demo"),
    limit_tokens: LimitTokens = None,
    *,
    output: Output,
) -> None:
    """Compute the paper's Table 1 for three small checkpoints bundled with argap, on real text, and write a report."""
    from argap.demo import run_demo

    gap, report = run_demo(out, limit_tokens)
    output.show_gap(gap)
    typer.echo(f"report: {report}", err=True)
