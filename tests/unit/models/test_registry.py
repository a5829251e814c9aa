"""Mixers by name, and a user's own from a module of theirs."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from argap.checkpoints.find import find_checkpoint
from argap.checkpoints.load import load_model
from argap.errors import ArgapError
from argap.models import ArgapConfig, ArgapForCausalLM, register_mixer, registry
from argap.models.causality import check_causal
from argap.models.mixer import Mixer
from argap.models.mixers.attention import Attention
from argap.runtime.guard import fail
from argap.runtime.trust import trusting

OWN = '''
"""A mixer with a plain running sum, one that asks for token ids, and two that are none."""
import torch
from torch import nn
from argap.models.mixer import Mixer, ResidualLinear


class RunningSum(Mixer):
    def __init__(self, width, max_positions=None, *, scale=1.0):
        super().__init__()
        self.scale = scale
        self.out = ResidualLinear(width, width)

    def forward(self, x):
        return self.out(self.scale * x.cumsum(dim=1))

    def state_size(self, length):
        return self.out.in_features

    def flops(self, batch, length):
        return 2 * batch * length * self.out.in_features ** 2


class OddTokens(RunningSum):
    """Sums where the token is odd."""
    needs_ids = True

    def forward(self, x, input_ids):
        return self.out((x * (input_ids % 2)[..., None]).cumsum(dim=1))

    def init_state(self, batch, dtype, device):
        return torch.zeros(batch, self.out.in_features, dtype=dtype, device=device)

    def step(self, x, state, input_ids):
        state = state + x * (input_ids % 2)[:, None]
        return self.out(state), state


class Uncounted(OddTokens):
    flops = Mixer.flops


class Unsized(RunningSum):
    state_size = Mixer.state_size


class NoMixer(nn.Module):
    pass


class Broadcasts(RunningSum):
    def forward(self, x):
        return self.out(x.mean(dim=1, keepdim=True))


class WithItsState(RunningSum):
    def forward(self, x):
        return self.out(x), x


class Fails(RunningSum):
    def forward(self, x):
        raise ValueError("a mistake of one's own")


class SeesOneAhead(RunningSum):
    def forward(self, x):
        return self.out(x.roll(-1, dims=1))


class SeesTheMean(RunningSum):
    def forward(self, x):
        return super().forward(x) + 0.1 * x.mean(dim=1, keepdim=True)


class SeesTokensAhead(OddTokens):
    def forward(self, x, ids):
        return super().forward(x, ids.flip(1))


class SaysSo(SeesTheMean):
    causal = False


class Random(SeesTheMean):
    def forward(self, x):
        return super().forward(x) + torch.rand(())
'''


@pytest.fixture(autouse=True)
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "own_mixers.py").write_text(OWN)
    (tmp_path / "broken_module.py").write_text("class Mixer(:")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(registry, "MIXERS", dict(registry.MIXERS))
    with trusting():
        yield


def model_of(*mixers: str | dict) -> ArgapForCausalLM:
    torch.manual_seed(0)
    config = ArgapConfig(
        vocab_size=32, hidden_size=16, num_hidden_layers=len(mixers), intermediate_size=16, mixers=list(mixers)
    )
    return ArgapForCausalLM(config).eval()


def test_names_resolve_late_to_classes() -> None:
    assert registry.resolve("attention") is Attention
    assert {name: option.default for name, option in registry.options_of(Attention).items()} == {
        "heads": None,
        "positions": "rope",
        "rope_theta": 10_000.0,
        "window": None,
        "window_kind": "sliding",
        "rotary_size": None,
        "kv_heads": None,
        "qkv_bias": False,
    }


def test_a_mixer_of_ones_own_trains_saves_and_loads(tmp_path: Path) -> None:
    model = model_of("attention", {"name": "own_mixers:RunningSum", "scale": 0.5})
    ids = torch.randint(32, (2, 10))
    model(ids, labels=ids).loss.backward()
    assert model.model.blocks[1].mixer.get_parameter("out.weight").grad is not None
    model.save_pretrained(tmp_path / "saved")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "saved", dtype=torch.float32)
    assert torch.equal(loaded(ids).logits, model(ids).logits)
    assert loaded.model.blocks[1].mixer.scale == 0.5


def assert_steps_as_it_runs(model: ArgapForCausalLM) -> None:
    ids = torch.randint(32, (2, 10))
    state = model.init_state(2)
    for t in range(10):
        logits, state = model.step(ids[:, t], state)
        torch.testing.assert_close(logits, model(ids).logits[:, t])


@torch.no_grad()
def test_a_mixer_that_needs_token_ids_gets_them() -> None:
    assert_steps_as_it_runs(model_of("own_mixers:OddTokens").double())


@torch.no_grad()
def test_the_mixer_of_the_documentation_steps_as_it_runs(tmp_path: Path) -> None:
    page = Path(__file__).parents[3] / "docs" / "own-mixer.md"
    (tmp_path / "documented.py").write_text(page.read_text(encoding="utf-8").split("```python\n")[1].split("```")[0])
    model = model_of({"name": "documented:DecayingSum", "decay": 0.8}, "attention").double()
    mixer = model.model.blocks[0].mixer
    x = torch.randn(2, 4, 16, dtype=torch.float64)
    by_hand = mixer.get_submodule("out")(mixer.get_submodule("into")(0.8 * x[:, 0] + x[:, 1]))
    torch.testing.assert_close(mixer(x)[:, 1], by_hand)
    assert mixer.flops(2, 4) == 2 * (2 * 2 * 4 * 16**2) + 2 * (2 * 4**2 * 16)  # two maps; the T² weights
    assert_steps_as_it_runs(model)


def test_a_mixer_without_a_step_says_so() -> None:
    model = model_of("attention", "own_mixers:RunningSum")
    assert [block.mixer.recurrent for block in model.model.blocks] == [True, False]
    with pytest.raises(ArgapError, match="layer 1: RunningSum has no recurrent step"):
        model.init_state(1)


def test_a_mixer_may_count_all_operations_itself_and_a_state_that_does_not_grow_counts_itself() -> None:
    mixer = model_of("own_mixers:OddTokens").model.blocks[0].mixer
    assert mixer.flops(2, 4) == 2 * 2 * 4 * 16**2
    assert Mixer.state_size(mixer, 9) == 16


@pytest.mark.parametrize(("mixer", "found"), [("Broadcasts", r"\[2, 1, 16\]"), ("WithItsState", "tuple")])
def test_an_output_of_another_shape_is_refused(mixer: str, found: str) -> None:
    model = model_of(f"own_mixers:{mixer}")
    with pytest.raises(ArgapError, match=rf"mixer {mixer}: expected an output \[2, 10, 16\], found {found}"):
        model(torch.randint(32, (2, 10)))


def test_a_failure_in_a_mixer_of_ones_own_is_named_as_such(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="a mistake of one's own") as caught:
        model_of("own_mixers:Fails")(torch.randint(32, (2, 10)))
    assert fail(caught.value, {}) == 1
    line = 1 + OWN.splitlines().index('        raise ValueError("a mistake of one\'s own")')
    said = f"own_mixers.py, line {line}: ValueError: a mistake of one's own; ARGAP_TRACEBACK=1 shows the traceback"
    assert said in capsys.readouterr().err


def test_a_registered_name_stands_for_its_class() -> None:
    register_mixer("odd", "own_mixers:OddTokens")
    register_mixer("odd", "own_mixers:OddTokens")  # a module may be imported twice
    assert registry.resolve("odd").__name__ == "OddTokens"
    with pytest.raises(ArgapError, match="already registered as own_mixers:OddTokens"):
        register_mixer("odd", "own_mixers:RunningSum")
    with pytest.raises(ArgapError, match="expected module:Class"):
        register_mixer("even", "own_mixers")


@pytest.mark.parametrize(
    ("mixer", "said"),
    [
        ("atention", r"'atention': unknown; known are attention, base_conv, .*or your own class as module:Class"),
        (
            {"name": "attention", "head": 2},
            r"unknown option head; its options are heads, positions, rope_theta, window, window_kind",
        ),
        ({"name": "own_mixers:RunningSum", "size": 2}, r"unknown option size; its options are scale"),
        ("own_mixers:Missing", "no attribute 'Missing'; expected a class of that module"),
        ("no_such_module:Missing", "No module named 'no_such_module'.*PYTHONPATH"),
        ("broken_module:Mixer", r"importing 'broken_module' fails \(SyntaxError: .*broken_module.py, line 1"),
        ("own_mixers:NoMixer", "own_mixers:NoMixer is not a subclass"),
        ("own_mixers:Uncounted", "'own_mixers:Uncounted': the class does not define mixing_flops"),
        ("own_mixers:Unsized", "'own_mixers:Unsized': the class does not define state_size"),
        ("argap.models.mixers.input_dependent_conv:InputDependentConv", "cannot be built with its defaults .*abstract"),
        ({"name": "mamba", "step_rank": 2**70}, r"step_rank=1180591620717411303424 \(.*Overflow .*long\)$"),
    ],
)
def test_what_is_unknown_is_named_with_what_is_known(mixer: str | dict, said: str) -> None:
    with pytest.raises(ArgapError, match=said):
        model_of(mixer)


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("SeesOneAhead", "its outputs change with later inputs"),
        ("SeesTheMean", "its outputs change with later inputs"),
        ("SeesTokensAhead", "its outputs change with later inputs"),
        ("SaysSo", "not causal"),
    ],
)
def test_a_mixer_that_sees_the_future_is_refused(name: str, found: str) -> None:
    model = model_of("attention", f"own_mixers:{name}").train()
    with pytest.raises(ArgapError, match=f"^mixer {name}: {found}, so its loss would see the future; such mixers have"):
        check_causal(model)
    assert model.model.blocks[1].mixer.training


@pytest.mark.parametrize("name", ["RunningSum", "OddTokens", "Fails", "Random"])
def test_a_mixer_that_sees_the_past_fails_or_is_random_is_believed(name: str) -> None:
    state = torch.random.get_rng_state()
    model = model_of(f"own_mixers:{name}")
    torch.random.set_rng_state(state)
    check_causal(model)
    check_causal(model.bfloat16())
    assert torch.equal(torch.random.get_rng_state(), state)


def test_a_checkpoint_that_sees_the_future_is_named(tmp_path: Path) -> None:
    model_of("own_mixers:SeesOneAhead").save_pretrained(tmp_path / "ahead")
    with pytest.raises(ArgapError, match="ahead: mixer SeesOneAhead: its outputs change with later inputs"):
        load_model(find_checkpoint(str(tmp_path / "ahead")), dtype=torch.float32, device="cpu")
