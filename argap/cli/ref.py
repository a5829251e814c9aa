"""``argap ref``: named references, with the text and index to compare on."""

import json
from typing import Annotated, Literal

import typer

app = typer.Typer(help="Manage named references for comparisons.", no_args_is_help=True)


@app.command()
def add(
    name: Annotated[str, typer.Argument(help="Name to use with --ref.")],
    checkpoint: Annotated[str, typer.Argument(help="A local folder or a hub id.")],
    data: Annotated[list[str] | None, typer.Option(help="Evaluation text to use with it. Repeatable.")] = None,
    index: Annotated[str | None, typer.Option(help="Bigram index of its training text.")] = None,
    seq_len: Annotated[int | None, typer.Option(help="Tokens per window.")] = None,
    packing: Annotated[
        Literal["packed", "document"] | None, typer.Option(help="How documents are cut into windows.")
    ] = None,
    text_column: Annotated[str | None, typer.Option(help="Column that holds the text.")] = None,
) -> None:
    """Record a reference, replacing any of the same name."""
    from argap.checkpoint import find_checkpoint
    from argap.references import Reference, absolute, add_reference

    find_checkpoint(checkpoint)  # fail now rather than when scoring
    reference = Reference(
        checkpoint=absolute(checkpoint),
        data=tuple(absolute(d) for d in data or ()),
        index=None if index is None else absolute(index),
        seq_len=seq_len,
        packing=packing,
        text_column=text_column,
    )
    add_reference(name, reference)
    typer.echo(f"{name}: {reference.checkpoint}")


@app.command("list")
def list_references(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """List the recorded references with their text and index."""
    from argap.records import as_json as plain
    from argap.references import references

    if as_json:
        typer.echo(json.dumps({name: plain(each) for name, each in sorted(references().items())}, indent=2))
        return
    for name, reference in sorted(references().items()):
        data = " ".join(reference.data) or "no text recorded"
        typer.echo(f"{name}\t{reference.checkpoint}\t{data}\t{reference.index or 'no index recorded'}")


@app.command()
def remove(name: Annotated[str, typer.Argument(help="Name to remove.")]) -> None:
    """Remove a reference. Its files are kept."""
    from argap.references import remove_reference

    remove_reference(name)
