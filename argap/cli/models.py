"""``argap models`` and ``argap kernels``: the cost and speed of architectures, and which kernels run here."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from argap.cli.complete import architectures
from argap.cli.options import Commands, Device, Dtype, Json, TrustRemoteCode
from argap.cli.output import Output, print_json
from argap.errors import ArgapError

if TYPE_CHECKING:
    from argap.kernels.registry import Op
    from argap.records.models import Backbone, ModelDescription
    from argap.reports.tables.formats import Table
    from argap.reports.tables.suites.speed import SpeedResult


app = Commands(help="Show parameters, FLOPs and state size of models.", no_args_is_help=True)


@dataclass(frozen=True)
class Size:
    """The size of a named architecture."""

    hidden_size: Annotated[int | None, typer.Option(min=1, help="Width of a named architecture [256].")] = None
    layers: Annotated[int | None, typer.Option(min=1, help="Layers of a named architecture [6].")] = None
    vocab_size: Annotated[int | None, typer.Option(min=1, help="Vocabulary size of a named architecture [8192].")] = (
        None
    )
    size: Annotated[str | None, typer.Option(help="A size from the paper instead: 70m, 125m, 360m or 1.4b.")] = None

    @property
    def backbone(self) -> "Backbone":
        from argap.models.describe import backbone_at

        sizes = {"hidden_size": self.hidden_size, "num_hidden_layers": self.layers, "vocab_size": self.vocab_size}
        return backbone_at(self.size, **sizes)


@app.command(short_help="Measure tokens per second and peak memory.")
def bench(
    architectures: Annotated[
        list[str], typer.Argument(help="Architectures, as listed by `argap models list`.", autocompletion=architectures)
    ],
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
    dtype: Dtype = "auto",
    compile: Annotated[bool, typer.Option("--compile", help="Train with torch.compile, like `argap train`.")] = False,
    backend: Annotated[
        Literal["auto", "fla", "native"], typer.Option(help="Operators for training, as in `argap train`.")
    ] = "auto",
    *,
    output: Output,
) -> None:
    """Measure tokens per second and peak memory by length and batch size, and plot them.

    With --train or --generate, only the given shapes are measured. Each case runs in a separate process and is written
    to speed.json at once. Figures already in OUT are kept if the same versions measured them on the same device with
    the same settings.
    """
    from functools import partial

    from argap.models.speed import measure_all, speed_cases
    from argap.reports.figures.drawing import save
    from argap.reports.tables.suites.speed import read_speed, speed, write_speed
    from argap.runtime.device import resolve_device, resolve_dtype

    device = resolve_device(device)
    size = {"hidden_size": hidden_size, "num_hidden_layers": layers, "vocab_size": vocab_size}
    options = {"device": device, "dtype": resolve_dtype(dtype, device), "compile": compile, "backend": backend}
    cases = speed_cases(architectures, training=train, generation=generate, **size, **options)
    rows = measure_all(cases, read_speed(cases[0], out), partial(write_speed, out=out))
    result = write_speed(rows, out)
    save(speed(result), out, "speed")
    output.show(result, lambda: [_bench_table(result)])
    if not output.as_json:
        typer.echo(f"{out / 'speed.json'}, {out / 'speed.svg'}")


@app.command("list")
def list_models(
    size: Size,
    seq_len: Annotated[int | None, typer.Option(min=1, help="Tokens per window [1024; with --size 2048].")] = None,
    *,
    output: Output,
) -> None:
    """List the named architectures at one size, by default the demo's."""
    from argap.records.models import Backbone, read_listed

    backbone = Backbone()
    if size == Size() and seq_len is None:
        rows = read_listed()
    else:
        from argap.models.describe import describe_architecture
        from argap.models.presets import ARCHITECTURES

        backbone = size.backbone
        rows = [describe_architecture(name, backbone, size=size.size, seq_len=seq_len) for name in ARCHITECTURES]
    output.show([asdict(row) for row in rows], lambda: [_table(rows, backbone, size.size)])


@app.command(short_help="Show a model's parameters, FLOPs, state and layers.")
def show(
    model: Annotated[
        str,
        typer.Argument(help="Architecture, checkpoint (folder or hub id) or reference.", autocompletion=architectures),
    ],
    size: Size,
    seq_len: Annotated[
        int | None,
        typer.Option(min=1, help="Tokens per window [1024, or the checkpoint's maximum; with --size 2048]."),
    ] = None,
    trust_remote_code: TrustRemoteCode = False,
    as_json: Json = False,
) -> None:
    """Show one model: parameters, FLOPs and state size for a window, layers and their sources."""
    row = _described(model, size, seq_len)
    if as_json:
        print_json(asdict(row))
    else:
        _print_lines(row)


def _described(model: str, size: Size, seq_len: int | None) -> "ModelDescription":
    """Describe an architecture or checkpoint; at the default size an architecture is read from the list.

    A checkpoint's folder comes before an architecture of its name, as in `argap score`.
    """
    from argap.files.regular import is_there
    from argap.records.models import read_listed

    listed = {row.name: row for row in read_listed()}
    if size == Size() and is_there(Path(model, "config.json")):
        listed.pop(model, None)
    if size == Size() and seq_len is None and model in listed:
        return listed[model]
    if size.size or model in listed:
        from argap.models.describe import describe_architecture

        return describe_architecture(model, size.backbone, size=size.size, seq_len=seq_len)
    from argap.checkpoints.find import find_checkpoint
    from argap.checkpoints.references import find_reference

    reference = find_reference(model)
    try:
        checkpoint = find_checkpoint(reference.checkpoint if reference else model)
    except ArgapError as error:
        raise ArgapError(f"{error}; `argap models list` has the architectures") from None
    from argap.models.describe import describe_checkpoint

    return describe_checkpoint(model, checkpoint.folder, seq_len=seq_len)


def _bench_table(result: "SpeedResult") -> "Table":
    from argap.reports.tables.formats import Table

    title = f"{result.device}, {result.dtype}, width {result.hidden_size}, {result.num_hidden_layers} layers"
    columns = ("Mode", "Length", "Batch", "Architecture", "Speed", "Peak memory")
    rows = [(row.mode, f"{row.length:,}", str(row.batch), row.architecture, *row.figures) for row in result.rows]
    return Table(columns, rows, title=title, left=(0, 3))


def _table(rows: "list[ModelDescription]", backbone: "Backbone", size: str | None) -> "Table":
    from argap.reports.tables.formats import Table
    from argap.reports.tables.numbers import parameters

    title = (
        f"At {f'{size}: ' if size else ''}width {backbone.hidden_size}, {backbone.num_hidden_layers} layers, "
        f"vocabulary {backbone.vocab_size:,}, a window of {rows[0].window:,} tokens"
    )
    # At the paper's sizes, show its printed figures next to ours; its TFLOPs are for training.
    titles = ("Params", "printed", "TFLOPs", "printed", "State") if size else ("Params", "GFLOPs", "State")
    lines = []
    for row in rows:
        cells = [parameters(row.params), f"{(row.flops or 0) / 1e9:.2f}", parameters(row.state_size or 0)]
        if size:
            printed = row.printed
            cells[1:2] = [
                f"{printed.params_m}M" if printed else "",
                f"{row.train_tflops:.2f}",
                str(printed.tflops or "") if printed else "",
            ]
        mixers = Counter(mixer["name"] for mixer in row.mixers or [])
        lines.append((row.name, *cells, ", ".join(f"{count} {name}" for name, count in mixers.most_common())))
    notes = [f"{row.name}: {row.about}." for row in rows if row.about]
    return Table(("Name", *titles, "Mixers"), lines, notes, title=title, left=(0, len(titles) + 1))


def _print_lines(row: "ModelDescription") -> None:
    printed = row.printed
    lines = {"model type": row.model_type, "parameters": f"{row.params:,}"}
    if printed:
        lines["parameters"] += f" (printed: {printed.params_m}M)"
    if row.flops is not None and row.train_tflops is not None:
        lines["window"] = f"{row.window:,} tokens"
        lines["operations"] = f"{row.flops / 1e9:.2f} GFLOPs, forward"
        tera = printed or row.train_tflops >= 1
        training = f"{row.train_tflops:.2f} TFLOPs" if tera else f"{1000 * row.train_tflops:.2f} GFLOPs"
        lines["training"] = f"{training}, forward and backward"
        if printed and printed.tflops:
            lines["training"] += f" (printed: {printed.tflops})"
        lines["state"] = f"{row.state_size:,} elements per sequence"
        lines |= {f"layer {number}": _with_options(mixer) for number, mixer in enumerate(row.mixers or [])}
        lines["source"] = row.source or ""
    if row.about:
        lines["about"] = row.about
    if row.note:
        lines["size"] = row.note
    width = max(map(len, lines))
    typer.echo(row.name)
    for key, value in lines.items():
        typer.echo(f"  {key:{width}}  {value}")


def _with_options(mixer: Mapping[str, object]) -> str:
    """Format a mixer: ``base_conv: filter explicit, kernel_size 3``."""
    options = ", ".join(f"{key} {'null' if value is None else value}" for key, value in mixer.items() if key != "name")
    return f"{mixer['name']}: {options}" if options else str(mixer["name"])


def kernels(output: Output) -> None:
    """List the kernels and their launch configurations. Without a GPU, ops run their PyTorch references."""
    from argap.kernels.registry import OPS, describe

    ops, device = [describe(name) for name in OPS], _device_name()
    output.show({"device": device, "ops": [op.to_json() for op in ops]}, lambda: _kernel_tables(ops, device))


def _kernel_tables(ops: "list[Op]", device: str) -> "list[Table]":
    from argap.reports.tables.formats import Table

    rows = [(op.name, op.runs, op.about) for op in ops]
    what_runs = Table(("Op", "Runs", "Computes"), rows, title=f"On {device}", left=range(3))
    launches = [
        (
            row.kernel,
            row.device + " *" * row.used_here,
            row.shape,
            " ".join(f"{name} {size}" for name, size in row.blocks.items()),
            str(row.warps),
            str(row.stages),
        )
        for op in ops
        for row in op.configurations
    ]
    columns = ("Kernel", "Device", "Shape", "Blocks", "Warps", "Stages")
    notes = ("* used on this device",) if any(" *" in row[1] for row in launches) else ()
    return [what_runs, Table(columns, launches, notes, title="Launch configurations", left=range(4))]


def _device_name() -> str:
    import torch

    from argap.kernels.registry import device

    return torch.cuda.get_device_name() if device().type == "cuda" else "the CPU"
