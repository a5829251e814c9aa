"""Based: the authors' layout, against a plain reading of their forward pass."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

from argap.checkpoints.find import find_checkpoint
from argap.checkpoints.load import load_model
from argap.errors import ArgapError
from tests.unit.models.hub.readings import rms

# The options of their reference configurations, small: a convolution, linear attention, a window of 4 + 1.
CONFIG: dict[str, Any] = {
    "_target_": "based.models.gpt.GPT2MixerConfig",
    "vocab_size": 61,
    "pad_vocab_size_multiple": 8,
    "n_embd": 32,
    "n_inner": 64,
    "n_layer": 3,
    "n_head": 4,
    "layer_norm_epsilon": 1e-5,
    "rms_norm": True,
    "activation_function": "swiglu",
    "rotary_emb_fraction": 1,
    "max_position_embeddings": 0,
    "n_positions": 2048,
    "mixer": {"_target_": "based.models.mixers.convolution.BaseConv", "expand_proj": 4, "kernel_sizes": 3},
    "alt_mixer_layers": [1],
    "alt_mixer": {"num_heads": 4, "feature_dim": 6, "feature_map": {"input_dim": 6}},
    "alt_mixer_2_layers": [2],
    "alt_mixer_2": {"num_heads": 4, "window_size": 8},
}
SHAPES = {
    "transformer.layers.0.mixer.in_proj.weight": (128, 32),
    "transformer.layers.0.mixer.in_proj.bias": (128,),
    "transformer.layers.0.mixer.conv.conv.weight": (64, 1, 3),
    "transformer.layers.0.mixer.out_proj.weight": (32, 64),
    "transformer.layers.0.mixer.out_proj.bias": (32,),
    "transformer.layers.1.mixer.proj_q.weight": (24, 32),
    "transformer.layers.1.mixer.proj_k.weight": (24, 32),
    "transformer.layers.1.mixer.proj_v.weight": (32, 32),
    "transformer.layers.1.mixer.out_proj.weight": (32, 32),
    "transformer.layers.2.mixer.Wqkv.weight": (96, 32),
    "transformer.layers.2.mixer.out_proj.weight": (32, 32),
    "transformer.ln_f.weight": (32,),
    "lm_head.weight": (64, 32),  # 61 rows, up to a multiple of 8
}
for layer in range(3):
    SHAPES |= {f"transformer.layers.{layer}.norm{norm}.weight": (32,) for norm in (1, 2)}
    SHAPES[f"transformer.layers.{layer}.mlp.fc1.weight"] = (128, 32)
    SHAPES[f"transformer.layers.{layer}.mlp.fc2.weight"] = (32, 64)


@pytest.fixture
def weights() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    return {name: torch.randn(shape, generator=generator) / shape[-1] ** 0.5 for name, shape in SHAPES.items()}


def save(folder: Path, weights: dict[str, torch.Tensor], **options: Any) -> Path:
    (folder / "config.json").write_text(json.dumps({**CONFIG, **options}))
    save_file(weights, folder / "model.safetensors")
    return folder


def test_logits_and_steps_are_those_of_a_plain_reading(tmp_path, weights, native, stepped, ids) -> None:
    model, expected = native(save(tmp_path, weights)), by_hand(exact(weights), ids)
    torch.testing.assert_close(model(ids).logits.double(), expected, rtol=0, atol=1e-4)
    torch.testing.assert_close(stepped(model, ids).double(), expected, rtol=0, atol=1e-4)


def exact(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: weight.double() for name, weight in weights.items()}


def test_the_layouts_of_their_trainer_load_too(tmp_path, weights, native, ids) -> None:
    """With the trainer's prefix, its counters, the rotary tables, and the embedding's copy or name alone."""
    stored = {f"model.{name}": weight for name, weight in weights.items()}
    stored["model.transformer.embeddings.word_embeddings.weight"] = stored.pop("model.lm_head.weight")
    stored["model.transformer.layers.2.mixer.rotary_emb.inv_freq"] = torch.ones(4)
    stored["val_metrics.num-tokens.count"] = torch.ones(())
    found = native(save(tmp_path, stored))(ids).logits
    torch.testing.assert_close(found, by_hand(weights, ids), rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"fixed_decay": True}, "option fixed_decay True of based has no native form, .* `fixed_decay=apply`"),
        ({"rotary_emb_fraction": 0.5}, "option rotary_emb_fraction 0.5"),
        ({"activation_function": "geglu"}, "option activation_function 'geglu'"),
        ({"mixer": {"expand_proj": 3}}, "an even expand_proj"),
        ({"alt_mixer": {"feature_map": {"input_dim": 5}}}, "a feature map of feature_dim"),
        ({"alt_mixer_2": {"num_heads": 2}}, "num_heads 4, as n_head"),
    ],
)
def test_another_option_is_refused(tmp_path, weights, native, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ArgapError, match=said):
        native(save(tmp_path, weights, **options))


@pytest.mark.usefixtures("pickles_read_here")
def test_fixed_decay_may_be_read_as_ignored(tmp_path, weights, native, ids) -> None:
    """Their later linear attention takes the decay and does nothing with it: then the logits are those without."""
    from argap.checkpoints.convert import convert

    source = tmp_path / "published"
    source.mkdir()
    (source / "config.json").write_text(json.dumps({**CONFIG, "fixed_decay": True}))
    torch.save(weights, source / "pytorch_model.bin")
    with pytest.raises(ArgapError, match="fixed_decay True"):
        convert(str(source), tmp_path / "native")
    assert convert(str(source), tmp_path / "native", fixed_decay="ignore").fixed_decay == "ignore"
    torch.testing.assert_close(native(tmp_path / "native")(ids).logits, by_hand(weights, ids), rtol=0, atol=1e-4)


@pytest.mark.parametrize("options", [{}, {"decay_denom": False, "decay_const": -1}])
def test_fixed_decay_may_be_applied(tmp_path, weights, native, stepped, ids, options: dict[str, Any]) -> None:
    """Their earlier linear attention, read in float64: scores times the mask of ``DecayClass``, the sum without it."""
    decayed = save(tmp_path, weights, fixed_decay=True, fixed_decay_reading="apply", **options)
    model, wide = native(decayed), exact(weights)
    expected = by_hand(wide, ids, decay=options.get("decay_const", -5), scaled=options.get("decay_denom", True))
    assert (expected - by_hand(wide, ids)).abs().max() > 0.1
    torch.testing.assert_close(model(ids).logits.double(), expected, rtol=0, atol=1e-4)
    torch.testing.assert_close(stepped(model, ids).double(), expected, rtol=0, atol=1e-4)


def test_the_decay_has_a_head_for_each_of_the_models(tmp_path, weights, native) -> None:
    options = {"fixed_decay": True, "fixed_decay_reading": "apply", "alt_mixer": {"num_heads": 2, "feature_dim": 12}}
    with pytest.raises(ArgapError, match="num_heads as n_head, which the decay has"):
        native(save(tmp_path, weights, **options))


def test_there_is_no_other_implementation(tmp_path, weights) -> None:
    checkpoint = find_checkpoint(save(tmp_path, weights))
    with pytest.raises(ArgapError, match="has no implementation to run here; use `backend=native`"):
        load_model(checkpoint, dtype=torch.float32, device="cpu", backend="hf")


def by_hand(
    w: dict[str, torch.Tensor], ids: torch.Tensor, decay: float | None = None, scaled: bool = True
) -> torch.Tensor:
    x = w["lm_head.weight"][ids]
    for layer, mixer in enumerate((convolution, partial(linear_attention, decay=decay, scaled=scaled), window)):
        at = f"transformer.layers.{layer}."
        part = {name.removeprefix(f"{at}mixer."): weight for name, weight in w.items() if name.startswith(f"{at}mixer")}
        x = x + mixer(part, rms(x, w[f"{at}norm1.weight"])) @ part["out_proj.weight"].T + part.get("out_proj.bias", 0)
        up, gate = (rms(x, w[f"{at}norm2.weight"]) @ w[f"{at}mlp.fc1.weight"].T).chunk(2, dim=-1)
        x = x + (up * F.silu(gate)) @ w[f"{at}mlp.fc2.weight"].T
    return rms(x, w["transformer.ln_f.weight"]) @ w["lm_head.weight"].T


def convolution(w: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    u, gate = (x @ w["in_proj.weight"].T + w["in_proj.bias"]).chunk(2, dim=-1)
    mixed = F.conv1d(F.pad(u.transpose(1, 2), (2, 0)), w["conv.conv.weight"], groups=64).transpose(1, 2)
    return F.silu(mixed) * gate


def linear_attention(
    w: dict[str, torch.Tensor], x: torch.Tensor, decay: float | None = None, scaled: bool = True
) -> torch.Tensor:
    q, k, v = ((x @ w[f"proj_{name}.weight"].T).unflatten(-1, (4, -1)).transpose(1, 2) for name in "qkv")
    scores = q @ k.mT / 6**0.5
    weights = (1 + scores + scores**2 / 2).tril()
    mask = torch.ones_like(scores[0]).tril()
    if decay is not None:
        length = range(x.shape[1])
        kept = [1 - 2 ** (decay - head) for head in range(4)]
        rows = [[[one ** (i - j) if j <= i else 0.0 for j in length] for i in length] for one in kept]
        if scaled:
            rows = [[[value / sum(row) ** 0.5 for value in row] for row in head] for head in rows]
        mask = torch.tensor(rows, dtype=x.dtype)
    return ((weights * mask) @ v / weights.sum(-1, keepdim=True)).transpose(1, 2).flatten(2)


def window(w: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    q, k, v = (x @ w["Wqkv.weight"].T).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)
    angles = torch.arange(x.shape[1], dtype=x.dtype)[:, None] * 10_000.0 ** (-torch.arange(4, dtype=x.dtype) / 4)
    q, k = (
        torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], dim=-1)
        for a, b in (part.chunk(2, dim=-1) for part in (q, k))
    )
    square = torch.ones(x.shape[1], x.shape[1])
    unseen = (square.tril() - square.tril(-5)) == 0  # itself and 8 / 2 before
    return ((q @ k.mT / 8**0.5).masked_fill(unseen, -torch.inf).softmax(-1) @ v).transpose(1, 2).flatten(2)
