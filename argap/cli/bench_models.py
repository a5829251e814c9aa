"""``argap models bench``: how fast the architectures train and generate, and the memory that they take."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from argap.cli.options import Device

TRAIN = ("512x8", "1024x4", "2048x2", "4096x1")
GENERATE = ("256x1", "256x4", "256x16", "256x64")


def bench(
    architectures: Annotated[list[str], typer.Argument(help="Named architectures, as `argap models list` has them.")],
    out: Annotated[Path, typer.Option(help="Folder for speed.json and the figure.")],
    train: Annotated[
        list[str] | None, typer.Option(help=f"LENGTHxBATCH of a training step; several. [{' '.join(TRAIN)}]")
    ] = None,
    generate: Annotated[
        list[str] | None, typer.Option(help=f"LENGTHxBATCH to generate; several. [{' '.join(GENERATE)}]")
    ] = None,
    hidden_size: Annotated[int, typer.Option(min=1, help="Width.")] = 256,
    layers: Annotated[int, typer.Option(min=1, help="Layers.")] = 6,
    vocab_size: Annotated[int, typer.Option(min=1, help="Vocabulary.")] = 8192,
    device: Device = "auto",
    dtype: Annotated[Literal["auto", "float32", "bfloat16"], typer.Option(help="auto: bfloat16 on CUDA.")] = "auto",
    compile: Annotated[bool, typer.Option("--compile", help="Train through torch.compile, as `argap train`.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure tokens per second and peak memory against length and batch, and draw them.

    With --train or --generate given, only what is given is measured. Each case runs in a process of its own.
    """
    import torch

    from argap.atomic import write_json
    from argap.device import resolve_device, resolve_dtype
    from argap.errors import ArgapError
    from argap.models.presets import ARCHITECTURES
    from argap.models.speed import SpeedCase, measure_apart
    from argap.progress import say
    from argap.reports.drawing import save
    from argap.reports.speed import speed
    from argap.runs import environment

    if unknown := [name for name in architectures if name not in ARCHITECTURES]:
        raise ArgapError(f"architecture {unknown[0]!r}: unknown; known are {', '.join(ARCHITECTURES)}")
    device = resolve_device(device)
    if train is None and generate is None:
        train, generate = list(TRAIN), list(GENERATE)
    shapes = [("training", text) for text in train or ()] + [("generation", text) for text in generate or ()]
    size: dict[str, Any] = {"hidden_size": hidden_size, "num_hidden_layers": layers, "vocab_size": vocab_size}
    how: dict[str, Any] = {"device": device, "dtype": resolve_dtype(dtype, device), "compile": compile}
    cases = [
        SpeedCase(architecture=name, mode=mode, length=length, batch=batch, **size, **how)  # pyright: ignore[reportArgumentType]
        for mode, text in shapes
        for length, batch in [_shape(text)]
        for name in architectures
    ]
    rows = []
    for number, case in enumerate(cases, start=1):
        rows.append(measure_apart(case))
        done = ", ".join(filter(None, _measured(rows[-1])))
        say(f"{number} of {len(cases)}: {case.architecture}, {case.mode}, {case.length} x {case.batch}: {done}")
    threads = torch.get_num_threads()
    on_cpu = f"CPU, {threads} thread{'s' if threads > 1 else ''}"
    name = on_cpu if device == "cpu" else torch.cuda.get_device_name(device)
    result = {"format": 1, **size, **how, "device": name, **environment(), "rows": rows}
    write_json(out / "speed.json", result)
    save(speed(result), out, "speed")
    if json:
        import json as writer

        typer.echo(writer.dumps(result, indent=2, allow_nan=False, ensure_ascii=False))
    else:
        _print_table(result)
        typer.echo(f"{out / 'speed.json'}, {out / 'speed.svg'}")


def _shape(text: str) -> tuple[int, int]:
    from argap.errors import ArgapError

    length, times, batch = text.lower().partition("x")
    if not (times and length.isdecimal() and batch.isdecimal() and int(length) and int(batch)):
        raise ArgapError(f"{text}: expected LENGTHxBATCH, two whole numbers from 1, such as 1024x4")
    return int(length), int(batch)


def _print_table(result: dict[str, Any]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    title = (
        f"{result['device']}, {result['dtype']}, width {result['hidden_size']}, {result['num_hidden_layers']} layers"
    )
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    for column in ("Mode", "Length", "Batch", "Architecture", "Speed", "Peak memory"):
        table.add_column(column, justify="left" if column in ("Mode", "Architecture") else "right")
    for row in result["rows"]:
        table.add_row(row["mode"], f"{row['length']:,}", str(row["batch"]), row["architecture"], *_measured(row))
    Console().print(table)


def _measured(row: dict[str, Any]) -> tuple[str, str]:
    """Speed and memory as text, or what went wrong."""
    if "error" in row:
        return row["error"], ""
    return f"{row['tokens_per_s']:,.0f} tokens/s", f"{row['peak_bytes'] / 2**20:,.0f} MiB"
