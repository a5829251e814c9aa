"""The kernels around the mixers (norms, rotary positions, gates) against their references in float64, and those
against their definitions."""

import pytest
import torch

from argap.kernels.fused import rotary as rotations
from argap.kernels.fused.gated_norm import gated_norm
from argap.kernels.fused.gated_product import gated_product
from argap.kernels.fused.residual_norm import residual_norm
from argap.kernels.fused.token_shift import token_shift
from argap.kernels.fused.weighted_rows import weighted_rows, weighted_rows_reference
from tests.unit.kernels.conftest import BFLOAT16, TOLERANCE, relative_error

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float16, BFLOAT16])

pytestmark = pytest.mark.usefixtures("kernels_run")


def drawn(*size: int, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(size).to(device, dtype)


@pytest.mark.parametrize("centered", [False, True])
def test_residual_norm_is_the_definition(centered: bool) -> None:
    torch.manual_seed(0)
    x, residual = torch.randn(2, 3, 5, dtype=torch.float64), torch.randn(2, 3, 5, dtype=torch.float64)
    weight, bias = torch.randn(2, 5, dtype=torch.float64)
    normed, total = residual_norm(x, weight, 0.5, residual, bias=bias if centered else None, centered=centered)
    s = x + residual
    torch.testing.assert_close(total, s, rtol=1e-12, atol=0)
    if centered:
        s = s - s.mean(-1, keepdim=True)
    expected = weight * s / (s.square().mean(-1, keepdim=True) + 0.5).sqrt() + (bias if centered else 0)
    torch.testing.assert_close(normed, expected, rtol=1e-12, atol=1e-12)


def test_residual_norm_of_a_wider_stream(device: torch.device) -> None:
    x, weight = drawn(3, 40, device=device, dtype=torch.float32), drawn(40, device=device, dtype=torch.float16)
    normed, total = residual_norm(x, weight, 1e-5, dtype=torch.float16)
    assert (normed.dtype, total.dtype) == (torch.float16, torch.float32)
    assert relative_error(normed, residual_norm(x.double(), weight.double(), 1e-5)[0]) < TOLERANCE[torch.float16]


def test_token_shift_is_the_definition() -> None:
    x = torch.tensor([[[2.0], [10.0]]], dtype=torch.float64)  # two positions of one channel
    (found,) = token_shift(x, [torch.tensor([0.25], dtype=torch.float64)])
    assert found.flatten().tolist() == [0.25 * 2, 0.25 * 10 + 0.75 * 2]


def test_weighted_rows_of_weight_0_are_not_read(device: torch.device) -> None:
    rows = torch.tensor([[1.0, 2.0], [float("nan")] * 2, [10.0, 20.0]], device=device)
    index, weights = (
        torch.tensor([[0, 1], [2, 0]], device=device),
        torch.tensor([[3.0, 0.0], [0.5, -1.0]], device=device),
    )
    for compute in (weighted_rows, weighted_rows_reference):
        assert compute(rows, index, weights).tolist() == [[3.0, 6.0], [4.0, 8.0]]


@DTYPES
@pytest.mark.parametrize("parts", [2, 3])
@pytest.mark.parametrize(("length", "heads", "size"), [(1, 1, 2), (65, 3, 6), (33, 15, 64), (9, 4, 240)])
def test_rotary(length: int, heads: int, size: int, parts: int, dtype: torch.dtype, device: torch.device) -> None:
    torch.manual_seed(length)
    projection = drawn(2, length, parts, heads, size, device=device, dtype=dtype)
    wide, untouched = projection.double(), projection[:, :, 2:].clone()
    expected = rotations.rotary(wide, 7, 1e4, key_scale=0.3)
    cos, sin = rotations.rotation(7, length, size, 1e4, torch.float32, device)
    q, k = projection[:, :, :2].permute(2, 0, 3, 1, 4)
    rotations.rotate_in_place(q, k, cos, sin, 0.3)
    for part, turned in enumerate(expected):
        # The angles are float32: at position t their error is t·2⁻²⁴.
        assert relative_error(projection[:, :, part].transpose(1, 2), turned) < TOLERANCE[dtype]
    assert torch.equal(projection[:, :, 2:], untouched)


@DTYPES
@pytest.mark.parametrize("batches", [1, 2])
def test_rotary_of_some_dimensions_with_fewer_key_heads(batches: int, dtype: torch.dtype, device: torch.device) -> None:
    """Laid out as GPT-NeoX's projection, with the angles of both halves and of each sequence."""
    torch.manual_seed(4)
    projection = drawn(2, 9, 4, 3 * 20, device=device, dtype=dtype)
    q, k, _ = projection.transpose(1, 2).chunk(3, dim=-1)
    k = k[:, :2]
    angles = torch.randn(batches, 9, 6, device=device).repeat(1, 1, 2)  # R 12 of K 20
    expected, untouched = [], projection[..., 40:].clone()
    for x in (q.double(), k.double()):
        turned = rotations.rotate(
            x[..., :12], angles[:, None, :, :6].double().cos(), angles[:, None, :, :6].double().sin()
        )
        expected.append(torch.cat([turned, x[..., 12:]], dim=-1))
    found = rotations.rotate_in_place(q, k, angles.cos(), angles.sin())
    for part, turned in zip(found, expected, strict=True):
        assert relative_error(part, turned) < TOLERANCE[dtype]
    assert torch.equal(projection[..., 40:], untouched)


def test_rotary_is_the_definition() -> None:
    torch.manual_seed(1)
    projection = torch.randn(1, 4, 2, 1, 6, dtype=torch.float64)
    q, k = rotations.rotary(projection, 3, 100.0, key_scale=2.0)
    for t in range(4):
        for pair in range(3):
            angle = torch.tensor((t + 3) * 100.0 ** (-2 * pair / 6), dtype=torch.float64)
            turn = torch.polar(torch.ones_like(angle), angle)
            for part, (found, scale) in enumerate(((q, 1), (k, 2))):
                a, b = projection[0, t, part, 0, pair], projection[0, t, part, 0, pair + 3]
                expected = torch.complex(a, b) * turn * scale
                result = torch.complex(found[0, 0, t, pair], found[0, 0, t, pair + 3])
                torch.testing.assert_close(result, expected, rtol=1e-12, atol=1e-12)


def test_gated_product_is_the_definition() -> None:
    g, v, u = (torch.tensor([x], dtype=torch.float64) for x in (0.5, 3.0, 2.0))
    b, s, c = (torch.tensor([x], dtype=torch.float64) for x in (1.5, 10.0, 7.0))
    found = gated_product(g, v, "silu", gate_bias=b, skip=s, skipped=u, value_bias=c)
    # (0.5 + 1.5) / (1 + e⁻²) · (3 + 10 · 2 + 7)
    torch.testing.assert_close(found, 2 / (1 + torch.tensor([-2.0]).double().exp()) * 30, rtol=1e-12, atol=0)


def test_gated_norm_is_the_definition() -> None:
    torch.manual_seed(2)
    values, gate = torch.randn(3, 2, 5, dtype=torch.float64), torch.randn(3, 10, dtype=torch.float64)
    weight = torch.randn(5, dtype=torch.float64)
    for centered, activation in ((False, "silu"), (True, "silu"), (False, "sigmoid")):
        x = values - values.mean(-1, keepdim=True) if centered else values
        given = None if centered else weight
        normed = x / (x.square().mean(-1, keepdim=True) + 0.1).sqrt()
        factor = gate.sigmoid() if activation == "sigmoid" else gate * gate.sigmoid()
        expected = factor * (normed if given is None else normed * given).flatten(1)
        options = {"dtype": torch.float64, "centered": centered, "activation": activation}
        found = gated_norm(values, gate, given, 0.1, **options)
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    x, each = values * gate.sigmoid().unflatten(1, (2, 5)), torch.randn(10, dtype=torch.float64)
    expected = (x / (x.square().mean(-1, keepdim=True) + 0.1).sqrt()).flatten(1) * each
    found = gated_norm(values, gate, each, 0.1, dtype=torch.float64, activation="sigmoid", gate_first=True)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_two_runs_and_any_batch_give_the_same_bits(device: torch.device) -> None:
    torch.manual_seed(3)
    x, residual, weight = (torch.randn(*s, device=device) for s in ((6, 96), (6, 96), (96,)))
    for found, alone in zip(
        residual_norm(x, weight, 1e-5, residual), residual_norm(x[:2], weight, 1e-5, residual[:2]), strict=True
    ):
        assert torch.equal(found[:2], alone)
    assert torch.equal(residual_norm(x, weight, 1e-5, residual)[1], x + residual)
    assert torch.equal(gated_product(x, residual)[:2], gated_product(x[:2], residual[:2]))
    heads = residual.unflatten(-1, (4, 24))
    whole = gated_norm(heads, x, None, 1e-5, dtype=x.dtype, centered=True)
    assert torch.equal(whole[:2], gated_norm(heads[:2], x[:2], None, 1e-5, dtype=x.dtype, centered=True))


def test_an_input_that_needs_a_gradient_runs_the_reference() -> None:
    x, y, w = (torch.randn(*s, dtype=torch.float64, requires_grad=True) for s in ((2, 4), (2, 4), (4,)))
    assert torch.autograd.gradcheck(lambda x, y, w: residual_norm(x, w, 1e-5, y), (x, y, w))
    assert torch.autograd.gradcheck(
        lambda x, y, w: gated_product(x, y, "silu", gate_bias=w, skip=w, skipped=x), (x, y, w)
    )
