"""Kernels run on the GPU if there is one, otherwise in Triton's interpreter (switched on in ``tests/conftest.py``)."""

from typing import Any

import pytest
import torch

TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 2e-2}
"""Bounds of ‖out − ref‖ / ‖ref‖ against float64 on the same inputs: a few rounding errors of 2⁻²⁴, 2⁻¹¹, 2⁻⁹."""


def relative_error(actual: torch.Tensor, expected: torch.Tensor | None) -> float:
    """‖actual − expected‖ / ‖expected‖ in float64."""
    assert expected is not None
    return float((actual.double() - expected.double()).norm() / expected.double().norm())


@pytest.fixture
def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture
def outputs_start_as_nan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fills the result of `torch.Tensor.new_empty` with NaN, which stays wherever no program writes."""
    new_empty = torch.Tensor.new_empty

    def filled(tensor: torch.Tensor, *size: Any, **options: Any) -> torch.Tensor:
        new = new_empty(tensor, *size, **options)
        return new.fill_(float("nan")) if new.is_floating_point() else new

    monkeypatch.setattr(torch.Tensor, "new_empty", filled)
