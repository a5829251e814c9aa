"""Steps in fixed storage, recorded or not, against steps on states that are values."""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from argap.errors import ArgapError
from argap.models import ArgapConfig, ArgapForCausalLM, steps
from argap.models.mixer import Mixer, ResidualLinear
from argap.models.presets import build_config
from argap.models.registry import MIXERS, register_mixer, resolve
from argap.models.steps import PLAIN, Steps
from tests.properties.models.test_mixer_laws import SPECS
from tests.unit.models.test_modeling import VARIED

LONGEST, VOCABULARY = 60, 32
GROWING = {"programmatic", "programmatic, by bigram", "random", "nsa", "nsa, no positions"}
"""Selections whose state has all tokens, and attention that compresses a block at some positions only."""
PLAIN_ARCHITECTURES = {"hybrid_random", "hybrid_programmatic", "nsa"}
WINDOWS = ((1, "sliding"), (7, "sliding"), (7, "blocked"), (50, "sliding"), (50, "blocked"))


@pytest.fixture(autouse=True)
def small_storage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Storage that grows several times within `LONGEST`."""
    monkeypatch.setattr(steps, "ROOM", 8)
    monkeypatch.setattr(steps, "BLOCK", 4)


def model_of(*mixers: Any, dtype: torch.dtype = torch.float64, **options: Any) -> Any:
    """A model with random parameters, whose logits depend on every mixer."""
    config = ArgapConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        num_hidden_layers=len(mixers),
        mixers=list(mixers),
        max_position_embeddings=LONGEST,
        **options,
    )
    return randomized(ArgapForCausalLM(config)).to(dtype)


def randomized(model: ArgapForCausalLM) -> Any:
    torch.manual_seed(1)
    for tensor in (*model.parameters(), *model.buffers()):
        torch.nn.init.normal_(tensor, std=0.35)
    return model.eval()


@torch.inference_mode()
def compared(model: ArgapForCausalLM, batch: int, prompt: int, tolerance: float = 1e-11) -> Steps:
    """Steps after a prompt, on the same tokens as the model's own; ``prompt`` 0: from the first position. The
    ``tolerance`` is a share of the largest logit."""
    ids = torch.randint(VOCABULARY, (batch, LONGEST), generator=torch.Generator().manual_seed(batch)).to(model.device)
    state = model.prefill(ids[:, :prompt])[1] if prompt else model.init_state(batch)
    made = Steps(model, state, graphs=True)
    for t in range(prompt, LONGEST):
        expected, state = model.step(ids[:, t], state)
        atol = tolerance * expected.abs().max().item()
        torch.testing.assert_close(made(ids[:, t]), expected, rtol=0, atol=atol)
        assert (made.fixed is not None) == (made.graphs and t - prompt >= PLAIN)
    return made


@pytest.mark.parametrize(("batch", "prompt"), [(1, 0), (3, 29)])
@pytest.mark.parametrize("name", SPECS)
def test_every_mixer_steps_alike_in_fixed_storage(name: str, batch: int, prompt: int) -> None:
    made = compared(model_of(SPECS[name]), batch, prompt)
    assert (made.fixed is None) == (name in GROWING)


def test_every_mixer_with_a_step_is_among_them() -> None:
    missing = set(MIXERS) - {spec["name"] for spec in SPECS.values()}
    assert not any(resolve(name).recurrent for name in missing)


@pytest.mark.parametrize("name", VARIED)
def test_architectures_step_alike_in_fixed_storage(name: str) -> None:
    made = compared(architecture(name), 3, 20, 1e-4)
    assert (made.fixed is None) == (name in PLAIN_ARCHITECTURES)


def architecture(name: str, hidden_size: int = 16) -> Any:
    """In float32, five layers, so that each has all its mixers."""
    config = build_config(name, hidden_size=hidden_size, num_hidden_layers=5, vocab_size=VOCABULARY, seq_len=LONGEST)
    torch.manual_seed(0)
    return ArgapForCausalLM(config).eval()


def test_heads_and_positions_of_other_models_step_alike() -> None:
    attention = {"name": "attention", "heads": 4, "kv_heads": 2, "rotary_size": 2, "qkv_bias": True}
    windows = [{"name": "attention", "heads": 4, "kv_heads": 2, "window": w, "window_kind": k} for w, k in WINDOWS]
    made = compared(model_of(attention, *windows, learned_positions=True, embedding_norm=True), 3, 5)
    assert made.fixed is not None


def test_storage_grows_only_where_a_state_does() -> None:
    capacities = []
    for mixers in (["attention"], ["mamba"], [{"name": "attention", "window": 6}]):
        made = compared(model_of(*mixers), 1, 0)
        assert made.fixed is not None
        capacities.append(made.fixed.capacity)
    assert capacities == [60, float("inf"), float("inf")]


class Cosines(TorchDispatchMode):
    """Counts the tables of angles that are computed inside."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func is torch.ops.aten.cos.default
        return func(*args, **(kwargs or {}))


@torch.inference_mode()
def test_all_layers_share_the_position_and_its_angles_after_storage_grows() -> None:
    made = Steps(model := model_of("attention", "attention", "attention"), model.init_state(1), graphs=True)
    for _ in range(LONGEST):
        with Cosines() as cosines:
            made(torch.zeros(1, dtype=torch.long))
        if made.fixed is not None:
            assert cosines.count == 1
            assert all(layer[1] is made.fixed.state.position for layer in made.fixed.state.layers)
    with pytest.raises(ArgapError, match=f"a window of {LONGEST + 1} tokens"):
        made(torch.zeros(1, dtype=torch.long))


def test_a_state_stays_a_value() -> None:
    """Steps neither write to the state that they start from nor to one another's."""
    model = model_of("attention", "mamba", "retnet", {"name": "attention", "window": 5})
    ids = torch.randint(VOCABULARY, (2, 30))
    with torch.inference_mode():
        _, state = model.prefill(ids[:, :10])
        one, other = Steps(model, state, graphs=True), Steps(model, state, graphs=True)
        for t in range(10, 20):
            one(ids[:, t])
        for t in range(10, 30):
            expected, state = model.step(ids[:, t], state)
            torch.testing.assert_close(other(ids[:, t]), expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad])
@pytest.mark.parametrize("name", ["attention", "retnet", "mamba", "base_conv"])
def test_outside_inference_mode_steps_have_the_same_logits_without_a_gradient(
    name: str, mode: Callable[[], Any]
) -> None:
    """Also if the storage was fixed inside."""
    model = model_of(name, name)
    ids = torch.randint(VOCABULARY, (2, 30))
    with torch.inference_mode():
        expected = model(ids).logits.clone()
    made = Steps(model, model.init_state(2), graphs=True)
    for t in range(30):
        with torch.inference_mode() if 6 <= t < 12 else mode():
            logits = made(ids[:, t])
        torch.testing.assert_close(logits, expected[:, t], rtol=0, atol=1e-9)
        assert (made.fixed is not None) == (t >= PLAIN)
        assert logits.requires_grad == (t < PLAIN and mode is torch.enable_grad)


def test_by_default_only_a_gpu_uses_graphs() -> None:
    made = Steps(model := model_of("attention"), model.init_state(1))
    assert not made.graphs
    with torch.no_grad():
        assert not Steps(model, model.init_state(1)).graphs


class Latest(NamedTuple):
    """The last three inputs of `Shifts`, ``[B, D]`` each."""

    first: torch.Tensor
    second: torch.Tensor
    third: torch.Tensor


class Shifts(Mixer):
    """The state after a step has parts of the state before it, moved to other places."""

    def __init__(self, width: int, max_positions: int | None = None) -> None:
        super().__init__()
        self.out = ResidualLinear(width, width, bias=False)

    def mixing_flops(self, batch: int, length: int) -> int:
        return 0

    def init_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> Any:
        return Latest(*[torch.zeros(batch, self.out.in_features, dtype=dtype, device=device)] * 3)

    def step(self, x: torch.Tensor, state: Any) -> tuple[torch.Tensor, Any]:
        return self.out(x + state.first + 2 * state.third), Latest(x, state.first, state.second)


class Counts(Shifts):
    """A number of Python that changes with the steps, and is not their number."""

    def init_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> Any:
        return super().init_state(batch, dtype, device), 7

    def step(self, x: torch.Tensor, state: Any) -> tuple[torch.Tensor, Any]:
        y, after = super().step(x, state[0])
        return y * state[1], (after, state[1] + 2)


class Constant(Shifts):
    """A number that never changes: at one position it looks like the number of positions."""

    def init_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> Any:
        return super().init_state(batch, dtype, device), PLAIN

    def step(self, x: torch.Tensor, state: Any) -> tuple[torch.Tensor, Any]:
        y, after = super().step(x, state[0])
        return y * state[1], (after, state[1])


class Chunks(Shifts):
    """The position in a chunk, which in the first chunk is the number of positions."""

    def init_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> Any:
        return super().init_state(batch, dtype, device), 0

    def step(self, x: torch.Tensor, state: Any) -> tuple[torch.Tensor, Any]:
        y, after = super().step(x, state[0])
        return y * (1 + state[1]), (after, (state[1] + 1) % 10)


class Waits(Shifts):
    """Reads a number from the device in each step."""

    def step(self, x: torch.Tensor, state: Any) -> tuple[torch.Tensor, Any]:
        y, after = super().step(x, state)
        return y * (1 + float(x.isfinite().all())), after


class Grows(Shifts):
    """All inputs so far."""

    def init_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> Any:
        return torch.zeros(batch, 1, self.out.in_features, dtype=dtype, device=device)

    def step(self, x: torch.Tensor, state: Any) -> tuple[torch.Tensor, Any]:
        state = torch.cat([state, x[:, None]], dim=1)
        return self.out(state.mean(dim=1)), state


@pytest.mark.parametrize(
    ("mixer", "why"),
    [
        (Shifts, None),
        (Counts, "Counts: its state has a number of Python that a step changes"),
        (Constant, "Constant: its state has a number that is not the position"),
        (Chunks, "Chunks: its state has a number that is not the position"),
        (Grows, "Grows: its state grows"),
        (Waits, "aten.item.default reads from the device"),
    ],
)
def test_a_mixer_of_another_form_is_right_or_plain(
    mixer: type[Mixer], why: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    """After a failed attempt the steps continue from the state before it, also RetNet's, which is written in place."""
    steps._say_once.cache_clear()
    register_mixer(mixer.__name__, mixer)
    try:
        made = [compared(model_of("attention", "retnet", mixer.__name__), batch, 0) for batch in (1, 3)]
    finally:
        del MIXERS[mixer.__name__]
    assert [one.fixed is None for one in made] == [why is not None] * 2
    said = capsys.readouterr().err
    assert said.count("runs kernel by kernel") == said.count(why or "runs") == (why is not None)  # once


WAITS: dict[str, Callable[[torch.Tensor], Any]] = {
    "number": float,
    "condition": bool,
    "comparison": lambda x: torch.equal(x, x),
    "positions": torch.nonzero,
    "where": lambda x: torch.where(x > 0),
    "mask": lambda x: x[x > 0],
    "selected": lambda x: x.masked_select(x > 0),
    "written": lambda x: x.index_put_((x > 0,), x),
    "unique": torch.unique,
    "moved": lambda x: x.to("meta"),
}


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
@pytest.mark.parametrize("name", WAITS)
def test_what_waits_for_the_device_is_refused(name: str, mode: Callable[[], Any]) -> None:
    """Operations whose result is a number, or has a size, that the device computes, or is on another device."""
    with mode():
        x = torch.ones(1)
        with steps._FirstStep(torch.zeros(1)), pytest.raises(ValueError, match=r"device$"):
            WAITS[name](x)


@pytest.mark.gpu
@pytest.mark.parametrize("name", SPECS)
def test_a_graph_steps_like_every_mixer(name: str) -> None:
    made = compared(model_of(SPECS[name], dtype=torch.float32).to("cuda"), 3, 0, 1e-4)
    assert made.recorded == (name not in GROWING)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["attention", "based", "based_post", "mamba", "retnet", "hyena", "hybrid_random"])
def test_a_graph_steps_alike_after_a_prompt_in_bfloat16(name: str) -> None:
    """Replays across recordings, as the storage grows."""
    made = compared(architecture(name, hidden_size=64).to("cuda", torch.bfloat16), 3, 20, 0.05)
    assert made.recorded == (name not in PLAIN_ARCHITECTURES)
