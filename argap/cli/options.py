"""Options shared by several commands."""

from collections.abc import Mapping
from typing import Annotated, Literal

import typer

from argap.errors import ArgapError
from argap.trust import trusting

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
Overwrite = Annotated[bool, typer.Option(help="Replace earlier output that was made from other inputs.")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any other field of the configuration.")
]

BatchSize = Annotated[str, typer.Option(help="Windows at once, or auto (halved when out of memory).")]
Threshold = Annotated[
    str, typer.Option(help="Maximum exposures of an AR hit's bigram; scaled: 1,250 per 10 B tokens read in training.")
]

# The text that is scored, labelled or recorded.
Data = Annotated[
    list[str] | None,
    typer.Option(metavar="PATH", help="Evaluation text: file, folder, hub:NAME, stdlib:heldout. Repeatable."),
]
Index = Annotated[str | None, typer.Option(metavar="DIR", help="Bigram index of the training text.")]
SeqLen = Annotated[int | None, typer.Option(metavar="N", help="Tokens a window [2048].")]
Packing = Annotated[
    Literal["packed", "document"] | None, typer.Option(help="With an EOS between documents, or each on its own.")
]
LimitTokens = Annotated[int | None, typer.Option(metavar="N", help="Only the first N tokens of the text.")]
LimitDocumentTokens = Annotated[int | None, typer.Option(metavar="N", help="Only the first N tokens of each document.")]
TextColumn = Annotated[str | None, typer.Option(help="Column of JSON lines and Parquet that holds the text [text].")]

Engine = Annotated[str, typer.Option(help="local (this machine), or ray (tasks of a Ray cluster).")]
Address = Annotated[str | None, typer.Option(help="ray: HOST:PORT of the cluster [this machine alone].")]


def check_engine(engine: str, *, local: Mapping[str, object], ray: Mapping[str, object]) -> None:
    """Raise `ArgapError` for an unknown engine, and for a flag that only the other engine uses.

    ``local`` and ``ray`` map each engine's own flags to their values; a falsy value means that the flag was not given.
    """
    if engine not in ("local", "ray"):
        raise ArgapError(f"--engine {engine}: expected local or ray")
    for flag, given in (local if engine == "ray" else ray).items():
        if given:
            raise ArgapError(f"{flag}: has no effect with --engine {engine}; leave it out")


def _trust(context: typer.Context, trust: bool) -> bool:
    context.with_resource(trusting(trust))  # until the command ends
    return trust


LogTo = Annotated[
    list[str] | None,
    typer.Option("--log-to", metavar="TRACKER", help="Also log to tensorboard, wandb or trackio. Repeatable."),
]
TrustRemoteCode = Annotated[
    bool, typer.Option("--trust-remote-code", callback=_trust, help="Run code named by a checkpoint or file.")
]
"""The callback trusts remote code until the command ends; the command itself need not pass the value on."""
