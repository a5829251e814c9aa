"""The operations that mixers state: those that torch counts, which are matrix products, and the rest by hand."""

from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from argap.models.mixers.convolution import convolution_flops
from argap.models.registry import build_mixer

WIDTH = 8
CASES: dict[str, tuple[dict[str, Any], tuple[int, int], int]] = {
    # 4 heads of 2 × 2 products; reading takes 16 multiplications and 8 sums, making and skip 16 and 32.
    "h3": (
        {"name": "h3", "head_size": 2, "shift_states": 16, "states": 4},
        (3, 50),
        3 * 50 * (2 * 8 + 16 + 2 * 16 + 16 + 8)
        + 3 * 50 * 8 * 2 * 16
        + convolution_flops(3, 50, 16, 50)
        + 8 * 50 * 4 * 2,
    ),
    # The short convolution of 4·8 channels, 3 taps and a bias; three long ones, three skips and gates.
    "hyena": (
        {"name": "hyena", "order": 3},
        (2, 50),
        2 * 50 * 32 * (2 * 3 + 1) + 3 * (convolution_flops(2, 50, 8, 64) + 3 * 2 * 50 * 8),
    ),
    # The short convolution of 3·8 channels, 3 taps and a bias; 8·4 outer products, skips and their sums.
    "multihead_hyena": (
        {"name": "multihead_hyena", "heads": 2},
        (2, 50),
        2 * 50 * 24 * (2 * 3 + 1) + convolution_flops(2, 50, 32, 64) + 3 * 2 * 50 * 32,
    ),
    # 8 operations for each tap of 8 channels with 2 states; skip 2, two products, each with a filter of its own.
    **{
        f"liquid_s4 {kernel}": (
            {"name": "liquid_s4", "kernel": kernel, "degree": 3, "states": 4},
            (2, 50),
            2 * 50 * 8 * 4
            + convolution_flops(2, 50, 8, 50)
            + 8 * 50 * 8 * 2
            + 2 * (convolution_flops(2, 50, 8, taps) + 8 * taps * 8 * 2),
        )
        for kernel, taps in (("pb", 1), ("kb", 50))
    },
    "long_conv": ({"name": "long_conv"}, (2, 64), 2 * 64 * 2 * 8 + convolution_flops(2, 64, 8, 64)),
    "mamba": (
        {"name": "mamba", "states": 4},
        (2, 10),
        2 * 10 * (6 * 16 * 4 + 4 * 16) + 2 * 10 * 16 * (2 * 4 + 1),
    ),
    "rwkv4": ({"name": "rwkv4"}, (2, 10), 2 * 10 * 27 * 8),
    "rwkv4_channel": ({"name": "rwkv4_channel"}, (2, 10), 2 * 10 * (7 * 8 + 32)),
}


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_operations_are_the_matrix_products_and_what_is_stated(
    case: tuple[dict[str, Any], tuple[int, int], int],
) -> None:
    spec, (batch, length), rest = case
    mixer = build_mixer(spec, WIDTH, 64).requires_grad_(False)
    for parameter in mixer.parameters():
        torch.nn.init.zeros_(parameter)
    with FlopCounterMode(display=False) as counter:
        mixer(torch.zeros(batch, length, WIDTH))
    assert mixer.flops(batch, length) - counter.get_total_flops() == rest
