"""``argap kernels``: list the ops with kernels, what runs on this machine, and launch configurations."""

import typer

from argap.cli.options import Json
from argap.cli.output import print_json, table


def kernels(as_json: Json = False) -> None:
    """List the kernels and their launch configurations. Without a GPU, ops run their PyTorch references."""
    from argap.kernels.registry import OPS, describe, device

    ops = [describe(name) for name in OPS]
    if as_json:
        print_json({"device": _device_name(), "ops": [op.to_json() for op in ops]})
        return
    from rich.console import Console

    console = Console()
    of_ops = table(f"On {_device_name()}", "Op", "Runs", "Computes")
    for op in ops:
        of_ops.add_row(op.name, op.runs, op.about)
    console.print(of_ops)
    launches = table("Launch configurations", "Kernel", "Device", "Shape", "Blocks", ">Warps", ">Stages")
    for op in ops:
        for row in op.configurations:
            blocks = " ".join(f"{name} {size}" for name, size in row.blocks.items())
            mark = f"{row.device} *" if row.used_here else row.device
            launches.add_row(row.kernel, mark, row.shape, blocks, str(row.warps), str(row.stages))
    console.print(launches)
    if device().type == "cuda":
        typer.echo("* used on this device")


def _device_name() -> str:
    import torch

    from argap.kernels.registry import device

    return torch.cuda.get_device_name() if device().type == "cuda" else "the CPU"
