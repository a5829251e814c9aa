"""KL between two heads against a full softmax of both in float64."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from argap.errors import ArgapError
from argap.kernels.head import linear_divergence as module
from argap.kernels.head.linear_divergence import linear_divergence
from argap.kernels.head.linear_logprob import Logits


@dataclass(frozen=True)
class Case:
    """What the two heads have."""

    vocabularies: tuple[int, int] = (101, 101)
    sizes: tuple[int, int] = (32, 24)
    bias: bool = False
    softcaps: tuple[float | None, float | None] = (None, None)
    scales: tuple[float, float] = (1.0, 1.0)
    near: float | None = None
    """Noise that makes the model of the reference; None: drawn by itself."""


CASES = {
    "hidden sizes that differ": Case(),
    "biases": Case(bias=True),
    "soft caps and scales": Case(softcaps=(5.0, None), scales=(0.25, 2.0), bias=True),
    "padded by the reference": Case(vocabularies=(128, 101), bias=True),
    "padded by the model": Case(vocabularies=(101, 128)),
    "nearly equal": Case(sizes=(32, 32), near=1e-2),
    "fewer ids than a tile": Case(vocabularies=(7, 7)),
}
ROWS = [1, 9, 65]


def drawn(case: Case, n: int, dtype: torch.dtype = torch.float32, device: Any = "cpu") -> tuple[Logits, Logits]:
    generator = torch.Generator().manual_seed(n)
    heads: list[Logits] = []
    for k in range(2):
        hidden = torch.randn(n, case.sizes[k], generator=generator)
        weight = torch.randn(case.vocabularies[k], case.sizes[k], generator=generator)
        if k and case.near is not None:
            hidden, weight = (x.float().cpu() for x in heads[0][:2])  # pyright: ignore
            hidden = hidden + case.near * torch.randn(hidden.shape, generator=generator)
        bias = torch.randn(case.vocabularies[k], generator=generator).to(device, dtype) if case.bias else None
        hidden, weight = hidden.to(device, dtype), weight.to(device, dtype)
        heads.append(Logits(hidden, weight, bias, case.softcaps[k], case.scales[k]))
    return heads[0], heads[1]


def exact(reference: Logits, model: Logits) -> torch.Tensor:
    """KL by log_softmax in float64, over the ids of both."""
    logprobs, ids = [], min(reference.vocabulary, model.vocabulary)
    for each in (reference, model):
        assert each.weight is not None
        logits = each.hidden.double() @ each.weight.double().T + (0 if each.bias is None else each.bias.double())
        logits = logits * each.scale
        if each.softcap is not None:
            logits = each.softcap * torch.tanh(logits / each.softcap)
        logprobs.append(logits[:, :ids].log_softmax(-1))
    p, q = logprobs
    return (p.exp() * (p - q)).sum(-1)


def by_kernel(reference: Logits, model: Logits) -> torch.Tensor:
    """The output of the kernels, which start from memory full of NaN."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)  # torch then fills what it allocates
    try:
        return module._forward(reference, model)
    finally:
        torch.use_deterministic_algorithms(before)


@pytest.mark.parametrize("n", ROWS)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_reference_agrees_with_a_full_softmax_in_any_tiling(case, n, monkeypatch):
    monkeypatch.setattr(module, "REFERENCE_ROWS", 9)
    monkeypatch.setattr(module, "REFERENCE_IDS", 40)
    heads = drawn(case, n)
    found, expected = linear_divergence(*heads), exact(*heads)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), expected, atol=1e-4, rtol=1e-6)
    if case.near is not None:
        assert expected.max() < 0.1


def test_logits_themselves_are_taken_too():
    reference, model = drawn(CASES["biases"], 20)
    logits = model.tile(model.hidden, slice(None))
    torch.testing.assert_close(
        linear_divergence(reference, Logits(logits)), linear_divergence(reference, model), atol=1e-5, rtol=1e-6
    )


def test_a_model_has_no_divergence_from_itself_and_offsets_cancel():
    reference, _ = drawn(CASES["biases"], 8)
    assert linear_divergence(reference, reference).tolist() == [0.0] * 8
    assert reference.bias is not None
    shifted = reference._replace(bias=reference.bias + 1000)
    assert linear_divergence(reference, shifted).max() < 1e-3  # 1,000 leaves 2⁻¹⁴ of a logit's bits


def test_ids_that_are_ruled_out():
    inf = torch.inf
    one, both = torch.tensor([[0.0, 0.0, -inf]]), torch.tensor([[0.0, -inf, -inf]])
    assert linear_divergence(Logits(both), Logits(one)).item() == pytest.approx(torch.tensor(2.0).log().item())
    assert linear_divergence(Logits(one), Logits(both)).item() == inf


def test_rows_that_differ_are_refused():
    with pytest.raises(ArgapError, match="linear_divergence: 3 rows of the reference and 4 of the model; expected"):
        linear_divergence(Logits(torch.zeros(3, 5)), Logits(torch.zeros(4, 5)))


DTYPES = [torch.float32, torch.float16, pytest.param(torch.bfloat16, marks=pytest.mark.gpu)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_kernels_agree_with_float64(case, dtype, device):
    heads = drawn(case, 65, dtype, device)
    torch.testing.assert_close(by_kernel(*heads).double(), exact(*heads), atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("n", [0, 1, 63])
def test_rows_and_tiles_that_do_not_fill_a_block(n, device, monkeypatch):
    """301 ids are three tiles, in launches of a single block of rows; hidden sizes that the copy engine refuses."""
    monkeypatch.setattr(module, "SCRATCH_BYTES", 1)
    heads = drawn(Case((301, 400), (70, 72)), n, torch.float16, device)
    torch.testing.assert_close(by_kernel(*heads).double(), exact(*heads), atol=1e-4, rtol=1e-5)


def test_dtypes_that_differ_and_broken_states(device):
    reference, model = drawn(Case((50, 50), (32, 32)), 20, device=device)
    narrow = model._replace(**{name: getattr(model, name).half() for name in ("hidden", "weight")})
    torch.testing.assert_close(by_kernel(reference, narrow).double(), exact(reference, narrow), atol=1e-4, rtol=1e-5)
    for function in (by_kernel, linear_divergence):
        broken = model.hidden.clone()
        broken[3, 5] = torch.nan
        found = function(reference, model._replace(hidden=broken))
        assert found.isnan().nonzero().tolist() == [[3]]
        inf = torch.zeros(50, device=device)
        inf[7] = -torch.inf
        found = function(reference, model._replace(bias=inf))
        assert (found == torch.inf).all()
    with pytest.raises(ArgapError, match=r"weight \[V, D\] has strides \(1, 50\).*weight\.contiguous\(\)"):
        by_kernel(reference, model._replace(weight=model.weight.T.contiguous().T))  # pyright: ignore
