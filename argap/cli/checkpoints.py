"""``argap convert`` and ``argap ref``: convert checkpoints, and name those to compare others with."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import typer

from argap.cli.options import Commands, Data, Index, Json, Overwrite, Reading
from argap.cli.output import print_json


def convert(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SRC", help="GGUF file, or folder or hub id with pickled weights or a distributed checkpoint."
        ),
    ],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Folder for the converted checkpoint.")],
    tokenizer: Annotated[
        str | None, typer.Option(metavar="T", help="Tokenizer to add: folder, tokenizer.json or hub id.")
    ] = None,
    config: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="config.json of the architecture, for a distributed checkpoint."),
    ] = None,
    fixed_decay: Annotated[
        Literal["ignore", "apply"] | None,
        typer.Option(help="Based with fixed_decay: ignore the decay, as the released layer does, or apply it."),
    ] = None,
    overwrite: Overwrite = False,
) -> None:
    """Convert a GGUF file, pickled weights or torch's distributed checkpoints to safetensors.

    GGUF is dequantised to float32. A separate process opens what is pickled and accepts nothing but tensors. Layouts
    unknown to transformers (HazyResearch's and mamba_ssm's) become native checkpoints, and Mamba-2 one of transformers.
    """
    from argap.checkpoints.convert import convert as run

    record = run(source, out, tokenizer=tokenizer, config=config, fixed_decay=fixed_decay, overwrite=overwrite)
    form = "a native checkpoint" if record.native else "safetensors in the layout of transformers"
    typer.echo(f"{out}: {form}, from {', '.join(record.files)}")


references = Commands(help="Manage named references for comparisons.", no_args_is_help=True)


@references.command()
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
    from argap.evaluation.windows import check_spec, corpora_of

    reference = Reference(
        checkpoint=absolute(checkpoint),
        data=tuple(absolute(d) for d in data or ()),
        index=None if index is None else absolute(index),
        **asdict(reading),
    )
    find_checkpoint(checkpoint)  # fail now rather than when scoring
    check_spec(reference.evaluation)
    corpora_of(reference.evaluation)
    if index is not None:
        open_index(index)
    earlier = find_reference(name)
    add_reference(name, reference)
    typer.echo(f"{name}: {reference.checkpoint}{f', in place of {earlier.checkpoint}' if earlier else ''}")


@references.command("list")
def list_references(as_json: Json = False) -> None:
    """List the recorded references with their text and index."""
    from argap.checkpoints.references import references as recorded

    if as_json:
        print_json(dict(sorted(recorded().items())))
        return
    for name, reference in sorted(recorded().items()):
        data = " ".join(reference.data) or "no text recorded"
        typer.echo(f"{name}\t{reference.checkpoint}\t{data}\t{reference.index or 'no index recorded'}")


@references.command()
def remove(name: Annotated[str, typer.Argument(help="Name to remove.")]) -> None:
    """Remove a reference. Its files are kept."""
    from argap.checkpoints.references import remove_reference

    remove_reference(name)
