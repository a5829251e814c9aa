"""Small tensors made once: for later calls, or for one block."""

import torch

from argap.kernels.fused.rotary import rotation
from argap.kernels.shared import shared, shared_within

CPU = torch.device("cpu")


@torch.no_grad()
def test_a_block_makes_what_it_shares_itself_and_forgets_it() -> None:
    made: list[int] = []

    @shared
    def double(x: int) -> int:
        made.append(x)
        return 2 * x

    assert (double(1), double(1)) == (2, 2)
    with shared_within():
        assert (double(1), double(1)) == (2, 2)
    with shared_within():
        assert double(1) == 2
    assert double(1) == 2
    assert made == [1, 1, 1]


@torch.no_grad()
def test_a_position_in_storage_is_read_again_for_each_step() -> None:
    position = torch.full((1,), 3)
    for step in range(3, 6):
        with shared_within():
            cos, sin = rotation(position, 1, 8, 100.0, torch.float64, CPU)
            assert rotation(position, 1, 8, 100.0, torch.float64, CPU)[0] is cos
        expected = rotation(step, 1, 8, 100.0, torch.float64, CPU)
        outside = rotation(position, 1, 8, 100.0, torch.float64, CPU)
        by_name = rotation(first=position, length=1, size=8, theta=100.0, dtype=torch.float64, device=CPU)
        for found in ((cos, sin), outside, by_name):
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-14)
        position += 1
