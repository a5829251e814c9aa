"""``argap ref``: manage named references, with the text and index to compare on."""

from dataclasses import asdict
from typing import Annotated

import typer

from argap.cli.options import Commands, Data, Index, Json, Reading
from argap.cli.output import print_json

app = Commands(help="Manage named references for comparisons.", no_args_is_help=True)


@app.command()
def add(
    name: Annotated[str, typer.Argument(help="Name to use with --ref.")],
    checkpoint: Annotated[str, typer.Argument(help="A local folder or a hub id.")],
    data: Data = None,
    index: Index = None,
    *,
    reading: Reading,
) -> None:
    """Record a reference, replacing any of the same name."""
    from argap.bigram_index.store import open_index
    from argap.checkpoints.find import find_checkpoint
    from argap.checkpoints.references import Reference, absolute, add_reference, find_reference
    from argap.corpus import open_corpus
    from argap.evaluation.windows import check_spec

    reference = Reference(
        checkpoint=absolute(checkpoint),
        data=tuple(absolute(d) for d in data or ()),
        index=None if index is None else absolute(index),
        **asdict(reading),
    )
    find_checkpoint(checkpoint)  # fail now rather than when scoring
    check_spec(reference.evaluation)
    for source in reference.data:
        open_corpus(source)
    if index is not None:
        open_index(index)
    earlier = find_reference(name)
    add_reference(name, reference)
    typer.echo(f"{name}: {reference.checkpoint}{f', in place of {earlier.checkpoint}' if earlier else ''}")


@app.command("list")
def list_references(as_json: Json = False) -> None:
    """List the recorded references with their text and index."""
    from argap.checkpoints.references import references

    if as_json:
        print_json(dict(sorted(references().items())))
        return
    for name, reference in sorted(references().items()):
        data = " ".join(reference.data) or "no text recorded"
        typer.echo(f"{name}\t{reference.checkpoint}\t{data}\t{reference.index or 'no index recorded'}")


@app.command()
def remove(name: Annotated[str, typer.Argument(help="Name to remove.")]) -> None:
    """Remove a reference. Its files are kept."""
    from argap.checkpoints.references import remove_reference

    remove_reference(name)
