"""``argap import``: import log-probs computed by another tool."""

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
    name: Annotated[str | None, typer.Option(metavar="NAME", help="Name of the model [the file's].")] = None,
    out: Annotated[Path, typer.Option(help="Folder for the run, in OUT/NAME.")] = Path("runs/import"),
    index: Annotated[
        str | None, typer.Option(metavar="DIR", help="Bigram index: also write the labels, to OUT/labels.")
    ] = None,
    *,
    windows: Windows,
    overwrite: Overwrite = False,
) -> None:
    """Import log-probs computed by another tool as a run, which argap compare reads like any other.

    FILE has the columns document, token and logprob, or a list of tokens and one of logprobs per document. Every token
    is checked against the text.
    """
    from argap.records import EvaluationSpec
    from argap.scoring.importing import import_run

    spec = EvaluationSpec(data=tuple(data), **asdict(windows))
    run = import_run(file, out, tokenizer=tokenizer, spec=spec, name=name, index=index, overwrite=overwrite)
    typer.echo(f"{run.folder}: {run.record.evaluation.scored:,} log-probs of {run.model}")
