"""``argap kernels``: list the ops with kernels, what runs on this machine, and launch configurations."""

from typing import TYPE_CHECKING

from argap.cli.output import Output

if TYPE_CHECKING:
    from argap.kernels.registry import Op
    from argap.reports.formats import Table


def kernels(output: Output) -> None:
    """List the kernels and their launch configurations. Without a GPU, ops run their PyTorch references."""
    from argap.kernels.registry import OPS, describe
    from argap.reports.formats import Column, Table

    ops, device = [describe(name) for name in OPS], _device_name()
    columns = tuple(Column(title, "left") for title in ("Op", "Runs", "Computes"))
    table = Table(columns, tuple((op.name, op.runs, op.about) for op in ops), (), title=f"On {device}")
    output.show({"device": device, "ops": [op.to_json() for op in ops]}, [table, _launches(ops)])


def _launches(ops: "list[Op]") -> "Table":
    from argap.reports.formats import Column, Table

    rows = [
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
    columns = (*(Column(title, "left") for title in ("Kernel", "Device", "Shape", "Blocks")), Column("Warps"))
    notes = ("* used on this device",) if any(" *" in row[1] for row in rows) else ()
    return Table((*columns, Column("Stages")), tuple(rows), notes, title="Launch configurations")


def _device_name() -> str:
    import torch

    from argap.kernels.registry import device

    return torch.cuda.get_device_name() if device().type == "cuda" else "the CPU"
