"""The benchmark that times DeltaNet's forms: both compute the same."""

import importlib
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from argap.kernels.recurrent.delta_rule import delta_rule


def test_both_forms_compute_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[3] / "benchmarks")
    case = importlib.import_module("kernel_case")
    cases = importlib.import_module("kernel_cases.delta_rule")
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 70, 3, 8) for _ in range(3))
    q, k, beta = F.normalize(q, dim=-1), F.normalize(k, dim=-1), torch.rand(2, 70, 3)
    chunkwise, recurrent = case.turned(delta_rule, q, k, v, beta), cases.recurrent(q, k, v, beta)
    torch.testing.assert_close(chunkwise, recurrent, rtol=1e-4, atol=1e-4)
    made = cases.case("delta rule", (q, k, v, beta), {})
    assert made.check(chunkwise) < 1e-5
    assert made.check(recurrent) < 1e-5
    assert made.check(recurrent + 0.1 * v) > 1e-2
