"""Kernels run on the GPU if there is one, otherwise in Triton's interpreter (switched on in ``tests/conftest.py``)."""

from importlib import import_module
from typing import Any, cast

import numpy as np
import pytest
import torch

from argap.kernels.recurrent.chunk_transitions import CHAIN_LAUNCHES, INVERSE_LAUNCHES, LAUNCHES
from argap.kernels.registry import OPS

BFLOAT16 = pytest.param(torch.bfloat16, marks=pytest.mark.gpu)
TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 2e-2}
"""Bounds of ‖out − ref‖ / ‖ref‖ against float64 on the same inputs: a few rounding errors of 2⁻²⁴, 2⁻¹¹, 2⁻⁹."""


def relative_error(actual: torch.Tensor | None, expected: torch.Tensor | None) -> float:
    """‖actual − expected‖ / ‖expected‖ in float64."""
    assert actual is not None
    assert expected is not None
    return float((actual.double() - expected.double()).norm() / expected.double().norm())


@pytest.fixture
def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture
def kernels_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every operator runs its kernels where no gradient is needed, also on a CPU, and what `torch.Tensor.new_empty`
    allocates for them is filled with NaN, which stays wherever no program writes. A CPU has Hopper's launches."""
    new_empty = torch.Tensor.new_empty

    def filled(tensor: torch.Tensor, *size: Any, **options: Any) -> torch.Tensor:
        new = new_empty(tensor, *size, **options)
        return new.fill_(float("nan")) if new.is_floating_point() else new

    def runs_kernels(*tensors: torch.Tensor | None) -> bool:
        return not (torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors))

    monkeypatch.setattr(torch.Tensor, "new_empty", filled)
    if not torch.cuda.is_available():
        round_bfloat16(monkeypatch)
        for table in (INVERSE_LAUNCHES, LAUNCHES, CHAIN_LAUNCHES):
            monkeypatch.setitem(cast("dict[str, Any]", table.by_device), "any", table.by_device["hopper"])
    for module, *_ in OPS.values():
        monkeypatch.setattr(import_module(f"argap.kernels.{module}"), "runs_kernels", runs_kernels)


def round_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Triton's interpreter, which truncates to bfloat16 and multiplies its bits, compute as a GPU does."""
    interpreter: Any = pytest.importorskip("triton.runtime.interpreter")
    convert, bfloat16, float32 = interpreter._convert_float, interpreter.tl.bfloat16, interpreter.tl.float32

    def rounded(x: Any, source: Any, target: Any, rounding: Any) -> Any:
        if (source, target) == (float32, bfloat16):
            bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
            return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
        return convert(x, source, target, rounding)

    def wide(x: Any) -> Any:
        return (x.data.astype(np.uint32) << 16).view(np.float32) if x.dtype.scalar == bfloat16 else x.data

    def dot(_: Any, a: Any, b: Any, total: Any, *options: Any) -> Any:
        product = np.matmul(wide(a), wide(b), dtype=total.data.dtype)
        return interpreter.TensorHandle(product + total.data, total.dtype.scalar)

    monkeypatch.setattr(interpreter, "_convert_float", rounded)
    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", dot)
