"""``argap push``: send a result to a data set of the Hugging Face hub."""

from pathlib import Path
from typing import Annotated

import typer


def push(
    result: Annotated[Path, typer.Argument(help="Folder that `argap score` or `argap compare` wrote.")],
    address: Annotated[str, typer.Argument(metavar="ADDRESS", help="hf://datasets/ORG/NAME, or a folder below it.")],
    send: Annotated[bool, typer.Option("--send", help="Send; without it, only say what would be sent.")] = False,
    no_tokens: Annotated[
        bool, typer.Option("--no-tokens", help="Leave out runs and labels, which hold the text as token ids.")
    ] = False,
    public: Annotated[bool, typer.Option("--public", help="Let everybody see a data set that is created.")] = False,
) -> None:
    """Send a result to a data set of the Hugging Face hub, which then serves as --ref hf://datasets/ORG/NAME/RUN.

    Without --send nothing leaves this machine. The token is read from the environment variable HF_TOKEN.
    """
    from argap.integrations.hub import plan
    from argap.integrations.hub import send as to_hub

    planned = plan(result, address, tokens=not no_tokens)
    for each in planned.files:
        typer.echo(f"{each.bytes:>14,}  {each.name}")
    for model in planned.elsewhere:
        typer.echo(f"{model}: its run is not in {result}, and is not sent", err=True)
    size = f"{len(planned.files):,} files and a card, {planned.bytes:,} bytes"
    if not send:
        typer.echo(f"{size}, would go to {planned.address}. Records name paths of this machine; --send sends them.")
        return
    typer.echo(f"{size}: {to_hub(planned, private=not public)}")
