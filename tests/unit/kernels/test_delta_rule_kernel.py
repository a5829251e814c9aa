"""The delta rule's kernels against their reference in float64, and that against a loop."""

import pytest
import torch
import torch.nn.functional as F

from argap.kernels import launch as launching
from argap.kernels.launch import HeadTensors, Launch, LaunchTable
from argap.kernels.recurrent import delta_rule as delta_rule_kernel
from argap.kernels.recurrent.delta_rule import LAUNCHES, delta_rule, delta_rule_reference
from tests.unit.kernels.conftest import BFLOAT16, TOLERANCE, relative_error

BATCH, HEADS = 2, 2
Inputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]

pytestmark = pytest.mark.usefixtures("kernels_run")


def inputs(length: int, key: int, value: int, dtype: torch.dtype, device: torch.device) -> Inputs:
    """q, k of unit length, v, and β from 0 to 2, as views of ``[B, T, H, …]``."""
    generator = torch.Generator().manual_seed(length)
    q, k, v = (torch.randn(BATCH, length, HEADS, size, generator=generator) for size in (key, key, value))
    beta = 2 * torch.rand(BATCH, length, HEADS, generator=generator)
    q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
    q, k, v, beta = (x.transpose(1, 2).to(device, dtype) for x in (q, k, v, beta))
    return q, k, v, beta


@pytest.mark.parametrize("rate", [0.0, 1e-4, 1.0, 2.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, BFLOAT16])
def test_repeated_keys(rate: float, dtype: torch.dtype, device: torch.device) -> None:
    """One key throughout: the inverse's entries stay within 2, while powers of L exceed 10¹⁷."""
    if dtype == torch.bfloat16 and rate == 2:
        pytest.skip("the state alternates and keeps every rounding error; 8 bits are too few")
    q, k, v, beta = (x[:1, :1] for x in inputs(130, 16, 16, dtype, device))
    k, beta = k[:, :, :1].expand_as(k), torch.full_like(beta, rate)
    y, after = delta_rule(q, k, v, beta)
    expected, expected_after = delta_rule_reference(*(x.double() for x in (q, k, v, beta)))
    # With β = 2 and one key the state alternates and keeps every rounding error: a random walk of 130 steps.
    allowed = TOLERANCE[dtype] * (12 if rate == 2 else 2)
    assert (y.double() - expected).norm() <= allowed * expected.norm()
    assert (after.double() - expected_after).norm() <= allowed * expected_after.norm()


@pytest.mark.parametrize("decays", [None, "of a position", "of a channel"])
@pytest.mark.parametrize("chunk", [7, 64, None])
def test_the_reference_is_the_recurrence(chunk: int | None, decays: str | None) -> None:
    q, k, v, beta = inputs(50, 4, 3, torch.float64, torch.device("cpu"))
    before = torch.randn(BATCH, HEADS, 4, 3, dtype=torch.float64)
    rates = -9 * torch.rand(BATCH, HEADS, 50, 4, dtype=torch.float64) ** 8
    log_decay = {None: None, "of a position": rates[..., 0], "of a channel": rates}[decays]
    options = {"log_decay": log_decay, "normalize": True, "scale": 0.5, "state": before, "chunk": chunk}
    y, after = delta_rule_reference(3 * q, 5 * k, v, beta, **options)
    q, k, state = F.normalize(q, dim=-1) / 2, F.normalize(k, dim=-1), before
    for t in range(50):
        if log_decay is not None:
            state = log_decay[:, :, t].reshape(BATCH, HEADS, -1, 1).exp() * state
        key = k[:, :, t, :, None]
        state = state + key * (beta[:, :, t, None] * (v[:, :, t] - (key.mT @ state)[:, :, 0]))[:, :, None]
        torch.testing.assert_close(y[:, :, t], (q[:, :, t, None] @ state)[:, :, 0], rtol=0, atol=1e-12)
    torch.testing.assert_close(after, state, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float16, BFLOAT16])
@pytest.mark.parametrize(
    ("length", "key", "value", "launch"),
    [(70, 256, 40, None), (66, 192, 16, Launch({"BV": 32, "TRANSPOSED": 0}, stages=1)), (1, 130, 5, None)],
)
def test_wide_keys(
    length: int,
    key: int,
    value: int,
    launch: Launch | None,
    dtype: torch.dtype,
    device: torch.device,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Keys wider than 128 have their scores computed first, with S as it is and transposed; a sequence has the same
    bits alone."""
    if launch is not None:
        by_class = {**LAUNCHES.rows(device), "256": launch}
        monkeypatch.setattr(delta_rule_kernel, "LAUNCHES", LaunchTable("delta_rule: scan", {"any": by_class}))
    q, k, v, beta = inputs(length, key, value, dtype, device)
    q, k = 3 * q, 2 * k
    before = torch.randn(BATCH, HEADS, key, value, device=device)
    y, after = delta_rule(q, k, v, beta, normalize=True, state=before)
    wide = (x.double() for x in (q, k, v, beta))
    expected, expected_after = delta_rule_reference(*wide, normalize=True, state=before.double())
    assert relative_error(y, expected) < TOLERANCE[dtype]
    assert relative_error(after, expected_after) < TOLERANCE[dtype]
    alone, after_alone = delta_rule(*(x[1:] for x in (q, k, v, beta)), normalize=True, state=before[1:])
    assert torch.equal(alone, y[1:])
    assert torch.equal(after_alone, after[1:])


@pytest.mark.parametrize(
    ("batch", "heads", "value", "block"),
    [(16, 8, 256, 128), (4, 8, 256, 64), (1, 8, 256, 32), (1, 1, 5, 32), (67, 1, 128, 128), (66, 1, 128, 64)],
)
def test_wide_keys_take_blocks_that_fill_half_of_a_hopper_gpu(
    batch: int, heads: int, value: int, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 132 multiprocessors; 66 programs leave half of them idle."""
    for module in (delta_rule_kernel, launching):
        monkeypatch.setattr(module, "device_class", lambda device: "hopper")
    monkeypatch.setattr(delta_rule_kernel, "multiprocessors", lambda device: 132)
    q, v = (torch.empty(batch, heads, 1, size, dtype=torch.bfloat16) for size in (256, value))
    assert delta_rule_kernel._scan_launch(HeadTensors.of(q, q, v, None)).blocks["BV"] == block
    narrow = HeadTensors.of(q[..., :128], q[..., :128], v, None)
    assert delta_rule_kernel._scan_launch(narrow) == LAUNCHES.by_device["hopper"]["128"]


@pytest.mark.gpu
@pytest.mark.parametrize("normalize", [False, True])
def test_blocks_for_few_heads_give_the_same_bits(normalize: bool, device: torch.device) -> None:
    """A batch that fills the GPU takes wider blocks of V than one sequence of it, or one head."""
    q, k, v, beta = (torch.randn(16, 8, 300, 256, device=device, dtype=torch.bfloat16) for _ in range(4))
    q, k, beta = F.normalize(q, dim=-1), F.normalize(k, dim=-1), beta[..., 0].sigmoid()
    y, after = delta_rule(q, k, v, beta, normalize=normalize)
    for batch, heads in ((slice(4, 8), slice(None)), (slice(3, 4), slice(None)), (slice(0, 1), slice(2, 3))):
        part, part_after = delta_rule(*(x[batch, heads] for x in (q, k, v, beta)), normalize=normalize)
        assert torch.equal(part, y[batch, heads])
        assert torch.equal(part_after, after[batch, heads])


@pytest.mark.gpu
def test_a_long_sequence_and_the_widest_keys(device: torch.device) -> None:
    for key, dtype in ((128, torch.bfloat16), (256, torch.bfloat16), (128, torch.float32)):
        q, k, v, beta = inputs(500, key, 128, dtype, device)
        y, _ = delta_rule(q, k, v, beta, normalize=True)
        expected, _ = delta_rule_reference(*(x.double() for x in (q, k, v, beta)), normalize=True)
        assert relative_error(y, expected) < TOLERANCE[dtype]
