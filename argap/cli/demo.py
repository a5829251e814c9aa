"""``argap demo``: the whole path on the shipped checkpoints and this Python's standard library."""

from pathlib import Path
from typing import Annotated

import typer

from argap.cli.score import Json, show


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the runs and the report.")] = Path("runs/demo"),
    limit_tokens: Annotated[int | None, typer.Option(help="Score only this many tokens, from the beginning.")] = None,
    as_json: Json = False,
) -> None:
    """Table 1 of the Zoology paper for argap's own small checkpoints, on real text, with a report."""
    from argap.demo import run_demo

    gap, report = run_demo(out, limit_tokens)
    show(gap, as_json=as_json)
    typer.echo(f"report: {report}", err=True)
