"""What holds for every operator: it is its reference in float64; strides, batches, cuts and repeats change no bit."""

from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any

import pytest
import torch

from argap.kernels.recurrent import linear_attention as linear_attention_module
from argap.kernels.recurrent import taylor_sums
from argap.kernels.registry import OPS
from argap.kernels.scan import selective_scan as selective_scan_module
from tests.unit.kernels.conftest import TOLERANCE
from tests.unit.kernels.operators import FORWARD, OPERATORS, Draw, Given, forward_cases

pytestmark = pytest.mark.usefixtures("kernels_run")


def leaves(outputs: Any) -> list[torch.Tensor]:
    """The tensors of an output, of one of several, or of nested ones."""
    return [outputs] if isinstance(outputs, torch.Tensor) else [each for part in outputs for each in leaves(part)]


def changed(given: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The same inputs with every floating tensor changed."""
    if isinstance(given, dict):
        return {name: changed(value, change) for name, value in given.items()}
    if isinstance(given, tuple):
        return tuple(changed(value, change) for value in given)
    return change(given) if isinstance(given, torch.Tensor) and given.is_floating_point() else given


def assert_near(found: Iterable[torch.Tensor], expected: Iterable[torch.Tensor], tolerance: float) -> None:
    """‖found − expected‖ is at most so much of ‖expected‖; 0: the same bits."""
    for one, other in zip(found, expected, strict=True):
        assert one.shape == other.shape
        assert (one.double() - other.double()).norm() <= tolerance * other.double().norm()


def test_every_op_has_laws() -> None:
    """The head's tolerance is in nats; rotations are in place."""
    assert OPS.keys() - OPERATORS.keys() == {"linear_divergence", "linear_logprob", "rotary"}
    assert {name for name, *_ in FORWARD} == OPERATORS.keys()


@pytest.mark.parametrize(("name", "size", "options", "dtype"), [*forward_cases()])
def test_it_is_the_reference_in_float64(
    name: str, size: tuple[int, ...], options: Given, dtype: torch.dtype, device: torch.device
) -> None:
    operator = OPERATORS[name]
    given = operator.draw(Draw(sum(size), dtype, device), *size, **options)
    found = leaves(operator.call(**given))
    expected = leaves(operator.reference(**changed(given, torch.Tensor.double)))
    tolerance = TOLERANCE.get(dtype, 1e-12)
    if options.get("strength") == 500:  # sums of log decays down to −6000 have rounding errors of 6000·2⁻²⁴
        tolerance = max(tolerance, 2e-4)
    assert found[0].dtype == dtype
    assert {x.dtype for x in found[1:]} <= {torch.float32 if operator.recurrent else dtype}
    assert_near(found[:1], expected[:1], tolerance)
    assert_near(found[1:], expected[1:], operator.state_error or tolerance)


SEQUENCES: dict[str, tuple[str, tuple[int, ...], Given, tuple[int, ...], int, float]] = {
    **{
        f"linear attention, decay {kind}": (
            "linear_attention", (80, 20, 40), {"decay": kind, "normalize": kind == "of a head"}, (40, 64, 70), 70, 2e-5
        )
        for kind in ("none", "of a head", "of a position")
    },
    "SSD": ("linear_attention", (80, 20, 40), {"decay": "of a position", "ssd": True}, (40, 64, 70), 70, 2e-5),
    # Of a chunk of GLA later positions may decide how its scores are computed, and so their last bit.
    "gla": ("gla", (80, 20, 40), {}, (64,), 70, 2e-5),
    "gla, strong decays": ("gla", (80, 20, 40), {"strength": 500.0}, (64,), 70, 1e-3),
    "taylor attention": ("taylor_attention", (80, 8, 40), {}, (40, 64, 70), 70, 2e-5),
    "delta rule": ("delta_rule", (80, 20, 40), {"normalize": True}, (40, 64, 70), 70, 2e-5),
    "delta rule, cut at the end of a chunk": ("delta_rule", (90, 16, 16), {}, (64,), 64, 0),
    "gated delta rule": ("delta_rule", (80, 20, 40), {"decay": "of a position"}, (40, 64, 70), 70, 2e-5),
    "gated delta rule, a key for two heads": (
        "delta_rule", (80, 20, 40), {"decay": "of a position", "groups": 1, "normalize": True, "norm_eps": 0.5},
        (40, 64, 70), 70, 2e-5
    ),
    "delta rule, a decay for each channel": (
        "delta_rule", (80, 20, 40), {"decay": "of a channel", "normalize": True}, (64,), 70, 2e-5
    ),
    "generalized delta rule": ("generalized_delta_rule", (80, 20, 40), {}, (64,), 70, 2e-5),
    "generalized delta rule in bfloat16": (
        "generalized_delta_rule", (80, 40, 24), {"dtype": torch.bfloat16}, (64,), 70, TOLERANCE[torch.bfloat16]
    ),
    "wkv": ("wkv", (40, 5, 16), {}, (5, 35), 35, 2e-5),
    "selective scan": ("selective_scan", (20, 33, 4), {}, (13,), 13, 0),
    "diagonal scan": ("diagonal_scan", (140, 33), {}, (13, 64), 70, 2e-6),
    "short convolution": ("short_convolution", (70, 4), {"extras": True}, (33,), 30, 0),
    "short convolution, cut within its taps": ("short_convolution", (70, 4), {}, (2,), 2, 2e-6),
}  # fmt: skip
"""Operators over time: sizes (the first is T) and options; lengths up to which the bits stay; where the sequence is
parted, and the tolerance of going on from the state there."""


@pytest.fixture(scope="module")
def segments() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(taylor_sums, "SEGMENT", 64)
        yield


LONG_SEQUENCES: dict[str, Any] = {
    "linear_attention": linear_attention_module, "selective_scan": selective_scan_module
}  # fmt: skip
"""Operators whose long sequences run by segments, and their modules."""


@cache
def drawn(law: str, device: torch.device) -> Given:
    name, size, options, *_ = SEQUENCES[law]
    return OPERATORS[name].draw(Draw(1, torch.float32, device), *size, **options)


@cache
def computed(law: str, device: torch.device) -> list[torch.Tensor]:
    """The output and the last state of a law's inputs, which several tests compare with."""
    return leaves(OPERATORS[SEQUENCES[law][0]].call(**drawn(law, device)))


@pytest.fixture
def given(law: str, device: torch.device, segments: None) -> Given:
    return drawn(law, device)


@pytest.fixture
def whole(law: str, device: torch.device, segments: None) -> list[torch.Tensor]:
    return computed(law, device)


def cut(given: Given, length: int, first: int = 0, last: int | None = None, rows: slice = slice(None)) -> Given:
    """The inputs of some rows of the batch and of some positions, of ``length``."""

    def part(x: torch.Tensor) -> torch.Tensor:
        x = x[rows] if x.shape[0] == 2 else x
        return x[tuple(slice(first, last) if size == length else slice(None) for size in x.shape)]

    parts = {name: part(x) for name, x in given.items() if isinstance(x, torch.Tensor) and x.dtype == torch.bool}
    return changed(given, part) | parts


parted = pytest.mark.parametrize("law", SEQUENCES)
sequences = pytest.mark.parametrize("law", [law for law in SEQUENCES if ", cut" not in law])


@sequences
def test_repeats_and_strides_give_the_same_bits(law: str, given: Given, whole: list[torch.Tensor]) -> None:
    call = OPERATORS[SEQUENCES[law][0]].call
    turned = changed(given, lambda x: torch.stack([x, x + 1])[0].transpose(0, -1).contiguous().transpose(0, -1))
    assert_near(leaves(call(**turned)), whole, 0)
    alike = changed(given, lambda x: x[:1].expand(x.shape) if x.ndim == 1 else x)
    if any(isinstance(x, torch.Tensor) and x.ndim == 1 for x in given.values()):  # one number for all channels or heads
        apart = changed(alike, torch.Tensor.contiguous)
        assert_near(leaves(call(**alike)), leaves(call(**apart)), 0)


@pytest.mark.parametrize("name", sorted(OPERATORS.keys() - {name for name, *_ in SEQUENCES.values()}))
def test_repeats_of_other_operators_give_the_same_bits(name: str, device: torch.device) -> None:
    _, sizes, _, options = next(row for row in FORWARD if row[0] == name)
    given = OPERATORS[name].draw(Draw(1, torch.float32, device), *sizes[2], **options[0])
    assert_near(leaves(OPERATORS[name].call(**given)), leaves(OPERATORS[name].call(**given)), 0)


@sequences
def test_alone_and_cut_short_a_sequence_has_the_same_bits(law: str, given: Given, whole: list[torch.Tensor]) -> None:
    name, (length, *_), _, cuts, *_ = SEQUENCES[law]
    call = OPERATORS[name].call
    assert_near(leaves(call(**cut(given, length, rows=slice(1, None)))), [x[1:] for x in whole], 0)
    for last in cuts:
        shorter = whole[0][tuple(slice(last) if size == length else slice(None) for size in whole[0].shape)]
        assert_near(leaves(call(**cut(given, length, last=last)))[:1], [shorter], 0)


@pytest.mark.parametrize(
    ("law", "length"),
    [
        *((law, 54) for law in SEQUENCES if SEQUENCES[law][0] in LONG_SEQUENCES),
        *((law, 48) for law in ("SSD", "selective scan")),
    ],
)
def test_long_sequences_run_by_segments(
    law: str, length: int, given: Given, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, (_, *sizes), options, *_ = SEQUENCES[law]
    given = OPERATORS[name].draw(Draw(2, torch.float32, device), length, *sizes, **options)
    expected = leaves(OPERATORS[name].call(**given))
    monkeypatch.setattr(LONG_SEQUENCES[name], "LONG", 48)
    monkeypatch.setattr(LONG_SEQUENCES[name], "SEGMENT", 16)
    found = leaves(OPERATORS[name].call(**given))
    assert_near(found, expected, 2e-5)
    assert not torch.equal(found[0], expected[0])
    assert_near(leaves(OPERATORS[name].call(**cut(given, length, rows=slice(1, None)))), [x[1:] for x in found], 0)


@parted
def test_the_state_carries_over_a_parted_sequence(law: str, given: Given, whole: list[torch.Tensor]) -> None:
    name, (length, *_), _, _, at, tolerance = SEQUENCES[law]
    call = OPERATORS[name].call
    output, *last = whole
    first, middle = call(**cut(given, length, last=at))
    second, end = call(**cut(given, length, first=at) | {"state": middle})
    time = output.shape.index(length)
    assert_near([torch.cat([first, second], dim=time)], [output], tolerance)
    assert_near(leaves(end), last, tolerance)


@sequences
def test_where_a_gradient_is_asked_for_the_reference_runs(law: str, given: Given) -> None:
    name, (length, *_), *_ = SEQUENCES[law]
    operator, given = OPERATORS[name], cut(given, length, last=5)
    gradients = []
    for function, inputs in ((operator.call, given), (operator.reference, changed(given, torch.Tensor.double))):
        inputs = changed(inputs, lambda x: x.detach().requires_grad_())
        needs: list[torch.Tensor] = []
        changed(inputs, lambda x: needs.append(x) or x)  # noqa: B023
        y = leaves(function(**inputs))[0]
        gradients.append(torch.autograd.grad(y.square().sum(), needs, materialize_grads=True))
    assert_near(gradients[0], gradients[1], max(SEQUENCES[law][-1], 2e-4))


@pytest.mark.gpu
@sequences
def test_on_a_gpu_the_kernels_run(law: str, device: torch.device) -> None:
    name, size, options, *_ = SEQUENCES[law]
    given = OPERATORS[name].draw(Draw(1, torch.float32, device), *size, **options)
    y, expected = (leaves(function(**given))[0] for function in (OPERATORS[name].call, OPERATORS[name].reference))
    assert not torch.equal(y, expected)
    assert_near([y], [expected], max(50 * TOLERANCE[torch.float32], SEQUENCES[law][-1]))


LARGE: dict[str, Callable[[torch.Tensor], Given]] = {
    "linear_attention": lambda x: {"q": x, "k": x, "v": x, "log_decay": -50 * x[..., 0]},
    "gla": lambda x: {"q": x, "k": x, "v": x, "log_decay": -0.25 * x},
    "taylor_attention": lambda x: {"q": x[..., :8], "k": x[..., :8], "v": x},
    "delta_rule with decays": lambda x: {
        "q": x,
        "k": x,
        "v": x,
        "beta": x[..., 0],
        "log_decay": -0.25 * x,
        "normalize": True,
    },
    "delta_rule": lambda x: {"q": x, "k": x, "v": x, "beta": x[..., 0], "normalize": True},
}


@pytest.mark.gpu
@pytest.mark.alone
@pytest.mark.parametrize("name", LARGE)
def test_offsets_beyond_31_bits(name: str) -> None:
    x = torch.rand(66, 8192, 64, 64, device="cuda", dtype=torch.bfloat16).transpose(1, 2)
    assert x.numel() > 2**31
    call = OPERATORS[name.split()[0]].call
    y, *_ = call(**LARGE[name](x))
    assert torch.equal(y[-1:], call(**LARGE[name](x[-1:]))[0])
