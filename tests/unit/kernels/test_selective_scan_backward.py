"""The selective scan's gradients against those of its reference in float64, and against a case worked by hand."""

from math import log

import pytest
import torch

from argap.kernels.scan import selective_scan as module
from argap.kernels.scan import selective_scan_backward as backward_module
from argap.kernels.scan.selective_scan import selective_scan, selective_scan_reference
from argap.models import ArgapForCausalLM
from argap.models.block import Block
from argap.models.presets import build_config
from tests.unit.kernels.conftest import TOLERANCE, relative_error

Given = dict[str, torch.Tensor]


@pytest.fixture(autouse=True)
def _kernels_train(kernels_run: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels run also on a CPU where gradients are needed, and store a state every 8 positions."""

    def trains_kernels(*tensors: torch.Tensor | None) -> bool:
        return torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors)

    monkeypatch.setattr(module, "trains_kernels", trains_kernels)
    for having in (module, backward_module):
        monkeypatch.setattr(having, "STORED_EVERY", 8)


def inputs(length: int, width: int, states: int, dtype: torch.dtype, device: torch.device) -> Given:
    """Steps from 10⁻³ to 12, B and C as parts of a wider row; all need gradients."""
    generator = torch.Generator().manual_seed(length)
    both = torch.randn(2, length, 3 + 2 * states, generator=generator).to(device, dtype)
    step = torch.empty(2, length, width).uniform_(-7, 3, generator=generator)
    step[:, ::7, 0] = 12
    given = {
        "u": torch.randn(2, length, width, generator=generator).to(dtype),
        "step": step.to(dtype),
        "A": -3 * torch.rand(width, states, generator=generator),
        "B": both[..., 3 : 3 + states],
        "C": both[..., 3 + states :],
        "skip": torch.randn(width, generator=generator),
        "gate": torch.randn(2, length, width, generator=generator).to(dtype),
        "state": torch.randn(2, width, states, generator=generator),
    }
    return {name: x.to(device).detach().requires_grad_() for name, x in given.items()}


def gradients(function: object, given: Given, dy: torch.Tensor | None, dht: torch.Tensor | None) -> Given:
    """Those of y · ``dy`` + state · ``dht``, or of one of the two products."""
    y, after = function(**given)  # pyright: ignore[reportCallIssue]
    pairs = [(out, d.to(out.dtype)) for out, d in ((y, dy), (after, dht)) if d is not None]
    outputs, weights = zip(*pairs, strict=True)
    found = torch.autograd.grad(outputs, list(given.values()), weights, materialize_grads=True)
    return dict(zip(given, found, strict=True))


def wide(given: Given) -> Given:
    return {name: x.detach().double().requires_grad_() for name, x in given.items()}


def check(given: Given, dtype: torch.dtype, dy: torch.Tensor | None, dht: torch.Tensor | None) -> None:
    found = gradients(selective_scan, given, dy, dht)
    expected = gradients(selective_scan_reference, wide(given), dy, dht)
    for name, gradient in found.items():
        assert gradient.dtype == given[name].dtype
        assert gradient.shape == given[name].shape
        assert relative_error(gradient, expected[name]) < TOLERANCE[dtype], name


@pytest.mark.parametrize(
    ("length", "width", "states", "dtype"),
    [
        (1, 5, 3, torch.float32),
        (2, 32, 2, torch.float16),
        (7, 3, 64, torch.float32),
        (9, 33, 16, torch.float32),
        (19, 4, 20, torch.float16),
        pytest.param(64, 40, 16, torch.bfloat16, marks=pytest.mark.gpu),
    ],
)
def test_they_are_the_references(
    length: int, width: int, states: int, dtype: torch.dtype, device: torch.device
) -> None:
    given = inputs(length, width, states, dtype, device)
    check(given, dtype, torch.randn(2, length, width, device=device), torch.randn(2, width, states, device=device))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("length", "width", "states"), [(512, 200, 16), (1025, 64, 4), (300, 70, 64)])
def test_long_sequences(length: int, width: int, states: int, dtype: torch.dtype, device: torch.device) -> None:
    given = inputs(length, width, states, dtype, device)
    check(given, dtype, torch.randn(2, length, width, device=device), torch.randn(2, width, states, device=device))


@pytest.mark.parametrize("without", [("skip",), ("gate",), ("state",), ("skip", "gate", "state")])
def test_what_is_optional(without: tuple[str, ...], device: torch.device) -> None:
    given = inputs(9, 5, 4, torch.float32, device)
    given = {name: x for name, x in given.items() if name not in without}
    check(given, torch.float32, torch.randn(2, 9, 5, device=device), None)


def test_only_the_state_after_the_last_position_counts(device: torch.device) -> None:
    given = inputs(9, 5, 4, torch.float32, device)
    found = gradients(selective_scan, given, None, torch.randn(2, 5, 4, device=device))
    assert not found["C"].any()
    assert not found["skip"].any()
    assert not found["gate"].any()
    del given["skip"], given["gate"], given["C"]
    fixed = {"C": torch.ones(2, 9, 4, device=device)}
    dht = torch.randn(2, 5, 4, device=device)
    found = gradients(lambda **g: selective_scan(**g, **fixed), given, None, dht)
    expected = gradients(lambda **g: selective_scan_reference(**g, C=fixed["C"].double()), wide(given), None, dht)
    for name, gradient in found.items():
        assert relative_error(gradient, expected[name]) < TOLERANCE[torch.float32], name


def test_two_positions_by_hand(device: torch.device) -> None:
    """A = −1 and softplus(0) = log 2, so that a = 1/2. With Δu = 1, 2 and B = C = 1, h = 1, 5/2. For y_2 alone,
    dh_2 = 1 and dh_1 = 1/2; r_1 = dh_1 a h_0 = 0 and r_2 = dh_2 a h_1 = 1/2. In ds, σ(0) = 1/2 is a factor."""
    one, unit = torch.ones(1, 2, 1, device=device), log(2)
    u = torch.tensor([1.0, 2.0], device=device).reshape(1, 2, 1) / unit
    given = {"u": u, "step": 0 * one, "A": -one[0, :1], "B": one, "C": one.clone()}
    given |= {"skip": 3 * one[0, 0], "state": 0 * one[:, :1]}
    given = {name: x.clone().requires_grad_() for name, x in given.items()}
    dy = torch.tensor([0.0, 1.0], device=device).reshape(1, 2, 1)
    expected = {
        "u": [unit / 2, 3 + unit],
        "step": [1 / (4 * unit), (2 / unit - 0.5) / 2],
        "A": [unit / 2],
        "B": [0.5, 2.0],
        "C": [0.0, 2.5],
        "skip": [2 / unit],
        "state": [0.25],
    }
    for name, gradient in gradients(selective_scan, given, dy, None).items():
        torch.testing.assert_close(gradient.flatten().cpu(), torch.tensor(expected[name]), rtol=1e-6, atol=1e-6)


def test_two_runs_give_the_same_bits(device: torch.device) -> None:
    given = inputs(3, 33, 4, torch.float32, device)
    dy = torch.randn(2, 3, 33, device=device)
    first, second = (gradients(selective_scan, given, dy, None) for _ in range(2))
    for name, gradient in first.items():
        assert torch.equal(gradient, second[name]), name


def test_the_states_of_all_positions_are_not_kept(device: torch.device) -> None:
    given = inputs(24, 8, 16, torch.float32, device)
    kept: list[int] = []

    def pack(x: torch.Tensor) -> torch.Tensor:
        kept.append(x.numel())
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        selective_scan(**given)
    assert sum(kept) - sum(x.numel() for x in given.values()) == given["state"].numel() * 24 // 8


def test_wider_floats_and_more_states_take_the_reference(device: torch.device) -> None:
    for given in (wide(inputs(3, 2, 2, torch.float32, device)), inputs(3, 2, 65, torch.float32, device)):
        dy = torch.randn(2, 3, 2, device=device)
        found = gradients(selective_scan, given, dy, None)
        expected = gradients(selective_scan_reference, given, dy, None)
        for name, gradient in found.items():
            assert torch.equal(gradient, expected[name]), name


def test_it_is_compiled_without_a_break(device: torch.device) -> None:
    """The operators tell `torch.compile` their outputs' shapes, and the compiled graph calls the same kernels."""
    given = inputs(3, 5, 2, torch.float32, device)
    tests = ("test_schema", "test_faketensor", "test_autograd_registration")
    torch.library.opcheck(torch.ops.argap.selective_scan.default, tuple(given.values()), test_utils=tests)
    del given["state"]
    compiled = torch.compile(lambda **given: selective_scan(**given), backend="aot_eager", fullgraph=True)
    dy, dht = torch.randn(2, 3, 5, device=device), torch.randn(2, 5, 2, device=device)
    expected = gradients(selective_scan, given, dy, dht)
    for name, gradient in gradients(compiled, given, dy, dht).items():
        assert torch.equal(gradient, expected[name]), name


@pytest.mark.filterwarnings("ignore")  # of the compiler, about torch's own code
@pytest.mark.parametrize("preset", ["mamba", "mamba_block"])
def test_mamba_trains_with_it(preset: str, monkeypatch: pytest.MonkeyPatch, device: torch.device) -> None:
    """Compiled block by block under autocast, as `argap train` runs it: one scan per block, with the reference's
    gradients. There B, C and the gate are parts of wider rows, and u has another dtype than A and the skip."""
    config = build_config(preset, hidden_size=16, num_hidden_layers=1, vocab_size=8, seq_len=9)
    model = ArgapForCausalLM(config).to(device).train()  # pyright: ignore[reportArgumentType]
    blocks = [block for block in model.modules() if isinstance(block, Block)]
    dlogits = 1000 * torch.randn(1, 9, 8, device=device).half()  # small gradients vanish in float16
    scan, dtypes = module._scan, []

    def counted(u: torch.Tensor, *others: torch.Tensor | None, **options: torch.Tensor) -> tuple[torch.Tensor, ...]:
        dtypes.append(u.dtype)
        return scan(u, *others, **options)  # pyright: ignore[reportArgumentType]

    def found() -> list[torch.Tensor]:
        with torch.autocast(device.type, torch.float16):
            logits = model(input_ids=torch.arange(9, device=device)[None] % 8, use_cache=False).logits
        return list(torch.autograd.grad(logits, list(model.parameters()), dlogits))

    monkeypatch.setattr(module, "_scan", counted)
    with monkeypatch.context() as without:
        without.setattr(module, "trains_kernels", lambda *tensors: False)
        expected = found()
    assert not dtypes
    for block in blocks:
        block.compile(backend="aot_eager")
    for gradient, reference in zip(found(), expected, strict=True):
        assert relative_error(gradient, reference) < TOLERANCE[torch.float16]
    assert dtypes == [torch.float16] * len(blocks)
