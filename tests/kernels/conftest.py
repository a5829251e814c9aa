"""Kernels run on the GPU, or where there is none in Triton's interpreter, which must be asked for before
any of them is imported."""

import os
from typing import Any

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 2e-2}
"""‖out − ref‖ / ‖ref‖ against float64 on the same inputs: some roundings of 2⁻²⁴, 2⁻¹¹, 2⁻⁹."""


@pytest.fixture
def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture
def outputs_start_as_nan(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `torch.Tensor.new_empty` gives is NaN, and stays so where no program writes."""
    new_empty = torch.Tensor.new_empty

    def filled(tensor: torch.Tensor, *size: Any, **options: Any) -> torch.Tensor:
        new = new_empty(tensor, *size, **options)
        return new.fill_(float("nan")) if new.is_floating_point() else new

    monkeypatch.setattr(torch.Tensor, "new_empty", filled)
