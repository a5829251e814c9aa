"""The language model: as transformers loads, saves and generates with it, and as it steps by itself."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from transformers import AutoConfig, AutoModelForCausalLM, Trainer, TrainingArguments

from argap.errors import ArgapError
from argap.models import ArgapConfig, ArgapForCausalLM
from argap.models.configuration import as_spec
from argap.models.mixers.base_conv import BaseConv
from argap.models.presets import ARCHITECTURES, build_config
from tests.builders.processes import begin, said
from tests.builders.weights import assert_all_learn

VOCAB, LONGEST = 48, 32
SIZE: dict[str, Any] = {"vocab_size": VOCAB, "hidden_size": 32, "max_position_embeddings": LONGEST}
MIXERS = {
    json.dumps(spec): spec
    for architecture in ARCHITECTURES.values()
    for spec in map(as_spec, architecture.layers(6))
    if spec.get("window") not in (64, 256)  # as 128: longer than the sequence
}
"""Every mixer of the architectures, once."""


VARIED = (
    "attention",
    "base_conv",
    "hybrid_programmatic",
    "hybrid_learned",
    "retnet_block",
    "mamba_block",
    "rwkv4_channel",
    "kda_hybrid",
)
"""Every kind of block and of layer: bounded filters, mixers that ask for ids or have a loss of their own, each MLP and
norm. What the model does around its mixers is shown of these; what depends on the mixer is shown of all."""


@pytest.fixture(params=ARCHITECTURES)
def model(request: pytest.FixtureRequest) -> ArgapForCausalLM:
    return small(request.param)


@pytest.fixture(params=VARIED)
def varied(request: pytest.FixtureRequest) -> ArgapForCausalLM:
    return small(request.param)


def small(architecture: str, **options: object) -> ArgapForCausalLM:
    torch.manual_seed(0)
    config = build_config(
        architecture, hidden_size=32, num_hidden_layers=3, vocab_size=VOCAB, seq_len=LONGEST, **options
    )
    return ArgapForCausalLM(config).eval()


def enlarged(model: ArgapForCausalLM) -> ArgapForCausalLM:
    """In float64 and with weights so large that every layer matters."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                torch.nn.init.normal_(parameter, std=0.3)
    return model.double()


def generate(model: ArgapForCausalLM, ids: torch.Tensor, mask: torch.Tensor, new: int) -> torch.Tensor:
    """Greedily, by transformers."""
    # The library's protocol for models that generate asks for attributes that its own models lack.
    return model.generate(ids, attention_mask=mask, max_new_tokens=new, do_sample=False, pad_token_id=0)  # pyright: ignore


def some_ids(batch: int, length: int) -> torch.Tensor:
    return torch.randint(VOCAB, (batch, length), generator=torch.Generator().manual_seed(length))


@torch.no_grad()
def test_a_changed_token_changes_no_earlier_logits(model: ArgapForCausalLM) -> None:
    model = enlarged(model)
    ids = some_ids(2, 20)
    changed = ids.clone()
    changed[:, 11] = (ids[:, 11] + 1) % VOCAB
    difference = (model(changed).logits - model(ids).logits).abs().amax(dim=(0, 2))
    assert difference[:11].max() < 1e-11
    # Beyond the short filters, only the positions that a gate picks see the change, as those drawn at random do.
    attends_everywhere = all(mixer.get("select") not in ("random", "learned") for mixer in model.config.mixers)
    assert (difference[11 : None if attends_everywhere else 12] > 1e-6).all()


@torch.no_grad()
def test_stepping_gives_the_parallel_logits(model: ArgapForCausalLM) -> None:
    model = enlarged(model)
    ids = some_ids(2, LONGEST)
    state, whole = model.init_state(2), model(ids).logits
    for t in range(LONGEST):
        logits, state = model.step(ids[:, t], state)
        torch.testing.assert_close(logits, whole[:, t], rtol=0, atol=1e-10)
        if t in (0, 20):
            last = model(ids[:, : t + 1], logits_to_keep=1).logits[:, 0]
            torch.testing.assert_close(logits, last, rtol=0, atol=1e-10)
    assert state.position == LONGEST


def test_the_loss_is_the_mean_nll_of_the_next_tokens(varied: ArgapForCausalLM) -> None:
    ids = some_ids(2, 9)
    labels = ids.clone()
    labels[1, 5:] = -100
    result = varied(ids, labels=labels)
    logprobs = result.logits.log_softmax(dim=-1)
    kept = [logprobs[b, t - 1, ids[b, t]] for b in range(2) for t in range(1, 9) if b == 0 or t < 5]
    torch.testing.assert_close(result.loss, -sum(kept) / len(kept))


def test_accumulated_gradients_are_a_mean_in_the_trainer_of_transformers(tmp_path: Path) -> None:
    rows = [{"input_ids": ids, "labels": ids} for ids in some_ids(4, 12)]

    def trained(batch: int) -> ArgapForCausalLM:
        """After one step of SGD on all rows."""
        args = TrainingArguments(
            output_dir=str(tmp_path),
            max_steps=1,
            per_device_train_batch_size=batch,
            gradient_accumulation_steps=len(rows) // batch,
            optim="sgd",
            learning_rate=1.0,
            max_grad_norm=0.0,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
        )
        model = small("attention")
        Trainer(model=model, args=args, train_dataset=rows).train()  # pyright: ignore[reportArgumentType]
        return model

    for one, other in zip(trained(4).parameters(), trained(1).parameters(), strict=True):
        torch.testing.assert_close(one, other)


def test_all_parameters_learn(model: ArgapForCausalLM) -> None:
    """Weights of attention to compressed blocks of 32 positions, one every 16, only where a position sees two."""
    ids = some_ids(4, model.config.max_position_embeddings or 2 * LONGEST)
    model(ids, labels=ids).loss.backward()
    assert_all_learn(model)


@torch.no_grad()
def test_a_new_model_is_no_surer_than_chance_and_hears_its_embeddings(model: ArgapForCausalLM) -> None:
    ids = some_ids(8, LONGEST)
    assert model(ids, labels=ids).loss == pytest.approx(math.log(VOCAB), abs=0.1)
    embedded = x = model.model.embed_tokens(ids)
    size = x.std()
    skips = any(isinstance(block.mixer, BaseConv) and block.mixer.skip for block in model.model.blocks)
    for block in model.model.blocks:
        u = block.mixer_norm(x)
        mixed = block.mixer(u, *((ids,) if block.mixer.needs_ids else ()))
        if isinstance(block.mixer, BaseConv) and block.mixer.skip:
            assert 0.001 * size < (mixed - u).std() < 0.2 * u.std()
        else:
            assert 0.001 * size < mixed.std() < 2 * size
        x = block(x, ids)
    if skips:  # of the published BaseConv: the normalised embeddings themselves pass
        assert torch.cosine_similarity(x, embedded, dim=-1).mean() > 0.9
    else:
        assert x.std() < 3 * size


@torch.no_grad()
def test_a_new_base_conv_is_linear_in_a_small_input() -> None:
    """With biases of 0 it would be quadratic, a hundredth of the input giving a ten-thousandth of the output."""
    x = torch.randn(2, LONGEST, 32, generator=torch.Generator().manual_seed(0))
    for block in small("base_conv").model.blocks:
        ratio = block.mixer(x / 100).norm() / block.mixer(x).norm()
        assert ratio == pytest.approx(0.01, rel=0.1)


def test_the_logits_survive_saving(varied: ArgapForCausalLM, tmp_path: Path) -> None:
    ids = some_ids(2, LONGEST)
    varied.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    assert isinstance(loaded, ArgapForCausalLM)
    assert torch.equal(loaded(ids).logits, varied(ids).logits)
    assert loaded.config.mixers == varied.config.mixers
    assert len(loaded.config.mixers) == loaded.config.num_hidden_layers


def test_another_process_loads_the_same_logits(tmp_path: Path) -> None:
    model = small("hybrid")
    ids = some_ids(2, LONGEST)
    model.save_pretrained(tmp_path)
    torch.save((ids, model(ids).logits), tmp_path / "logits.pt")
    script = (
        "import sys, torch, argap.models\n"
        "torch.set_num_threads(1)\n"  # as here: sums over threads round differently
        "from transformers import AutoModelForCausalLM\n"
        "model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32)\n"
        "ids, logits = torch.load(sys.argv[1] + '/logits.pt')\n"
        "assert torch.equal(model(ids).logits, logits)\n"
    )
    process = begin(script, str(tmp_path), folder=tmp_path)
    process.join()
    assert process.exitcode == 0, said(tmp_path)


@pytest.mark.parametrize("tied", [True, False])
def test_the_head_is_tied_as_the_configuration_says(tmp_path: Path, tied: bool) -> None:
    model = small("base_conv", tie_word_embeddings=tied)
    model.save_pretrained(tmp_path)
    with safe_open(tmp_path / "model.safetensors", framework="pt") as file:
        assert ("lm_head.weight" in list(file.keys())) is not tied
    for each in (model, AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)):
        assert (each.lm_head.weight is each.model.embed_tokens.weight) is tied
        assert type(each.get_output_embeddings()) is torch.nn.Linear


@torch.no_grad()
def test_the_trunk_and_the_head_make_the_logits(varied: ArgapForCausalLM) -> None:
    ids = some_ids(2, 7)
    hidden = varied.base_model(input_ids=ids, use_cache=False).last_hidden_state
    head = varied.get_output_embeddings()
    assert head is not None
    assert torch.equal(head(hidden), varied(input_ids=ids, use_cache=False).logits)


def test_generate_takes_the_greedy_steps(varied: ArgapForCausalLM) -> None:
    model = enlarged(varied)
    prompt = some_ids(2, 5)
    found = generate(model, prompt, torch.ones_like(prompt), 12)
    state, ids = model.init_state(2), prompt
    with torch.no_grad():
        for t in range(5 + 11):
            logits, state = model.step(ids[:, t], state)
            if t >= 4:
                ids = torch.cat([ids, logits.argmax(dim=-1, keepdim=True)], dim=1)
    assert torch.equal(found, ids)
    assert len(ids[:, 5:].unique()) > 1  # not one token over and over, which any rule would give


def test_padding_is_taken_on_the_right_only(varied: ArgapForCausalLM) -> None:
    ids = some_ids(2, 9)
    mask = torch.ones_like(ids)
    mask[0, 6:] = 0
    padded = ids.clone()
    padded[0, 6:] = 0
    torch.testing.assert_close(varied(padded, attention_mask=mask).logits[0, :6], varied(ids).logits[0, :6])
    with pytest.raises(ArgapError, match="pad on the right"):
        varied(ids, attention_mask=mask.flip(1))
    with pytest.raises(ArgapError, match="equal length"):
        generate(varied, padded, mask, 2)


def test_a_window_longer_than_the_filters_is_refused() -> None:
    model = small("base_conv")
    with pytest.raises(ArgapError, match=f"window of 33 tokens.*at most {LONGEST}.*`seq_len={LONGEST}`"):
        model(some_ids(1, LONGEST + 1))
    state = model.init_state(1)
    ids = some_ids(1, LONGEST)
    with torch.no_grad():
        for t in range(LONGEST):
            _, state = model.step(ids[:, t], state)
        with pytest.raises(ArgapError, match="window of 33 tokens"):
            model.step(ids[:, 0], state)
    small("attention")(some_ids(1, 3 * LONGEST))  # attention with rotary positions takes any length


@pytest.mark.parametrize("part", range(4))
def test_training_compiles_without_a_break(part: int) -> None:
    """Each mixer of the architectures once: a graph breaks in a layer, whatever the layers around it."""
    torch.compiler.reset()  # earlier models count as recompilations, whose number is limited
    torch.manual_seed(0)
    mixers = [*MIXERS.values()][part::4]
    model = ArgapForCausalLM(ArgapConfig(mixers=mixers, num_hidden_layers=len(mixers), **SIZE)).eval()
    ids = some_ids(2, LONGEST)

    def step(ids: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return model(input_ids=ids, labels=ids, use_cache=False).loss

    compiled = torch.compile(step, fullgraph=True, backend="eager")
    compiled(ids).backward()
    torch.testing.assert_close(compiled(ids), step(ids))


def test_a_shorter_pattern_is_written_out() -> None:
    short = {"name": "base_conv", "kernel_size": 4}
    config = ArgapConfig(num_hidden_layers=5, mixers=["attention", short])
    assert config.mixers == [{"name": "attention"}, short, {"name": "attention"}, short, {"name": "attention"}]
    assert isinstance(AutoConfig.for_model("argap"), ArgapConfig)


@pytest.mark.parametrize(
    ("mixers", "said"),
    [
        ([], "at least one entry"),
        ("attention", "expected a list"),
        (["attention"] * 3, "3 entries for 2 layers"),
        ([{"heads": 2}], "a name or an object with a name"),
        ([7], "a name or an object with a name"),
    ],
)
def test_mixers_that_do_not_fit_the_layers_are_refused(mixers: list, said: str) -> None:
    with pytest.raises(ArgapError, match=said):
        ArgapConfig(num_hidden_layers=2, mixers=mixers)
