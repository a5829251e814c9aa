"""``argap models``: the architectures that argap knows, and what a model costs."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from argap.cli import bench_models

if TYPE_CHECKING:
    from argap.models import ArgapConfig

app = typer.Typer(help="Parameters, operations and state of the models.", no_args_is_help=True)
app.command("bench")(bench_models.bench)

WidthOption = Annotated[int, typer.Option("--hidden-size", min=1, help="Width of a named architecture.")]
LayersOption = Annotated[int, typer.Option("--layers", min=1, help="Layers of a named architecture.")]
VocabOption = Annotated[int, typer.Option("--vocab-size", min=1, help="Vocabulary of a named architecture.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]

WINDOW = 1024


@app.command("list")
def list_models(
    hidden_size: WidthOption = 256,
    layers: LayersOption = 6,
    vocab_size: VocabOption = 8192,
    seq_len: Annotated[int, typer.Option(min=1, help="Tokens of the window.")] = WINDOW,
    json: JsonOption = False,
) -> None:
    """The named architectures at one size, by default the demo's."""
    from argap.models.presets import ARCHITECTURES

    size = {"hidden_size": hidden_size, "num_hidden_layers": layers, "vocab_size": vocab_size}
    rows = [_describe(name, _named(name, size, seq_len), seq_len) for name in ARCHITECTURES]
    if json:
        _print_json(rows)
        return
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    size_text = f"width {hidden_size}, {layers} layers, vocabulary {vocab_size:,}, a window of {seq_len:,} tokens"
    table = Table(title=f"At {size_text}", title_justify="left", box=SIMPLE_HEAD)
    for title in ("Name", "Params", "GFLOPs", "State", "Mixers"):
        table.add_column(title, justify="left" if title in ("Name", "Mixers") else "right")
    for row in rows:
        cells = (f"{row['params']:,}", f"{row['flops'] / 1e9:.2f}", f"{row['state_size']:,}")
        table.add_row(row["name"], *cells, _in_short(row["mixers"]))
    Console().print(table)


@app.command()
def show(
    model: Annotated[str, typer.Argument(help="A named architecture, a checkpoint's folder or hub id, a reference.")],
    hidden_size: WidthOption = 256,
    layers: LayersOption = 6,
    vocab_size: VocabOption = 8192,
    seq_len: Annotated[
        int | None, typer.Option(min=1, help=f"Tokens of the window: {WINDOW}, or what the checkpoint takes.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """One model: its parameters, the operations and the state of a window, its layers and their source."""
    from argap.models.presets import ARCHITECTURES

    if model in ARCHITECTURES:
        size = {"hidden_size": hidden_size, "num_hidden_layers": layers, "vocab_size": vocab_size}
        row = _describe(model, _named(model, size, seq_len or WINDOW), seq_len or WINDOW)
    else:
        row = _of_checkpoint(model, seq_len)
    if json:
        _print_json(row)
        return
    lines = {"model type": row["model_type"], "parameters": f"{row['params']:,}"}
    if row["flops"] is not None:
        lines["window"] = f"{row['window']:,} tokens"
        lines["operations"] = f"{row['flops'] / 1e9:.2f} GFLOPs, forward"
        lines["state"] = f"{row['state_size']:,} elements a sequence"
        lines |= {f"layer {number}": _in_full(mixer) for number, mixer in enumerate(row["mixers"])}
        lines["source"] = row["source"]
    width = max(map(len, lines))
    typer.echo(row["name"])
    for key, value in lines.items():
        typer.echo(f"  {key:{width}}  {value}")


def _named(name: str, size: dict[str, int], seq_len: int) -> "ArgapConfig":
    from argap.models.presets import build_config

    return build_config(name, **size, seq_len=seq_len)


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
        "state_size": found.state_size,
        "window": window,
        "mixers": config.mixers,
        "source": "; ".join(filter(None, sources)),
    }


def _of_checkpoint(source: str, seq_len: int | None) -> dict[str, Any]:
    """As `_describe`; of another model type the parameters alone are known, counted from its safetensors."""
    from argap.checkpoint import find_checkpoint
    from argap.models import ArgapConfig
    from argap.references import find_reference

    reference = find_reference(source)
    checkpoint = find_checkpoint(reference.checkpoint if reference else source)
    config = ArgapConfig.get_config_dict(checkpoint.folder)[0]
    if config.get("model_type") == ArgapConfig.model_type:
        own = ArgapConfig.from_pretrained(checkpoint.folder)
        return _describe(source, own, seq_len or min(WINDOW, own.max_position_embeddings or WINDOW))
    unknown = dict.fromkeys(("flops", "state_size", "window", "mixers", "source"))
    return {
        "name": source,
        "model_type": config.get("model_type", "unknown"),
        "params": _count_weights(checkpoint.folder),
        **unknown,
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
