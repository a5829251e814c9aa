"""Mamba's selective scan vs. its PyTorch reference.

transformers without mamba-ssm loops over positions in Python and is much slower than both.
"""

from collections.abc import Iterator
from functools import partial

import torch
from kernel_case import Case, first_output, relative_error

from argap.kernels.scan.selective_scan import selective_scan, selective_scan_reference

BATCH, WIDTH, STATES = 8, 2048, 16


def cases() -> Iterator[Case]:
    decay = -torch.arange(1.0, STATES + 1, device="cuda").expand(WIDTH, STATES).contiguous()
    skip = torch.randn(WIDTH, device="cuda")
    for length in (512, 2048, 8192):
        u, step, gate = (torch.randn(BATCH, length, WIDTH, device="cuda", dtype=torch.bfloat16) for _ in range(3))
        b, c = (torch.randn(BATCH, length, STATES, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        inputs, extras = (u, step - 4, decay, b, c), {"skip": skip, "gate": gate}
        yield Case(
            "selective scan",
            f"B {BATCH}, T {length}, E {WIDTH}, N {STATES}",
            flops=6 * u.numel() * STATES,  # not matrix products: exponentials bound it
            bytes=4 * u.nbytes + b.nbytes + c.nbytes,
            ours=first_output(selective_scan, *inputs, **extras),
            check=partial(error, inputs, extras),
            peers={"our reference": first_output(selective_scan_reference, *inputs, **extras)} if length < 8192 else {},
        )


def error(inputs: tuple[torch.Tensor, ...], extras: dict[str, torch.Tensor], y: torch.Tensor) -> float:
    """Compute the error of the first sequence against the float64 reference."""
    u, step, decay, b, c = inputs
    first = (x[:1].double() for x in (u, step, b, c))
    u, step, b, c = first
    wide = {"skip": extras["skip"].double(), "gate": extras["gate"][:1].double()}
    return relative_error(y[:1], selective_scan_reference(u, step, decay.double(), b, c, **wide)[0])
