"""``argap kernels``: list the ops with kernels, what runs on this machine, and launch configurations."""

from argap.cli.options import Json
from argap.cli.output import print_json


def kernels(as_json: Json = False) -> None:
    """List the kernels and their launch configurations. Without a GPU, ops run their PyTorch references."""
    from argap.kernels.registry import OPS, describe, device

    ops, where = [describe(name) for name in OPS], _device_name()
    if as_json:
        print_json({"device": where, "ops": [op.to_json() for op in ops]})
        return
    from argap.reports.formats import Column, Table, print_tables

    launches = [
        (
            row.kernel,
            f"{row.device} *" if row.used_here else row.device,
            row.shape,
            " ".join(f"{name} {size}" for name, size in row.blocks.items()),
            str(row.warps),
            str(row.stages),
        )
        for op in ops
        for row in op.configurations
    ]
    left = [Column(title, "left") for title in ("Op", "Runs", "Computes", "Kernel", "Device", "Shape", "Blocks")]
    of_ops = Table(tuple(left[:3]), tuple((op.name, op.runs, op.about) for op in ops), (), title=f"On {where}")
    notes = ("* used on this device",) if device().type == "cuda" else ()
    columns = (*left[3:], Column("Warps"), Column("Stages"))
    print_tables([of_ops, Table(columns, tuple(launches), notes, title="Launch configurations")])


def _device_name() -> str:
    import torch

    from argap.kernels.registry import device

    return torch.cuda.get_device_name() if device().type == "cuda" else "the CPU"
