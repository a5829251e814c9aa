"""``argap kernels``: list the ops with kernels, what runs on this machine, and launch configurations."""

from typing import Annotated

import typer


def kernels(
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the kernels and their launch configurations. Without a GPU, ops run their PyTorch references."""
    from argap.kernels.registry import OPS, describe, device

    ops = [describe(name) for name in OPS]
    if json:
        from json import dumps

        typer.echo(dumps({"device": _device_name(), "ops": [op.to_json() for op in ops]}, indent=2))
        return
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table(title=f"On {_device_name()}", title_justify="left", box=SIMPLE_HEAD)
    for title in ("Op", "Runs", "Computes"):
        table.add_column(title)
    for op in ops:
        table.add_row(op.name, op.runs, op.about)
    console.print(table)
    table = Table(title="Launch configurations", title_justify="left", box=SIMPLE_HEAD)
    for title in ("Kernel", "Device", "Shape", "Blocks", "Warps", "Stages"):
        table.add_column(title, justify="right" if title in ("Warps", "Stages") else "left")
    for op in ops:
        for row in op.configurations:
            blocks = " ".join(f"{name} {size}" for name, size in row.blocks.items())
            mark = f"{row.device} *" if row.used_here else row.device
            table.add_row(row.kernel, mark, row.shape, blocks, str(row.warps), str(row.stages))
    console.print(table)
    if device().type == "cuda":
        typer.echo("* used on this device")


def _device_name() -> str:
    import torch

    from argap.kernels.registry import device

    return torch.cuda.get_device_name() if device().type == "cuda" else "the CPU"
