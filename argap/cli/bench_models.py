"""``argap models bench``: training and generation speed and peak memory of architectures."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from argap.cli.options import Device, Json
from argap.cli.output import print_json
from argap.cli.tables import Latex, Markdown, form_of

if TYPE_CHECKING:
    from argap.reports.formats import Table
    from argap.reports.speed import SpeedResult


def bench(
    architectures: Annotated[list[str], typer.Argument(help="Architectures, as listed by `argap models list`.")],
    out: Annotated[Path, typer.Option(help="Folder for speed.json and the figure.")],
    train: Annotated[
        list[str] | None, typer.Option(help="LENGTHxBATCH of a training step. Repeatable. [512x8 1024x4 2048x2 4096x1]")
    ] = None,
    generate: Annotated[
        list[str] | None, typer.Option(help="LENGTHxBATCH to generate. Repeatable. [256x1 256x4 256x16 256x64]")
    ] = None,
    hidden_size: Annotated[int, typer.Option(min=1, help="Width.")] = 256,
    layers: Annotated[int, typer.Option(min=1, help="Number of layers.")] = 6,
    vocab_size: Annotated[int, typer.Option(min=1, help="Vocabulary size.")] = 8192,
    device: Device = "auto",
    dtype: Annotated[Literal["auto", "float32", "bfloat16"], typer.Option(help="auto: bfloat16 on CUDA.")] = "auto",
    compile: Annotated[bool, typer.Option("--compile", help="Train with torch.compile, like `argap train`.")] = False,
    backend: Annotated[
        Literal["auto", "fla", "native"], typer.Option(help="Operators of training, as for `argap train`.")
    ] = "auto",
    as_json: Json = False,
    latex: Latex = False,
    markdown: Markdown = False,
) -> None:
    """Measure tokens per second and peak memory by length and batch size, and plot them.

    With --train or --generate, only the given shapes are measured. Each case runs in a separate process.
    """
    form = form_of(latex=latex, markdown=markdown, as_json=as_json)
    from argap.device import resolve_device, resolve_dtype
    from argap.models.speed import measure_all, speed_cases
    from argap.reports.formats import print_tables
    from argap.reports.speed import write_speed

    device = resolve_device(device)
    size = {"hidden_size": hidden_size, "num_hidden_layers": layers, "vocab_size": vocab_size}
    options = {"device": device, "dtype": resolve_dtype(dtype, device), "compile": compile, "backend": backend}
    cases = speed_cases(architectures, training=train, generation=generate, **size, **options)
    result = write_speed(measure_all(cases), out)
    if as_json:
        print_json(result)
    else:
        print_tables([_table(result)], form)
        typer.echo(f"{out / 'speed.json'}, {out / 'speed.svg'}")


def _table(result: "SpeedResult") -> "Table":
    from argap.reports.formats import Column, Table

    title = f"{result.device}, {result.dtype}, width {result.hidden_size}, {result.num_hidden_layers} layers"
    names = ("Mode", "Length", "Batch", "Architecture", "Speed", "Peak memory")
    columns = tuple(Column(name, "left" if name in ("Mode", "Architecture") else "right") for name in names)
    rows = tuple((row.mode, f"{row.length:,}", str(row.batch), row.architecture, *row.in_words) for row in result.rows)
    return Table(columns, rows, (), title=title)
