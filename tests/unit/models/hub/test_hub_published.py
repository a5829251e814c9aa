"""The layouts that HazyResearch and state-spaces publish, pickles and all, against plain readings in float64."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

from argap.checkpoints.convert import convert
from argap.checkpoints.find import find_checkpoint
from argap.checkpoints.load import check_loadable, load_model
from argap.errors import ArgapError
from argap.models.hub.registry import find_family
from tests.unit.models.hub.readings import mamba, mamba2, rms

# The keys of train/configs/experiment/reference/attn-360m.yaml in HazyResearch/based, small. Heads of 10: half is odd.
ATTENTION: dict[str, Any] = {
    "_target_": "transformers.GPT2Config",
    "vocab_size": 61,
    "n_embd": 30,
    "n_head": 3,
    "n_layer": 2,
    "rms_norm": True,
    "fused_mlp": False,
    "attn_pdrop": 0,
    "embd_pdrop": 0,
    "n_positions": 2048,
    "resid_pdrop": 0,
    "mlp_fc1_bias": False,
    "mlp_fc2_bias": False,
    "fused_bias_fc": True,
    "out_proj_bias": False,
    "qkv_proj_bias": False,
    "use_flash_attn": True,
    "residual_in_fp32": True,
    "activation_function": "swiglu",
    "rotary_emb_fraction": 0.5,
    "fused_dropout_add_ln": True,
    "max_position_embeddings": 0,
    "pad_vocab_size_multiple": 16,
    "reorder_and_upcast_attn": False,
    "scale_attn_by_inverse_layer_idx": False,
    "ff_mult": 4,
}
# based/models/mamba.py's MambaConfig, written out.
MAMBA: dict[str, Any] = {
    "d_model": 16,
    "n_layer": 2,
    "vocab_size": 61,
    "ssm_cfg": {"d_state": 4},
    "rms_norm": True,
    "residual_in_fp32": True,
    "fused_add_norm": True,
    "pad_vocab_size_multiple": 16,
}
# What mamba_ssm's MambaConfig writes for state-spaces/mamba2-*, small: two groups of heads of 8.
MAMBA2: dict[str, Any] = {
    "d_model": 16,
    "d_intermediate": 0,
    "n_layer": 2,
    "vocab_size": 61,
    "ssm_cfg": {"layer": "Mamba2", "d_state": 4, "headdim": 8, "ngroups": 2},
    "attn_layer_idx": [],
    "attn_cfg": {},
    "rms_norm": True,
    "residual_in_fp32": True,
    "fused_add_norm": True,
    "pad_vocab_size_multiple": 16,
    "tie_embeddings": True,
}


def drawn(shapes: dict[str, tuple[int, ...]]) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    return {
        name: torch.randn(shape, generator=generator) * (0.2 if len(shape) == 1 else 1.5 / shape[-1] ** 0.5)
        + ("norm" in name or "ln_f" in name)
        for name, shape in shapes.items()
    }


def attention_weights() -> dict[str, torch.Tensor]:
    shapes: dict[str, tuple[int, ...]] = {"lm_head.weight": (64, 30), "transformer.ln_f.weight": (30,)}
    for layer in range(2):
        at = f"transformer.layers.{layer}"
        shapes |= {
            f"{at}.mixer.Wqkv.weight": (90, 30),
            f"{at}.mixer.out_proj.weight": (30, 30),
            f"{at}.mlp.fc1.weight": (512, 30),  # 8/3 of 30 is 80, up to a multiple of 256, twice
            f"{at}.mlp.fc2.weight": (30, 256),
            f"{at}.norm1.weight": (30,),
            f"{at}.norm2.weight": (30,),
        }
    return drawn(shapes)


def mamba_weights() -> dict[str, torch.Tensor]:
    shapes: dict[str, tuple[int, ...]] = {"backbone.embedding.weight": (64, 16), "backbone.norm_f.weight": (16,)}
    for layer in range(2):
        at = f"backbone.layers.{layer}.mixer"
        shapes |= {
            f"backbone.layers.{layer}.norm.weight": (16,),
            f"{at}.in_proj.weight": (64, 16),
            f"{at}.conv1d.weight": (32, 1, 4),
            f"{at}.conv1d.bias": (32,),
            f"{at}.x_proj.weight": (9, 32),  # rank ⌈16 / 16⌉ and twice 4 states
            f"{at}.dt_proj.weight": (32, 1),
            f"{at}.dt_proj.bias": (32,),
            f"{at}.A_log": (32, 4),
            f"{at}.D": (32,),
            f"{at}.out_proj.weight": (16, 32),
        }
    weights = drawn(shapes)
    return {**weights, "lm_head.weight": weights["backbone.embedding.weight"]}  # tied, as torch saves it


def mamba2_weights() -> dict[str, torch.Tensor]:
    shapes: dict[str, tuple[int, ...]] = {"backbone.embedding.weight": (64, 16), "backbone.norm_f.weight": (16,)}
    for layer in range(2):
        at = f"backbone.layers.{layer}.mixer"
        shapes |= {
            f"backbone.layers.{layer}.norm.weight": (16,),
            f"{at}.in_proj.weight": (84, 16),  # gate and input of 32, twice 2 groups of 4 states, 4 heads
            f"{at}.conv1d.weight": (48, 1, 4),
            f"{at}.conv1d.bias": (48,),
            f"{at}.dt_bias": (4,),
            f"{at}.A_log": (4,),
            f"{at}.D": (4,),
            f"{at}.norm.weight": (32,),
            f"{at}.out_proj.weight": (16, 32),
        }
    weights = drawn(shapes)
    return {**weights, "lm_head.weight": weights["backbone.embedding.weight"]}


def publish(folder: Path, config: dict[str, Any], weights: dict[str, torch.Tensor]) -> Path:
    """As their trainer's checkpoint reaches the hub: a prefix, the counters of its metrics, a pickle."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    stored = {f"model.{name}": weight for name, weight in weights.items()}
    torch.save({**stored, "val_metrics.num-tokens.count": torch.tensor(7)}, folder / "pytorch_model.bin")
    return folder


@pytest.mark.parametrize("family", ["attention", "mamba"])
def test_a_published_checkpoint_converts_and_has_the_logits_of_a_plain_reading(
    tmp_path, native, stepped, ids, family: str
) -> None:
    config, weights, by_hand = {
        "attention": (ATTENTION, attention_weights(), attention_by_hand),
        "mamba": (MAMBA, mamba_weights(), partial(mamba, embedding="backbone.embedding.weight")),
    }[family]
    source = publish(tmp_path / "published", config, weights)
    with pytest.raises(ArgapError, match=f"only pickled weights .* `argap convert {source} OUT`"):
        find_checkpoint(source)
    record = convert(str(source), tmp_path / "native")
    assert record.native
    model = native(tmp_path / "native")
    expected = by_hand({name: weight.double() for name, weight in weights.items()}, ids).float()
    assert expected.std() > 0.3
    with torch.no_grad():
        torch.testing.assert_close(model(ids).logits, expected, rtol=0, atol=1e-4)
        torch.testing.assert_close(stepped(model, ids), expected, rtol=0, atol=1e-4)


@pytest.mark.usefixtures("pickles_read_here")
@pytest.mark.parametrize("safe", [True, False])
def test_mamba_2_converts_to_the_layout_of_transformers(tmp_path, ids, safe: bool) -> None:
    """huggingface/transformers#34167: AutoModel ends in size mismatches on state-spaces/mamba2-130m."""
    weights = mamba2_weights()
    source = publish(tmp_path / "published", MAMBA2, weights)
    if safe:
        (source / "pytorch_model.bin").unlink()
        save_file({name: weight.clone() for name, weight in weights.items()}, source / "model.safetensors")
        with pytest.raises(ArgapError, match=f"Mamba-2 as mamba_ssm saves it; .* `argap convert {source} OUT`"):
            check_loadable(find_checkpoint(source))
    record = convert(str(source), tmp_path / "converted")
    assert not record.native
    checkpoint = find_checkpoint(tmp_path / "converted")
    check_loadable(checkpoint)
    model = load_model(checkpoint, dtype=torch.float32, device="cpu", backend="hf")
    expected = mamba2({name: weight.double() for name, weight in weights.items()}, ids).float()
    assert expected.std() > 0.3
    with torch.no_grad():
        torch.testing.assert_close(model(ids).logits, expected, rtol=0, atol=1e-4)


@pytest.mark.usefixtures("pickles_read_here")
def test_rotary_positions_over_all_of_a_head_differ(tmp_path, native, ids) -> None:
    """The half matters: the comparison above would notice its absence."""
    weights = attention_weights()
    publish(tmp_path / "half", ATTENTION, weights)
    publish(tmp_path / "whole", {**ATTENTION, "rotary_emb_fraction": 1}, weights)
    for name in ("half", "whole"):
        convert(str(tmp_path / name), tmp_path / f"{name}-native")
    half, whole = (native(tmp_path / f"{name}-native")(ids).logits for name in ("half", "whole"))
    assert (half - whole).abs().max() > 0.1


@pytest.mark.usefixtures("pickles_read_here")
@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({**ATTENTION, "mlp_fc1_bias": True}, "option mlp_fc1_bias True of flash_gpt"),
        ({**ATTENTION, "max_position_embeddings": 2048}, "option max_position_embeddings 2048 of flash_gpt"),
        ({**ATTENTION, "n_inner": 300}, "its config.json"),
        ({**MAMBA, "rms_norm": False}, "option rms_norm False of mamba_ssm"),
        (MAMBA2, "the first is backbone.layers.0.mixer.dt_bias"),
        ({**MAMBA2, "n_layer": 0}, "n_layer 0 in config.json of mamba_ssm"),
        ({**MAMBA2, "ssm_cfg": {"layer": "Mamba2", "rmsnorm": False}}, "option ssm_cfg.rmsnorm False of mamba_ssm's"),
        ({**MAMBA2, "d_intermediate": 64}, "option d_intermediate 64 of mamba_ssm's Mamba-2 is none of transformers'"),
        ({"n_layer": 2}, "config.json has no model_type, and its keys match no known family"),
    ],
)
def test_what_has_no_native_form_is_refused_and_leaves_nothing(tmp_path, config: dict[str, Any], said: str) -> None:
    weights = mamba_weights() if "d_model" in config else attention_weights()
    source = publish(tmp_path / "published", config, weights)
    with pytest.raises(ArgapError, match=said):
        convert(str(source), tmp_path / "native")
    assert [path.name for path in tmp_path.iterdir()] == ["published"]


def test_gpt2_itself_is_not_taken_for_theirs() -> None:
    from transformers import GPT2Config

    assert find_family(GPT2Config().to_dict()) is None


def attention_by_hand(w: dict[str, torch.Tensor], ids: torch.Tensor) -> torch.Tensor:
    x = w["lm_head.weight"][ids]
    # int(0.5 · 10) = 5 components asked for: 3 angles with exponents over 5, which turn 6 components
    angles = torch.arange(ids.shape[1], dtype=x.dtype)[:, None] * 10_000.0 ** (-torch.arange(0, 5, 2).double() / 5)
    for layer in range(2):
        at = f"transformer.layers.{layer}."
        q, k, v = (rms(x, w[f"{at}norm1.weight"]) @ w[f"{at}mixer.Wqkv.weight"].T).unflatten(-1, (3, 3, 10)).unbind(2)
        q, k, v = (part.transpose(1, 2) for part in (turned(q, angles), turned(k, angles), v))
        later = torch.ones(ids.shape[1], ids.shape[1]).triu(1).bool()
        y = (q @ k.mT / 10**0.5).masked_fill(later, -torch.inf).softmax(-1) @ v
        x = x + y.transpose(1, 2).flatten(2) @ w[f"{at}mixer.out_proj.weight"].T
        up, gate = (rms(x, w[f"{at}norm2.weight"]) @ w[f"{at}mlp.fc1.weight"].T).chunk(2, dim=-1)
        x = x + (up * F.silu(gate)) @ w[f"{at}mlp.fc2.weight"].T
    return rms(x, w["transformer.ln_f.weight"]) @ w["lm_head.weight"].T


def turned(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """``x [B, T, H, K]``: pairs of the first and second half of the components that turn."""
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    a, b, rest = x[..., :3], x[..., 3:6], x[..., 6:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], dim=-1)
