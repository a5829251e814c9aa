"""Filters from the sequence itself, against loops over their equations in float64, and where they serve."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from argap.checkpoints.find import find_checkpoint
from argap.corpus import open_corpus
from argap.errors import ArgapError
from argap.evaluation.windows import build_evaluation_set
from argap.models import ArgapConfig, ArgapForCausalLM
from argap.models.mixers.input_dependent_conv import AutocorrelationConv, InputDependentConv, ProgrammaticConv
from argap.records import SourceRecord
from argap.scoring.local import CheckpointSource
from argap.text.tokenizer import load_tokenizer
from tests.builders.weights import assert_all_learn, redraw

WIDTH = 6
KINDS: dict[str, Any] = {"base_conv_programmatic": ProgrammaticConv, "base_conv_autocorrelation": AutocorrelationConv}
DEMO_TOKENIZER = Path(__file__).parents[4] / "argap" / "demo" / "tokenizer"


def randomized(mixer: InputDependentConv) -> InputDependentConv:
    torch.manual_seed(0)
    redraw(mixer, 0.5)
    return mixer.double()


def inputs(batch: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(length)
    ids = torch.randint(3 + length // 2, (batch, length), generator=random)
    return torch.randn(batch, length, WIDTH, dtype=torch.float64, generator=random), ids


def run(mixer: InputDependentConv, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    return mixer(x, ids) if mixer.needs_ids else mixer(x)


def programmatic_loop(mixer: Any, x: torch.Tensor, ids: torch.Tensor) -> list[float]:
    length = len(ids)
    return [float(any(ids[t] == ids[t - s - 1] for t in range(s + 1, length))) for s in range(length)]


def autocorrelation_loop(mixer: Any, x: torch.Tensor, ids: torch.Tensor) -> list[float]:
    length = len(x)
    keys = [mixer.key.weight @ x[t] for t in range(length)]
    r = [float(sum(keys[t] @ keys[t - s - 1] for t in range(s + 1, length))) for s in range(length)]
    kept = sorted(range(length), key=lambda s: -r[s])[: mixer.shifts]
    total = sum(abs(r[s]) for s in kept) or 1.0
    return [r[s] / total if s in kept else 0.0 for s in range(length)]


@pytest.mark.parametrize("length", [1, 2, 9, 40])
@pytest.mark.parametrize(
    ("mixer", "filter_of"),
    [
        (ProgrammaticConv(WIDTH), programmatic_loop),
        (AutocorrelationConv(WIDTH, shifts=3), autocorrelation_loop),
        (AutocorrelationConv(WIDTH, shifts=100), autocorrelation_loop),
    ],
    ids=["programmatic", "autocorrelation, 3 shifts", "autocorrelation, all"],
)
@torch.no_grad()
def test_the_layer_is_its_equations_loop(mixer: InputDependentConv, filter_of: Any, length: int) -> None:
    mixer = randomized(mixer)
    x, ids = inputs(2, length)
    y = run(mixer, x, ids)
    for b in range(2):
        h = filter_of(mixer, x[b], ids[b])
        for t in range(length):
            read = sum((h[s] * x[b, t - s] for s in range(t + 1)), start=torch.zeros(WIDTH, dtype=torch.float64))
            gate = mixer.projection.weight @ x[b, t] + mixer.gate_bias
            torch.testing.assert_close(y[b, t], gate * (read + mixer.conv_bias), rtol=0, atol=1e-10)


def test_the_spikes_by_hand() -> None:
    # keys 1 and 2 with values 8 and 9, then noise; 2 returns at distance 4, 1 at distance 7
    ids = torch.tensor([[1, 8, 2, 9, 5, 6, 2, 1]])
    x = torch.eye(8)[None]
    h = ProgrammaticConv(8).taps(x, ids)
    assert h.tolist() == [[0, 0, 0, 1, 0, 0, 1, 0]]  # shifts 3 and 6
    mixer = ProgrammaticConv(8)
    with torch.no_grad():
        mixer.projection.weight.zero_()
        mixer.gate_bias.fill_(1)
        mixer.conv_bias.zero_()
        read = mixer(x, ids)[0]
    # Key 2 at position 6 reads positions 3, its value 9, and 0; key 1 at 7 reads 4 and 1, its value 8.
    torch.testing.assert_close(read[6], x[0, 3] + x[0, 0])
    torch.testing.assert_close(read[7], x[0, 4] + x[0, 1])


@pytest.mark.parametrize("name", KINDS)
@torch.no_grad()
def test_a_later_repeat_changes_what_was_before(name: str) -> None:
    """Why these are no language models: not causal, and so declared."""
    mixer = randomized(KINDS[name](WIDTH))
    table = torch.randn(50, WIDTH, dtype=torch.float64)
    ids = torch.arange(20)[None]
    changed = ids.clone()
    changed[0, -1] = 7  # the first repeat
    assert not mixer.causal
    difference = (run(mixer, table[changed], changed) - run(mixer, table[ids], ids)).abs()
    assert difference[0, :19].max() > 1e-3


@pytest.mark.parametrize("name", KINDS)
def test_every_parameter_has_a_finite_gradient(name: str) -> None:
    mixer = randomized(KINDS[name](WIDTH))
    run(mixer, *inputs(2, 33)).square().sum().backward()
    assert_all_learn(mixer)


@pytest.mark.parametrize("name", KINDS)
@torch.no_grad()
def test_bfloat16_stays_within_its_precision(name: str) -> None:
    mixer = randomized(KINDS[name](WIDTH)).to(torch.bfloat16)
    x, ids = inputs(2, 33)
    low = run(mixer, x.bfloat16(), ids).double()
    high = run(mixer.double(), x.bfloat16().double(), ids)
    assert (low - high).norm() / high.norm() < 0.03


@pytest.mark.parametrize("name", KINDS)
@torch.no_grad()
def test_the_matrix_products_are_as_torch_counts_them(name: str) -> None:
    mixer = KINDS[name](WIDTH)
    with FlopCounterMode(display=False) as counter:
        run(mixer, *(z.float() if z.is_floating_point() else z for z in inputs(2, 32)))
    products = counter.get_total_flops()
    # By hand: a real FFT of length 64 is 2.5·64·6 = 960; biases and gate 3·2·32·6 = 1152.
    beside = 1152 + 2 * (13 * 960 + 3 * 64 * 6)
    if name == "base_conv_autocorrelation":
        beside += 2 * (7 * 960 + 4 * 64 * 6)
    assert mixer.flops(2, 32) == products + beside


@pytest.mark.parametrize("name", KINDS)
def test_a_model_saves_loads_and_is_refused_by_the_scorer(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = ArgapForCausalLM(ArgapConfig(vocab_size=8192, hidden_size=16, num_hidden_layers=2, mixers=[name])).eval()
    ids = torch.stack([torch.randperm(40)[:30], torch.randperm(40)[:30]])
    ids[:, [11, 20]] = ids[:, [0, 2]]  # two keys return
    with torch.no_grad():
        x = model.model.embed_tokens(ids)
        block = model.model.blocks[0]
        written = run(block.mixer, block.mixer_norm(x), ids).std()  # pyright: ignore[reportArgumentType]
        assert 1e-4 * x.std() < written < 2 * x.std()
        model.save_pretrained(tmp_path / "m")
        loaded = ArgapForCausalLM.from_pretrained(tmp_path / "m", dtype=torch.float32)
        assert torch.equal(loaded(ids).logits, model(ids).logits)
    with pytest.raises(ArgapError, match=r"has no recurrent step; use forward"):
        model.init_state(1)
    shutil.copytree(DEMO_TOKENIZER, tmp_path / "m", dirs_exist_ok=True)
    tokenizer = load_tokenizer(str(DEMO_TOKENIZER))
    data = build_evaluation_set(open_corpus("stdlib:heldout"), tokenizer, seq_len=32, limit_tokens=64)
    with pytest.raises(ArgapError, match=rf"mixer {KINDS[name].__name__}: not causal"):
        CheckpointSource("m", find_checkpoint(tmp_path / "m")).score(data, tmp_path / "run", SourceRecord())
