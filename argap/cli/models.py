"""``argap models``: the architectures that argap knows, and what a model costs."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from argap.cli import bench_models

if TYPE_CHECKING:
    from argap.models import ArgapConfig

app = typer.Typer(help="Parameters, operations and state of the models.", no_args_is_help=True)
app.command("bench", short_help="Measure tokens per second and peak memory.")(bench_models.bench)

WidthOption = Annotated[
    int | None, typer.Option("--hidden-size", min=1, help="Width of a named architecture.", show_default="256")
]
LayersOption = Annotated[
    int | None, typer.Option("--layers", min=1, help="Layers of a named architecture.", show_default="6")
]
VocabOption = Annotated[
    int | None, typer.Option("--vocab-size", min=1, help="Vocabulary of a named architecture.", show_default="8192")
]
SizeOption = Annotated[
    str | None, typer.Option("--size", help="One of the papers' sizes instead: 70m, 125m, 360m or 1.4b.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]

WINDOW = 1024
DEMO = {"hidden_size": 256, "num_hidden_layers": 6, "vocab_size": 8192}
OF_A_SIZE = {"size": None, "printed": None, "note": None}
"""What only a named size fills in."""


@app.command("list")
def list_models(
    hidden_size: WidthOption = None,
    layers: LayersOption = None,
    vocab_size: VocabOption = None,
    size: SizeOption = None,
    seq_len: Annotated[
        int | None, typer.Option(min=1, help="Tokens of the window.", show_default="1024; with --size 2048")
    ] = None,
    json: JsonOption = False,
) -> None:
    """The named architectures at one size, by default the demo's."""
    from argap.models.presets import ARCHITECTURES

    given = _given(hidden_size, layers, vocab_size, size)
    rows = [_of_architecture(name, given, size, seq_len) for name in ARCHITECTURES]
    if json:
        _print_json(rows)
        return
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    from argap.reports.numbers import parameters

    table = Table(
        title=_title(given, size, rows[0]["window"]), title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0)
    )
    # At a size of the paper's its figures stand beside ours; it counts the operations of training.
    titles = ("Params", "printed", "TFLOPs", "printed", "State") if size else ("Params", "GFLOPs", "State")
    for title in ("Name", *titles):
        table.add_column(title, justify="left" if title == "Name" else "right", no_wrap=True)
    table.add_column("Mixers", overflow="fold")
    for row in rows:
        params, state = parameters(row["params"]), parameters(row["state_size"])
        cells = (params, f"{row['flops'] / 1e9:.2f}", state)
        if size:
            printed = row["printed"] or {"params_m": None, "tflops": None}
            beside = (f"{printed['params_m']}M" if printed["params_m"] else "", str(printed["tflops"] or ""))
            cells = (params, beside[0], f"{row['train_tflops']:.2f}", beside[1], state)
        table.add_row(row["name"], *cells, _in_short(row["mixers"]).replace(", ", "\n"))
    Console().print(table)


@app.command(short_help="One model: its parameters, operations, state and layers.")
def show(
    model: Annotated[str, typer.Argument(help="A named architecture, a checkpoint's folder or hub id, a reference.")],
    hidden_size: WidthOption = None,
    layers: LayersOption = None,
    vocab_size: VocabOption = None,
    size: SizeOption = None,
    seq_len: Annotated[
        int | None,
        typer.Option(
            min=1, help="Tokens of the window.", show_default="1024, or what the checkpoint takes; with --size 2048"
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """One model: its parameters, the operations and the state of a window, its layers and their source."""
    from argap.errors import ArgapError
    from argap.models.presets import ARCHITECTURES

    given = _given(hidden_size, layers, vocab_size, size)
    if model in ARCHITECTURES:
        row = _of_architecture(model, given, size, seq_len)
    elif size:
        raise ArgapError(f"--size {size}: {model} is no named architecture; known are {', '.join(ARCHITECTURES)}")
    else:
        row = _of_checkpoint(model, seq_len)
    if json:
        _print_json(row)
        return
    beside = row["printed"] or {}
    lines = {"model type": row["model_type"], "parameters": f"{row['params']:,}"}
    if beside:
        lines["parameters"] += f" (printed: {beside['params_m']}M)"
    if row["flops"] is not None:
        lines["window"] = f"{row['window']:,} tokens"
        lines["operations"] = f"{row['flops'] / 1e9:.2f} GFLOPs, forward"
        lines["training"] = f"{row['train_tflops']:.2f} TFLOPs, forward and backward"
        if beside.get("tflops"):
            lines["training"] += f" (printed: {beside['tflops']})"
        lines["state"] = f"{row['state_size']:,} elements a sequence"
        lines |= {f"layer {number}": _in_full(mixer) for number, mixer in enumerate(row["mixers"])}
        lines["source"] = row["source"]
    if row["note"]:
        lines["size"] = row["note"]
    width = max(map(len, lines))
    typer.echo(row["name"])
    for key, value in lines.items():
        typer.echo(f"  {key:{width}}  {value}")


def _title(given: dict[str, int], size: str | None, window: int) -> str:
    backbone = {**DEMO, **given}
    if size:
        from argap.models.sizes import SIZES, VOCABULARY

        chosen = SIZES[size]
        backbone = {
            "hidden_size": chosen.hidden_size,
            "num_hidden_layers": chosen.num_hidden_layers,
            "vocab_size": VOCABULARY,
        }
    return (
        f"At {f'{size}: ' if size else ''}width {backbone['hidden_size']}, {backbone['num_hidden_layers']} layers, "
        f"vocabulary {backbone['vocab_size']:,}, a window of {window:,} tokens"
    )


def _given(hidden_size: int | None, layers: int | None, vocab_size: int | None, size: str | None) -> dict[str, int]:
    """What is given of a backbone; raises `ArgapError` where a named size is given beside it."""
    from argap.errors import ArgapError

    values = {"hidden_size": hidden_size, "num_hidden_layers": layers, "vocab_size": vocab_size}
    given = {name: value for name, value in values.items() if value is not None}
    if size and given:
        raise ArgapError(f"--size {size}: sets width, layers and vocabulary; leave out --size or the others")
    return given


def _of_architecture(name: str, given: dict[str, int], size: str | None, seq_len: int | None) -> dict[str, Any]:
    """A row of a named architecture, at a named size with what the paper prints of it and a note."""
    from dataclasses import asdict

    from argap.models.presets import ARCHITECTURES, build_config
    from argap.models.sizes import PRINTED, build_at, note_on
    from argap.models.sizes import WINDOW as PAPER_WINDOW

    window = seq_len or (PAPER_WINDOW if size else WINDOW)
    backbone = {**DEMO, **given}
    config = build_at(name, size, seq_len=window) if size else build_config(name, **backbone, seq_len=window)
    row = _describe(name, config, window)
    row["source"] = "; ".join(filter(None, (row["source"], ARCHITECTURES[name].source)))
    if size:
        printed = PRINTED[size].get(name)
        row |= {
            "size": size,
            "printed": asdict(printed) if printed else None,
            "note": note_on(name, size, config, row["params"]),
        }
    return row


def _describe(name: str, config: "ArgapConfig", window: int) -> dict[str, Any]:
    """A row of ``--json``."""
    from argap.models.cost import cost
    from argap.models.registry import resolve

    found = cost(config, window)
    sources = dict.fromkeys(resolve(mixer["name"]).source for mixer in config.mixers)
    return {
        "name": name,
        "model_type": config.model_type,
        "params": found.parameters,
        "flops": found.flops,
        "train_tflops": found.train_tflops,
        "state_size": found.state_size,
        "window": window,
        "mixers": config.mixers,
        "source": "; ".join(filter(None, sources)),
        **OF_A_SIZE,
    }


def _of_checkpoint(source: str, seq_len: int | None) -> dict[str, Any]:
    """As `_describe`, of a family that loads natively too; of another model type the parameters alone are
    known, counted from its safetensors."""
    from argap.checkpoint import find_checkpoint
    from argap.models import ArgapConfig
    from argap.models.hub.load import native_config
    from argap.models.hub.registry import find_family
    from argap.references import find_reference

    reference = find_reference(source)
    checkpoint = find_checkpoint(reference.checkpoint if reference else source)
    config = ArgapConfig.get_config_dict(checkpoint.folder)[0]
    family = find_family(config)
    own = None
    if config.get("model_type") == ArgapConfig.model_type:
        own = ArgapConfig.from_pretrained(checkpoint.folder)
    elif family is not None:
        own = native_config(source, family, config)
    if own is not None:
        row = _describe(source, own, seq_len or min(WINDOW, own.max_position_embeddings or WINDOW))
        return {**row, "model_type": config.get("model_type", row["model_type"])}
    unknown = dict.fromkeys(("flops", "train_tflops", "state_size", "window", "mixers", "source"))
    return {
        "name": source,
        "model_type": config.get("model_type", "unknown"),
        "params": _count_weights(checkpoint.folder),
        **unknown,
        **OF_A_SIZE,
    }


def _count_weights(folder: Path) -> int:
    from math import prod

    from safetensors import safe_open

    total = 0
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="numpy") as file:
            total += sum(prod(file.get_slice(name).get_shape()) for name in file.keys())  # noqa: SIM118 (no mapping)
    return total


def _in_short(mixers: list[dict[str, Any]]) -> str:
    """``4 base_conv, 2 attention``."""
    from collections import Counter

    return ", ".join(f"{count} {name}" for name, count in Counter(mixer["name"] for mixer in mixers).most_common())


def _in_full(mixer: dict[str, Any]) -> str:
    """``base_conv: filter explicit, kernel_size 3``."""
    options = ", ".join(f"{key} {'null' if value is None else value}" for key, value in mixer.items() if key != "name")
    return mixer["name"] + (f": {options}" if options else "")


def _print_json(value: Any) -> None:
    import json

    typer.echo(json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False))
