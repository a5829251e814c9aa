"""The head: log-probs and best ids against float64, by the reference and by the kernels."""

import math
from typing import Any

import pytest
import torch

from argap.errors import ArgapError
from argap.kernels.head import linear_logprob as module
from argap.kernels.head.linear_logprob import LogProb, linear_logprob, linear_logprob_reference

DTYPES = [torch.float32, torch.float16, pytest.param(torch.bfloat16, marks=pytest.mark.gpu)]
LENGTHS = [1, 2, 63, 64, 65, 127, 500]


def exact(hidden, weight, target, bias=None, softcap=None, scale=1.0) -> Any:
    logits = hidden.double() @ weight.double().T
    if bias is not None:
        logits = logits + bias.double()
    logits = logits * scale
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    logprobs = logits.log_softmax(-1)
    entropy = -(logprobs.exp() * logprobs).sum(-1)
    return LogProb(logprobs.gather(-1, target[:, None])[:, 0], logits.argmax(-1), entropy)


def by_kernel(hidden, weight, target, bias=None, softcap=None, scale=1.0) -> Any:
    """Every output of the kernels, which start from memory full of NaN."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)  # torch then fills what it allocates
    try:
        return module._forward(hidden, weight, target, bias, softcap, scale, True, True)
    finally:
        torch.use_deterministic_algorithms(before)


def drawn(n, size, vocabulary, dtype, device="cpu"):
    generator = torch.Generator().manual_seed(n + size)
    hidden = torch.randn(n, size, generator=generator).to(device, dtype)
    weight = torch.randn(vocabulary, size, generator=generator).to(device, dtype)
    return hidden, weight, torch.randint(vocabulary, (n,), generator=generator).to(device)


def assert_close(found: Any, expected: Any):
    assert found.logprob.dtype == torch.float32
    torch.testing.assert_close(found.logprob.double(), expected.logprob, atol=1e-4, rtol=0)
    if found.top1 is not None:
        assert torch.equal(found.top1, expected.top1)
    if found.entropy is not None:
        torch.testing.assert_close(found.entropy.double(), expected.entropy, atol=1e-4, rtol=0)


@pytest.mark.parametrize("n", [1, 2, 63, 64, 65])
@pytest.mark.parametrize("softcap", [None, 5.0])
@pytest.mark.parametrize("scale", [1.0, 0.25])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_reference_agrees_with_float64_in_any_tiling(n, softcap, scale, bias, dtype, monkeypatch):
    monkeypatch.setattr(module, "REFERENCE_ROWS", 9)
    monkeypatch.setattr(module, "REFERENCE_IDS", 40)  # 40, 40 and 21 of 101
    hidden, weight, target = drawn(n, 32, 101, dtype)
    b = torch.randn(101).to(dtype) if bias else None
    found = linear_logprob(hidden, weight, target, b, softcap, scale=scale, top1=True, entropy=True)
    assert found.entropy is not None
    assert_close(found, exact(hidden, weight, target, b, softcap, scale))


def test_what_is_not_asked_for_is_not_given():
    assert linear_logprob(*drawn(3, 8, 10, torch.float32)).top1 is None


def test_large_logits_do_not_overflow():
    hidden, weight = torch.tensor([[200.0]]), torch.tensor([[1.0], [-1.0]])
    found = linear_logprob(hidden, weight, torch.tensor([1]))
    assert found.logprob.item() == -400.0


# 72 float16 numbers are 144 bytes, which the copy engine takes; 70 are 140, which it does not.
@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("size", [70, 72])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_kernels_agree_with_float64(n, size, dtype, device):
    inputs = drawn(n, size, 300, dtype, device)
    assert_close(by_kernel(*inputs), exact(*inputs))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("softcap", "scale"), [(None, 0.25), (5.0, 1.0), (30.0, 2.0)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_bias_cap_and_scale(bias, softcap, scale, dtype, device):
    hidden, weight, target = drawn(65, 40, 130, dtype, device)
    b = torch.randn(130, device=device).to(dtype) if bias else None
    assert_close(by_kernel(hidden, weight, target, b, softcap, scale), exact(hidden, weight, target, b, softcap, scale))


def test_more_tiles_than_are_joined_at_once(device):
    blocks = [launch.blocks["BV"] for shapes in module.LAUNCHES.by_device.values() for launch in shapes.values()]
    vocabulary = max(blocks) * module.ROW_LAUNCHES.at(device, "any").blocks["BT"] + 100
    hidden, weight, _ = drawn(3, 16, vocabulary, torch.float16, device)
    weight[[5, vocabulary // 2, vocabulary - 1]] = hidden * 2  # each row's best: at the start, amid, at the end
    target = torch.tensor([vocabulary - 1, 5, 0], device=device)
    found = by_kernel(hidden, weight, target)
    assert_close(found, exact(hidden, weight, target))
    assert found.top1.tolist() == [5, vocabulary // 2, vocabulary - 1]


def test_rows_apart_and_columns_apart(device):
    hidden, weight, target = drawn(10, 32, 40, torch.float32, device)
    expected = exact(hidden, weight, target)
    apart = torch.full((10, 3, 48), math.nan, device=device)[:, 1, :32].copy_(hidden)
    padded = torch.full((40, 56), math.nan, device=device)[:, 8:40].copy_(weight)
    assert_close(by_kernel(apart, padded, target), expected)
    assert_close(by_kernel(hidden.T.contiguous().T, weight, target), expected)
    assert_close(by_kernel(hidden[:1].expand(10, -1), weight, target), exact(hidden[:1].expand(10, -1), weight, target))
    with pytest.raises(ArgapError, match=r"weight \[V, D\] has strides \(1, 40\).*weight\.contiguous\(\)"):
        by_kernel(hidden, weight.T.contiguous().T, target)


@pytest.mark.parametrize("dtype", DTYPES)
def test_logits_of_plus_and_minus_80(dtype, device):
    # 80, −80, 80, −80, …, 300 of them: all the mass on the 150 even ids.
    sign = 1.0 - 2.0 * (torch.arange(300, device=device) % 2)
    hidden = torch.full((2, 16), 5.0, device=device).to(dtype)
    weight = sign[:, None].expand(-1, 16).contiguous().to(dtype)
    found = by_kernel(hidden, weight, torch.tensor([0, 299], device=device))
    expected = torch.tensor([-math.log(150), -math.log(150) - 160], device=device)
    torch.testing.assert_close(found.logprob, expected, atol=1e-4, rtol=0)
    assert found.top1.tolist() == [0, 0]


def test_equal_logits_and_a_certain_one(device):
    weight = torch.ones(300, 16, device=device)
    weight[299] = 9.0
    hidden = torch.stack([torch.zeros(16), torch.ones(16)]).to(device)
    found = by_kernel(hidden, weight, torch.tensor([299, 299], device=device))
    # All logits 0: log 1/300, and the lowest id. Then 144 against 16: certain, so log 1.
    torch.testing.assert_close(found.logprob, torch.tensor([-math.log(300), 0.0], device=device))
    assert found.top1.tolist() == [0, 299]
    assert (found.logprob <= 0).all()
    torch.testing.assert_close(found.entropy, torch.tensor([math.log(300), 0.0], device=device))


@pytest.mark.parametrize("function", [by_kernel, linear_logprob_reference])
def test_ids_outside_the_vocabulary_and_broken_states_give_nan(function, device):
    hidden, weight, _ = drawn(4, 16, 20, torch.float32, device)
    hidden[2, 3] = math.nan
    found = function(hidden, weight, torch.tensor([20, -1, 5, 19], device=device))
    assert found.logprob.isnan().tolist() == [True, True, True, False]


def test_no_rows(device):
    hidden, weight, target = drawn(0, 16, 20, torch.float32, device)
    assert by_kernel(hidden, weight, target).logprob.shape == (0,)
    assert linear_logprob_reference(hidden, weight, target).logprob.shape == (0,)


def test_the_same_bits_twice_and_in_parts(device, monkeypatch):
    hidden, weight, target = drawn(300, 40, 300, torch.float16, device)
    whole, again = (by_kernel(hidden, weight, target) for _ in range(2))
    monkeypatch.setattr(module, "SCRATCH_BYTES", 1)  # as many launches as there are blocks of rows
    parts = by_kernel(hidden, weight, target)
    for a, b, c in zip(whole, again, parts, strict=True):
        assert torch.equal(a, b)
        assert torch.equal(a, c)


@pytest.mark.gpu
@pytest.mark.parametrize(("n", "size", "vocabulary"), [(16384, 768, 50304), (4096, 2048, 50257), (1000, 2304, 256000)])
def test_real_heads_in_little_memory(n, size, vocabulary):
    hidden, weight, target = drawn(n, size, vocabulary, torch.bfloat16, "cuda")
    weight *= size**-0.5
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    found: Any = linear_logprob(hidden, weight, target, top1=True)
    outputs = sum(x.nbytes for x in found if x is not None)
    assert torch.cuda.max_memory_allocated() - before - outputs < 64 * 2**20
    some = slice(0, n, n // 200)
    expected = exact(hidden[some], weight, target[some])
    assert_close(LogProb(*(x[some] for x in found if x is not None)), expected)


@pytest.mark.gpu
@pytest.mark.alone
@pytest.mark.parametrize("size", [2048, 2047])  # by the copy engine; by pointers
def test_more_elements_than_32_bits_count(size):
    rows = 2**31 // size + 999
    large = torch.randn(rows, size, device="cuda", dtype=torch.bfloat16)
    small = torch.randn(130, size, device="cuda", dtype=torch.bfloat16) * size**-0.5
    target = torch.randint(rows - 900, rows, (130,), device="cuda")
    found = linear_logprob(small, large, target, top1=True)
    parts = torch.cat([small.float() @ part.float().T for part in large.split(2**17)], dim=1)
    expected = parts.gather(1, target[:, None])[:, 0] - parts.logsumexp(1)
    torch.testing.assert_close(found.logprob, expected, atol=1e-4, rtol=0)
    del parts
    last: Any = linear_logprob(large, small, target[:1].new_zeros(rows), top1=True)
    assert_close(LogProb(last.logprob[-200:], last.top1[-200:]), exact(large[-200:], small, target.new_zeros(200)))
