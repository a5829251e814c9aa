"""``argap import``: log-probs made elsewhere become a run."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from argap.cli.options import Overwrite, Windows


def import_(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Parquet or JSON lines with tokens and log-probs.")],
    tokenizer: Annotated[str, typer.Option(metavar="T", help="Tokenizer: folder, tokenizer.json or hub id.")],
    data: Annotated[
        list[str], typer.Option(metavar="PATH", help="The text: file, folder, hub:NAME, stdlib:heldout. Repeatable.")
    ],
    name: Annotated[str | None, typer.Option(metavar="NAME", help="The model's name [the file's].")] = None,
    out: Annotated[Path, typer.Option(help="Folder for the run, in OUT/NAME.")] = Path("runs/import"),
    index: Annotated[
        str | None, typer.Option(metavar="DIR", help="Bigram index: also write the labels, to OUT/labels.")
    ] = None,
    *,
    windows: Windows,
    overwrite: Overwrite = False,
) -> None:
    """Make a run of log-probs from elsewhere, which argap compare takes beside scored ones.

    FILE has the columns document, token and logprob, or tokens and logprobs, a list each for a document. Every token
    is checked against the text.
    """
    from argap.records import EvaluationSpec
    from argap.scoring.importing import import_run

    spec = EvaluationSpec(data=tuple(data), **asdict(windows))
    run = import_run(file, out, tokenizer=tokenizer, spec=spec, name=name, index=index, overwrite=overwrite)
    typer.echo(f"{run.folder}: {run.record.evaluation.scored:,} log-probs of {run.model}")
