"""The head: chunked log-probs against float64."""

import pytest
import torch

from argap.kernels import linear_logprob as module
from argap.kernels.linear_logprob import linear_logprob


def exact(hidden, weight, target, bias=None, softcap=None):
    logits = hidden.double() @ weight.double().T
    if bias is not None:
        logits = logits + bias.double()
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    return logits.log_softmax(-1).gather(-1, target[:, None])[:, 0], logits.argmax(-1)


@pytest.mark.parametrize("n", [1, 2, 63, 64, 65])
@pytest.mark.parametrize("softcap", [None, 5.0])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_agrees_with_float64_in_any_chunking(n, softcap, bias, dtype, monkeypatch):
    monkeypatch.setitem(module.CHUNK_ELEMENTS, "cpu", 1000)  # 9 rows of 101 logits at a time
    generator = torch.Generator().manual_seed(n)
    hidden = torch.randn(n, 32, generator=generator).to(dtype)
    weight = torch.randn(101, 32, generator=generator).to(dtype)
    b = torch.randn(101, generator=generator).to(dtype) if bias else None
    target = torch.randint(101, (n,), generator=generator)
    found = linear_logprob(hidden, weight, target, b, softcap)
    expected, best = exact(hidden, weight, target, b, softcap)
    assert found.logprob.dtype == torch.float32
    torch.testing.assert_close(found.logprob.double(), expected, atol=1e-4, rtol=0)
    assert torch.equal(found.top1, best)


def test_large_logits_do_not_overflow():
    hidden, weight = torch.tensor([[200.0]]), torch.tensor([[1.0], [-1.0]])
    found = linear_logprob(hidden, weight, torch.tensor([1]))
    assert found.logprob.item() == -400.0
