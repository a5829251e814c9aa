"""``argap kernels``: list the ops with kernels, which of them run on this machine, and launch configurations."""

from typing import TYPE_CHECKING

from argap.cli.output import Output

if TYPE_CHECKING:
    from argap.kernels.registry import Op
    from argap.reports.tables.formats import Table


def kernels(output: Output) -> None:
    """List the kernels and their launch configurations. Without a GPU, ops run their PyTorch references."""
    from argap.kernels.registry import OPS, describe

    ops, device = [describe(name) for name in OPS], _device_name()
    output.show({"device": device, "ops": [op.to_json() for op in ops]}, lambda: _tables(ops, device))


def _tables(ops: "list[Op]", device: str) -> "list[Table]":
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
