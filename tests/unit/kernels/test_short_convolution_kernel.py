"""The short convolution's kernel against its reference in float64, and that against a loop."""

from typing import Any

import pytest
import torch

from argap.kernels.convolution import short_convolution as short_convolution_kernel
from argap.kernels.convolution.short_convolution import short_convolution, short_convolution_reference
from tests.unit.kernels.conftest import BFLOAT16, TOLERANCE, relative_error

WIDTH = 40  # no multiple of a block

pytestmark = pytest.mark.usefixtures("kernels_run")


def kernel(*given: Any, **options: Any) -> torch.Tensor:
    return short_convolution(*given, **options)[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, BFLOAT16])
@pytest.mark.parametrize("extras", [False, True], ids=["alone", "bias, SiLU, gate"])
@pytest.mark.parametrize(("length", "taps"), [(1, 4), (2, 3), (63, 1), (64, 9), (65, 4), (127, 2), (500, 4)])
def test_it_is_the_reference(length: int, taps: int, extras: bool, dtype: torch.dtype, device: torch.device) -> None:
    torch.manual_seed(length)
    # Parts of wider rows, as a projection gives them.
    x, gate = (torch.randn(2, length, 3 * WIDTH).to(device, dtype)[..., i * WIDTH :][..., :WIDTH] for i in (0, 2))
    filters, bias = torch.randn(taps, WIDTH).to(device, dtype), torch.randn(WIDTH).to(device, dtype)
    state = torch.randn(2, max(0, taps - 2), WIDTH).to(device, dtype)
    if extras:
        found = kernel(x, filters, bias, silu=True, gate=gate, state=state)
        wide = {"silu": True, "gate": gate.double(), "state": state.double()}
        expected = short_convolution_reference(x.double(), filters.double(), bias.double(), **wide)
    else:
        found = kernel(x, filters)
        expected = short_convolution_reference(x.double(), filters.double())
    assert found.dtype == dtype
    assert relative_error(found, expected) < TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, BFLOAT16])
@pytest.mark.parametrize("unit_heads", [(2, 16), (1, 20), (5, 8), (3, 5), (1, 1)])
@pytest.mark.parametrize("gated", [False, True])
def test_heads_of_unit_norm(
    unit_heads: tuple[int, int], gated: bool, dtype: torch.dtype, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of several programs a row (the first of which have no other heads), of all and of part of the channels."""
    monkeypatch.setattr(short_convolution_kernel, "ROW", 16)
    torch.manual_seed(1)
    x, gate = torch.randn(2, 2, 37, WIDTH).to(device, dtype)
    taps = torch.randn(4, WIDTH).to(device, dtype)
    x[0, :9] = 0  # a norm of 0
    given = {"silu": True, "unit_heads": unit_heads}
    found = kernel(x, taps, gate=gate if gated else None, **given)
    wide = gate.double() if gated else None
    expected = short_convolution_reference(x.double(), taps.double(), gate=wide, **given)
    assert relative_error(found, expected) < TOLERANCE[dtype]
    if not gated:
        H, K = unit_heads
        norms = expected[..., : H * K].unflatten(-1, unit_heads).norm(dim=-1)
        assert torch.equal(norms[0, :5], torch.zeros(5, H).to(norms))
        torch.testing.assert_close(norms[1], torch.ones(37, H).to(norms))
        plain = short_convolution_reference(x.double(), taps.double(), silu=True)
        assert torch.equal(expected[..., H * K :], plain[..., H * K :])


def test_the_reference_is_the_definition() -> None:
    torch.manual_seed(0)
    sizes = ((2, 9, 5), (4, 5), (5,), (2, 9, 5), (2, 3, 5))
    x, taps, bias, gate, state = (torch.randn(size, dtype=torch.float64) for size in sizes)
    seen = torch.cat([state, x], dim=1)
    expected = torch.empty_like(x)
    for t in range(9):
        total = bias + sum(taps[s] * seen[:, 3 + t - s] for s in range(4))
        expected[:, t] = total * total.sigmoid() * gate[:, t]
    found, last = short_convolution(x, taps, bias, silu=True, gate=gate, state=state)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    assert torch.equal(last, x[:, 6:])


@pytest.mark.parametrize("cut", [1, 2, 30])
def test_a_sequence_goes_on_from_its_state(cut: int, device: torch.device) -> None:
    torch.manual_seed(cut)
    x, taps = torch.randn(2, 70, WIDTH, device=device), torch.randn(4, WIDTH, device=device)
    _, state = short_convolution(x[:, :cut], taps)
    assert state.shape[1] == min(cut, 3)
    assert torch.equal(kernel(x[:, cut:], taps, state=state), kernel(x, taps)[:, cut:])


def test_two_runs_and_any_strides_give_the_same_bits(device: torch.device) -> None:
    torch.manual_seed(1)
    x, taps = torch.randn(2, 70, WIDTH, device=device), torch.randn(4, WIDTH, device=device)
    whole = kernel(x, taps)
    assert torch.equal(whole, kernel(x, taps))
    assert torch.equal(whole, kernel(x.mT.contiguous().mT, taps.T.contiguous().T))
    assert torch.equal(whole[:1, :33], kernel(x[:1, :33], taps))
    apart, same = torch.randn(2 * WIDTH, device=device)[::2], torch.randn(1, device=device).expand(WIDTH)
    for bias in (apart, same):
        assert torch.equal(kernel(x, taps, bias), kernel(x, taps, bias.clone(memory_format=torch.contiguous_format)))


def test_a_result_by_channel_has_the_same_bits(device: torch.device) -> None:
    torch.manual_seed(2)
    x, taps = torch.randn(2, 70, WIDTH, device=device), torch.randn(3, WIDTH, device=device)
    found = kernel(x, taps, by_channel=True)
    assert found.permute(2, 0, 1).is_contiguous()
    assert torch.equal(found, kernel(x, taps))


def test_what_wants_a_gradient_takes_the_reference() -> None:
    x = torch.randn(1, 5, 3, dtype=torch.float64, requires_grad=True)
    taps = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x, taps: short_convolution(x, taps, silu=True)[0], (x, taps))


@pytest.mark.gpu
def test_offsets_beyond_32_bits(device: torch.device) -> None:
    x = torch.zeros(2, 2**20 + 8, 1024, dtype=torch.bfloat16, device=device)  # 2³¹ elements and some
    x[1, -8:] = torch.randn(8, 1024).to(x)
    taps = torch.randn(4, 1024).to(x)
    expected = short_convolution_reference(x[1:, -8:].double(), taps.double())
    assert relative_error(kernel(x, taps)[1:, -8:], expected) < TOLERANCE[torch.bfloat16]
