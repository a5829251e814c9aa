"""The trained convolution and its gradients against autograd through the reference in float64."""

from typing import Any

import pytest
import torch

from argap.kernels.convolution import trained_convolution as module
from argap.kernels.convolution.long_convolution import long_convolution_reference
from argap.kernels.convolution.trained_convolution import LONGEST, trained_convolution
from tests.unit.kernels.conftest import BFLOAT16, TOLERANCE, relative_error

pytestmark = pytest.mark.usefixtures("kernels_run")


def reference(x: Any, taps: Any, gate: Any = 1, skip: Any = 0, bias: Any = 0) -> torch.Tensor:
    return gate * (long_convolution_reference(x, taps) + skip * x + bias)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, BFLOAT16])
@pytest.mark.parametrize(
    ("batch", "length", "taps", "extras"),
    [
        *((*size, ("gate", "skip", "bias")) for size in (
            (1, 1, 1), (3, 5, 5), (70, 16, 9), (33, 63, 63), (65, 65, 40), (3, 100, 80), (2, LONGEST, LONGEST))),
        *((33, 63, 40, extras) for extras in ((), ("gate",), ("bias",), ("gate", "skip"))),
    ],
)  # fmt: skip
def test_it_and_its_gradients_are_the_references(
    batch: int, length: int, taps: int, extras: tuple[str, ...], dtype: torch.dtype, device: torch.device
) -> None:
    torch.manual_seed(length)
    sizes = {"x": (batch, length, 6), "taps": (taps, 3), "gate": (batch, length, 3), "skip": (3,), "bias": (3,)}
    kept = ("x", "taps", *extras)
    made = {name: torch.randn(sizes[name]).to(device, dtype) for name in kept}
    made["x"] = made["x"][..., 1:4]  # of a wider row
    made["taps"] = made["taps"].float()
    found_of = {name: each.detach().requires_grad_() for name, each in made.items()}
    wide_of = {name: each.double().detach().requires_grad_() for name, each in made.items()}
    y = trained_convolution(**found_of)
    expected = reference(**wide_of)
    dy = torch.randn(batch, length, 3).to(device, dtype)
    found = torch.autograd.grad(y, list(found_of.values()), dy)
    gradients = torch.autograd.grad(expected, list(wide_of.values()), dy.double())
    assert y.dtype == dtype
    assert relative_error(y.detach(), expected.detach()) < TOLERANCE[dtype]
    for name, gradient, other in zip(kept, found, gradients, strict=True):
        assert gradient.dtype == made[name].dtype
        assert relative_error(gradient, other) < TOLERANCE[dtype], name


def test_products_by_hand(device: torch.device) -> None:
    """h = (1, 10), k = 100, b = 1000, g = (1, 2, 3), x = (1, 2, 3): c = (1101, 1212, 1323). With dy = 1, dc = g:
    dh_0 = 1·1 + 2·2 + 3·3, dh_1 = 1·2 + 2·3, db = 1 + 2 + 3 and dx_0 = 101·1 + 10·2."""
    x, gate = (torch.tensor([1.0, 2.0, 3.0], device=device)[None, :, None].requires_grad_() for _ in range(2))
    taps = torch.tensor([[1.0], [10.0]], device=device).requires_grad_()
    skip, bias = (torch.tensor([value], device=device).requires_grad_() for value in (100.0, 1000.0))
    y = trained_convolution(x, taps, gate, skip, bias)
    y.sum().backward()
    assert y.flatten().tolist() == [1101.0, 2424.0, 3969.0]
    gradients = ([121.0, 232.0, 303.0], [14.0, 8.0], [1101.0, 1212.0, 1323.0], [14.0], [6.0])
    for each, gradient in zip((x, taps, gate, skip, bias), gradients, strict=True):
        assert each.grad is not None
        assert each.grad.flatten().tolist() == gradient


def test_the_programs_of_a_channel_share_the_batch(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 5 parts of the batch, for 1, 2 and 5 programs (the last of two has fewer)."""
    torch.manual_seed(3)
    given = [torch.randn(size, device=device) for size in ((70, 20, 1), (20, 1), (70, 20, 1), (1,))]
    monkeypatch.setattr(module, "multiprocessors", lambda device: 1)
    monkeypatch.setattr(
        module,
        "LAUNCHES",
        module.LaunchTable("t", {"any": {name: module.Launch({"BB": 16}) for name in ("forward", "backward")}}),
    )
    results = []
    for programs in (1, 2, 5):
        monkeypatch.setattr(module, "PROGRAMS", programs)
        tensors = [each.clone().requires_grad_() for each in given]
        y = trained_convolution(*tensors)
        results.append([y.detach(), *torch.autograd.grad(y.square().sum(), tensors)])
    for other in results[1:]:
        for found, expected in zip(other, results[0], strict=True):
            assert relative_error(found, expected) < TOLERANCE[torch.float32]


def test_operands_are_rounded_to_the_nearest(device: torch.device) -> None:
    """TF32 has 10 bits after the first: 1 + 2⁻¹¹ lies between 1 and 1 + 2⁻¹⁰, and is rounded away from zero."""
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        x = torch.tensor([1 + 2**-11, 1 + 2**-12, -1 - 2**-11], device=device)[:, None, None].requires_grad_()
        y = trained_convolution(x, torch.ones(1, 1, device=device))
    finally:
        torch.set_float32_matmul_precision(precision)
    assert y.flatten().tolist() == [1 + 2**-10, 1.0, -1 - 2**-10]


@pytest.mark.gpu
def test_a_compiled_function_runs_the_kernels(device: torch.device) -> None:
    torch.manual_seed(5)
    given = [torch.randn(size, device=device) for size in ((40, 64, 8), (64, 8), (40, 64, 8), (8,))]
    results = []
    for function in (trained_convolution, torch.compile(trained_convolution)):
        tensors = [each.clone().requires_grad_() for each in given]
        y = function(*tensors)
        results.append([y.detach(), *torch.autograd.grad(y.square().sum(), tensors)])
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected)  # what is around the kernels is other code once compiled
