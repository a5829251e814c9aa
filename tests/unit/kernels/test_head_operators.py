"""What holds for every operator over heads: strides, batches, lengths and splits do not change its result."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from argap.kernels.recurrent import taylor_sums
from argap.kernels.recurrent.delta_rule import delta_rule, delta_rule_reference
from argap.kernels.recurrent.gla import gla, gla_reference
from argap.kernels.recurrent.linear_attention import linear_attention, linear_attention_reference
from argap.kernels.recurrent.taylor_attention import taylor_attention, taylor_attention_reference
from tests.unit.kernels.conftest import TOLERANCE, relative_error

BATCH, HEADS, LENGTH = 2, 2, 127
Operator = Callable[..., tuple[torch.Tensor, torch.Tensor]]


def with_decay(kind: str) -> Operator:
    """Linear attention with decays from e^−0.02 to e^−50; g ``[B, H, T, K]`` lies between 0 and 1, mostly near 0."""

    def operator(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, **options: Any) -> Any:
        of_heads = torch.tensor([-0.02, -50.0], device=q.device)
        rates = {"none": None, "of a head": of_heads, "of a position": -50 * g[..., 0]}[kind]
        return linear_attention(q, k, v, log_decay=rates, normalize=kind == "of a head", **options)

    return operator


OPERATORS: dict[str, Operator] = {
    **{f"linear attention, decay {kind}": with_decay(kind) for kind in ("none", "of a head", "of a position")},
    "gla": lambda q, k, v, g, **options: gla(q, k, v, -0.25 * g, **options),  # pyright: ignore
    "gla, strong decays": lambda q, k, v, g, **options: gla(q, k, v, -500 * g, **options),  # pyright: ignore
    "taylor attention": lambda q, k, v, g, **options: taylor_attention(  # pyright: ignore
        q[..., :8], k[..., :8], v, **options
    ),
    "delta rule": lambda q, k, v, g, **options: delta_rule(q, k, v, g[..., 0], normalize=True, **options),
}
CUTS = {"gla": (64,), "gla, strong decays": (64,)}
"""Lengths at which a sequence is cut: of a chunk of GLA later positions may decide how its scores are computed, and so
their last bit."""

pytestmark = pytest.mark.parametrize("name", OPERATORS)


@pytest.fixture
def tensors(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """q, k, v and what decays or steps are made of; q and k positive, so that their sums are far from 0."""
    monkeypatch.setattr(taylor_sums, "SEGMENT", 64)
    q, k, g = (torch.rand(BATCH, HEADS, LENGTH, 20) for _ in range(3))
    return [x.to(device) for x in (q, k, torch.randn(BATCH, HEADS, LENGTH, 40), g**8)]


@pytest.mark.usefixtures("kernels_run")
def test_strides_of_any_kind_give_the_same_bits(name: str, tensors: list[torch.Tensor]) -> None:
    expected = OPERATORS[name](*tensors)[0]
    for laid_out in (
        [x.transpose(1, 2).contiguous().transpose(1, 2) for x in tensors],
        [torch.stack([x, x + 1], dim=-1)[..., 0] for x in tensors],
    ):
        assert torch.equal(OPERATORS[name](*laid_out)[0], expected)


@pytest.mark.usefixtures("kernels_run")
def test_the_same_bits_again_alone_and_cut_short(name: str, tensors: list[torch.Tensor]) -> None:
    y, after = OPERATORS[name](*tensors)
    again, after_again = OPERATORS[name](*tensors)
    assert torch.equal(again, y)
    assert torch.equal(after_again, after)
    assert torch.equal(OPERATORS[name](*(x[1:] for x in tensors))[0], y[1:])
    for length in CUTS.get(name, (40, 64, 70)):  # 64: whole chunks, no mask
        assert torch.equal(OPERATORS[name](*(x[:, :, :length] for x in tensors))[0], y[:, :, :length])


@pytest.mark.usefixtures("kernels_run")
def test_the_state_carries_over_a_split_sequence(name: str, tensors: list[torch.Tensor]) -> None:
    whole, last = OPERATORS[name](*tensors)
    first, middle = OPERATORS[name](*(x[:, :, :70] for x in tensors))
    second, end = OPERATORS[name](*(x[:, :, 70:] for x in tensors), state=middle)
    # Sums of log decays down to −6000 have rounding errors of 6000·2⁻²⁴.
    tolerance = 1e-3 if "strong" in name else TOLERANCE[torch.float32]
    assert relative_error(torch.cat([first, second], dim=2), whole) < tolerance
    assert relative_error(end, last) < tolerance


@pytest.mark.usefixtures("kernels_run")
def test_where_a_gradient_is_asked_for_the_reference_runs(name: str, tensors: list[torch.Tensor]) -> None:
    tensors = [x[:, :, :5].clone() for x in tensors]
    needs = tensors[3 if "gla" in name else 0].requires_grad_()
    OPERATORS[name](*tensors)[0].square().sum().backward()
    assert needs.grad is not None
    assert needs.grad.abs().max() > 0


REFERENCES: dict[str, Any] = {
    "gla": gla_reference,
    "linear_attention": linear_attention_reference,
    "taylor_attention": taylor_attention_reference,
    "delta_rule": delta_rule_reference,
}


@pytest.mark.gpu
def test_on_a_gpu_the_kernels_run(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v, g = (torch.rand(BATCH, HEADS, 65, 64, device="cuda", dtype=torch.bfloat16) for _ in range(4))
    y = OPERATORS[name](q, k, v, g)[0]
    for operator, reference in REFERENCES.items():
        monkeypatch.setitem(globals(), operator, reference)
    expected = OPERATORS[name](q, k, v, g)[0]
    assert not torch.equal(y, expected)
    torch.testing.assert_close(y, expected, rtol=0.1, atol=0.1)


@pytest.mark.gpu
def test_offsets_beyond_31_bits(name: str) -> None:
    q = torch.rand(66, 8192, 64, 64, device="cuda", dtype=torch.bfloat16).transpose(1, 2)
    if q.shape[1] != HEADS and "of a head" in name:
        pytest.skip("its decays are those of two heads")
    assert q.numel() > 2**31
    y = OPERATORS[name](q, q, q, q)[0]
    assert torch.equal(y[-1:], OPERATORS[name](*(q[-1:],) * 4)[0])
