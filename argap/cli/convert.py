"""``argap convert``: convert pickled weights to safetensors."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from argap.cli.options import Overwrite


def convert(
    source: Annotated[str, typer.Argument(metavar="SRC", help="Folder or hub id with pickled weights.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Folder for the converted checkpoint.")],
    tokenizer: Annotated[
        str | None, typer.Option(metavar="T", help="Tokenizer to add: folder, tokenizer.json or hub id.")
    ] = None,
    fixed_decay: Annotated[
        Literal["ignore", "apply"] | None,
        typer.Option(help="Based with fixed_decay: ignore the decay, as the released layer does, or apply it."),
    ] = None,
    overwrite: Overwrite = False,
) -> None:
    """Convert pickled weights to safetensors that argap scores.

    A separate process opens the pickle and accepts nothing but tensors. Layouts unknown to transformers (HazyResearch's
    and mamba_ssm's) become native checkpoints.
    """
    from argap.checkpoints.convert import convert as run

    record = run(source, out, tokenizer=tokenizer, fixed_decay=fixed_decay, overwrite=overwrite)
    form = "a native checkpoint" if record.native else "safetensors with the source's configuration"
    typer.echo(f"{out}: {form}, from {', '.join(record.files)}")
