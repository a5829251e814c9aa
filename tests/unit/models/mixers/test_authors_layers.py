"""Our mixers against the layers of transformers, on the same random weights, and of flash-linear-attention.

transformers' recurrent layers compute in float32 whatever their dtype, in chunks of their own.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from transformers import (
    DeepseekV3Config,
    KimiLinearConfig,
    LlamaConfig,
    Mamba2Config,
    MiniMaxConfig,
    OlmoHybridConfig,
    Qwen3NextConfig,
    RecurrentGemmaConfig,
    xLSTMConfig,
)
from transformers.models.deepseek_v3 import modeling_deepseek_v3 as deepseek
from transformers.models.kimi_linear import modeling_kimi_linear as kimi
from transformers.models.llama import modeling_llama as llama
from transformers.models.mamba2 import modeling_mamba2 as mamba2
from transformers.models.minimax import modeling_minimax as minimax
from transformers.models.olmo_hybrid import modeling_olmo_hybrid as olmo
from transformers.models.qwen3_next import modeling_qwen3_next as qwen
from transformers.models.recurrent_gemma import modeling_recurrent_gemma as griffin
from transformers.models.xlstm import modeling_xlstm as xlstm

from argap.checkpoints.rebinding import use_torch_on_cpu
from argap.models.mixer import Mixer
from argap.models.mixers.attention import Attention
from argap.models.mixers.gated_attention import GatedAttention
from argap.models.mixers.gated_delta_net import GatedDeltaNet
from argap.models.mixers.gsa import GSA
from argap.models.mixers.hgrn2 import HGRN2
from argap.models.mixers.kda import KDA
from argap.models.mixers.lightning_attention import LightningAttention
from argap.models.mixers.mamba2 import Mamba2
from argap.models.mixers.mla import MLA
from argap.models.mixers.mlstm import MLSTM
from argap.models.mixers.rg_lru import RGLRU
from argap.models.mixers.rwkv7 import RWKV7
from tests.builders.weights import redraw

WIDTH, LENGTH = 16, 37
Weights = dict[str, torch.Tensor]
Case = tuple[nn.Module, Mixer, Weights, dict[str, Any]]


def causal_mask() -> torch.Tensor:
    return torch.full((LENGTH, LENGTH), -torch.inf).triu(1)[None, None]


def filters(weight: torch.Tensor) -> torch.Tensor:
    """Of a depthwise Conv1d, whose last tap is the present one."""
    return weight[:, 0].flip(-1).mT


def of_mamba2(w: Weights) -> Case:
    """Two groups of two heads."""
    config = Mamba2Config(
        hidden_size=WIDTH, num_heads=4, head_dim=8, state_size=6, n_groups=2, chunk_size=8, num_hidden_layers=1
    )
    theirs = drawn(mamba2.Mamba2Mixer(config, 0), w)
    ours = Mamba2(WIDTH, states=6, heads=4, groups=2)
    weights = {
        "projection.weight": w["in_proj.weight"],
        "short.weight": filters(w["conv1d.weight"]),
        "short.bias": w["conv1d.bias"],
        "decay.log_rate": w["A_log"],
        "decay.bias": w["dt_bias"][:, None],
        "skip": w["D"],
        "norm.weight": w["norm.weight"],
        "out.weight": w["out_proj.weight"],
    }
    return theirs, ours, weights, {}


def of_attention(w: Weights) -> Case:
    """Four heads of 8 that share the keys of two, in a window of 5."""
    config = LlamaConfig(
        hidden_size=32, num_attention_heads=4, num_key_value_heads=2, rope_parameters={"rope_theta": 100.0}
    )
    config._attn_implementation = "eager"
    theirs = drawn(llama.LlamaAttention(config, 0), w)
    ours = Attention(32, heads=4, kv_heads=2, rope_theta=100.0, window=5)
    weights = {
        "qkv.weight": torch.cat([w["q_proj.weight"], w["k_proj.weight"], w["v_proj.weight"]]),
        "out.weight": w["o_proj.weight"],
    }
    positions = llama.LlamaRotaryEmbedding(config)(torch.zeros(1), torch.arange(LENGTH)[None])
    window = causal_mask().masked_fill(torch.ones(LENGTH, LENGTH).tril(-5) == 1, -torch.inf)
    return theirs, ours, weights, {"position_embeddings": positions, "attention_mask": window}


def of_gated_attention(w: Weights) -> Case:
    """Four heads of 8, which share the keys of two; a quarter of a head is rotated."""
    config = Qwen3NextConfig(
        hidden_size=32, num_attention_heads=4, num_key_value_heads=2, head_dim=8, num_hidden_layers=4,
        rope_parameters={"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 0.25},
    )  # fmt: skip
    config._attn_implementation = "eager"
    theirs = drawn(qwen.Qwen3NextAttention(config, 3), w)
    rotary = qwen.Qwen3NextRotaryEmbedding(config)
    ours = GatedAttention(32, heads=4, kv_heads=2, rope_theta=100.0)
    q, gate = w["q_proj.weight"].unflatten(0, (4, 2, 8)).unbind(1)
    weights = {
        "qkv.weight": torch.cat([q.flatten(0, 1), w["k_proj.weight"], w["v_proj.weight"]]),
        "gate.weight": gate.flatten(0, 1),
        "query_norm.weight": 1 + w["q_norm.weight"],
        "key_norm.weight": 1 + w["k_norm.weight"],
        "out.weight": w["o_proj.weight"],
    }
    positions = rotary(torch.zeros(1), torch.arange(LENGTH)[None])
    return theirs, ours, weights, {"position_embeddings": positions, "attention_mask": causal_mask()}


def of_gated_delta_net(w: Weights) -> Case:
    """Two heads; their projection has the parts of a head side by side."""
    config = Qwen3NextConfig(
        hidden_size=WIDTH, linear_num_key_heads=2, linear_num_value_heads=2, linear_key_head_dim=6,
        linear_value_head_dim=12, num_hidden_layers=4,
    )  # fmt: skip
    theirs = drawn(qwen.Qwen3NextGatedDeltaNet(config, 0), w)
    ours = GatedDeltaNet(WIDTH, heads=2, norm_eps=6 * config.rms_norm_eps)
    q, k, v, gate = (
        part.flatten(0, 1) for part in w["in_proj_qkvz.weight"].unflatten(0, (2, -1)).split([6, 6, 12, 12], dim=1)
    )
    beta, steps = w["in_proj_ba.weight"].unflatten(0, (2, 2)).unbind(1)
    weights = {
        "qkv.weight": torch.cat([q, k, v]),
        "conv.weight": filters(w["conv1d.weight"]),
        "beta.weight": beta,
        "steps.weight": steps,
        "decay.log_rate": w["A_log"],
        "decay.bias": w["dt_bias"][:, None],
        "gate.weight": gate,
        "norm.weight": w["norm.weight"],
        "out.weight": w["out_proj.weight"],
    }
    return theirs, ours, weights, {}


def of_negative_eigenvalues(w: Weights) -> Case:
    config = OlmoHybridConfig(
        hidden_size=WIDTH, num_attention_heads=2, num_hidden_layers=4, linear_allow_neg_eigval=True
    )
    theirs = drawn(olmo.OlmoHybridGatedDeltaNet(config, 0), w)
    ours = GatedDeltaNet(WIDTH, heads=2, negative_eigenvalues=True, norm_eps=6e-5)
    weights = {
        "qkv.weight": torch.cat([w["q_proj.weight"], w["k_proj.weight"], w["v_proj.weight"]]),
        "conv.weight": filters(w["conv1d.weight"]),
        "beta.weight": w["b_proj.weight"],
        "steps.weight": w["a_proj.weight"],
        "decay.log_rate": w["A_log"],
        "decay.bias": w["dt_bias"][:, None],
        "gate.weight": w["g_proj.weight"],
        "norm.weight": w["o_norm.weight"],
        "out.weight": w["o_proj.weight"],
    }
    return theirs, ours, weights, {}


def of_kda(w: Weights) -> Case:
    config = KimiLinearConfig(
        hidden_size=WIDTH, linear_num_heads=2, linear_head_dim=8, num_hidden_layers=1, layer_types=["linear_attention"]
    )
    theirs = drawn(kimi.KimiLinearDeltaAttention(config, 0), w)
    ours = KDA(WIDTH, heads=2, norm_eps=8 * config.rms_norm_eps)
    weights = {
        "qkv.weight": torch.cat([w["q_proj.weight"], w["k_proj.weight"], w["v_proj.weight"]]),
        "conv.weight": filters(w["conv1d.weight"]),
        "beta.weight": w["b_proj.weight"],
        "decay_down.weight": w["forget_gate.f_a_proj.weight"],
        "decay_up.weight": w["forget_gate.f_b_proj.weight"],
        "decay.log_rate": w["forget_gate.A_log"].flatten(),
        "decay.bias": w["forget_gate.dt_bias"].unflatten(0, (2, 8)),
        "gate_down.weight": w["g_a_proj.weight"],
        "gate_up.weight": w["g_b_proj.weight"],
        "norm.weight": w["o_norm.weight"],
        "out.weight": w["o_proj.weight"],
    }
    return theirs, ours, weights, {}


def of_lightning_attention(w: Weights) -> Case:
    """The second of four layers."""
    config = MiniMaxConfig(hidden_size=WIDTH, num_attention_heads=4, head_dim=4, num_hidden_layers=4, block_size=8)
    theirs = drawn(minimax.MiniMaxLightningAttention(config, 1), w)
    ours = LightningAttention(WIDTH, heads=4, norm_eps=theirs.norm.variance_epsilon)
    ours.set_depth(1, 4)
    weights = {
        "qkv.weight": w["qkv_proj.weight"],
        "gate.weight": w["output_gate.weight"],
        "norm.weight": w["norm.weight"],
        "out.weight": w["out_proj.weight"],
    }
    return theirs, ours, weights, {"position_embeddings": None, "attention_mask": None}


def of_mlstm(w: Weights) -> Case:
    """Without the epsilon of their division, and with one of the norm that does not undo the division."""
    config = xLSTMConfig(hidden_size=WIDTH, num_heads=2, num_hidden_layers=1, chunk_size=8, eps=0.0, norm_eps=1.0)
    theirs = drawn(xlstm.xLSTMLayer(config), w)
    ours = MLSTM(WIDTH, heads=2, norm_eps=1.0)
    weights = {
        "qkv.weight": torch.cat([w["q.weight"], w["k.weight"], w["v.weight"]]),
        "gates.weight": torch.cat([w["igate_preact.weight"], w["fgate_preact.weight"]]),
        "gates.bias": torch.cat([w["igate_preact.bias"], w["fgate_preact.bias"]]),
        "output_gate.weight": w["ogate_preact.weight"],
        "norm.weight": w["multihead_norm.weight"],
        "out.weight": w["out_proj.weight"],
    }
    return theirs, ours, weights, {}


def of_rg_lru(w: Weights) -> Case:
    """A recurrence as wide as 1.5 layers, two blocks of its gates."""
    config = RecurrentGemmaConfig(hidden_size=WIDTH, lru_width=24, num_attention_heads=2, num_hidden_layers=3)
    theirs = drawn(griffin.RecurrentGemmaRecurrentBlock(config, 0), w)
    ours = RGLRU(WIDTH, expand=1.5, heads=2)
    weights = {
        "projections.weight": torch.cat([w["linear_x.weight"], w["linear_y.weight"]]),
        "projections.bias": torch.cat([w["linear_x.bias"], w["linear_y.bias"]]),
        "short.weight": filters(w["conv_1d.weight"]),
        "short.bias": w["conv_1d.bias"],
        "gates.weight": torch.stack([w[f"rg_lru.{gate}_gate_weight"] for gate in ("recurrent", "input")]),
        "gates.bias": torch.stack([w[f"rg_lru.{gate}_gate_bias"].flatten() for gate in ("recurrent", "input")]),
        "rate": w["rg_lru.recurrent_param"],
        "out.weight": w["linear_out.weight"],
        "out.bias": w["linear_out.bias"],
    }
    positions = torch.arange(LENGTH)[None].expand(2, -1)
    return theirs, ours, weights, {"position_ids": positions, "attention_mask": None, "use_cache": False}


def latent_weights(w: Weights) -> Weights:
    query = {"query.weight": w["q_proj.weight"]} if "q_proj.weight" in w else {
        "query_down.weight": w["q_a_proj.weight"],
        "query_norm.weight": w["q_a_layernorm.weight"],
        "query.weight": w["q_b_proj.weight"],
    }  # fmt: skip
    return query | {
        "down.weight": w["kv_a_proj_with_mqa.weight"],
        "norm.weight": w["kv_a_layernorm.weight"],
        "up.weight": w["kv_b_proj.weight"],
        "out.weight": w["o_proj.weight"],
    }


LATENT: dict[str, Any] = {
    "hidden_size": WIDTH, "num_attention_heads": 2, "num_key_value_heads": 2, "kv_lora_rank": 10,
    "qk_rope_head_dim": 4, "qk_nope_head_dim": 8, "v_head_dim": 8, "num_hidden_layers": 1,
}  # fmt: skip


def of_mla(w: Weights) -> Case:
    """With latent queries, and pairs to rotate half a head apart, as ours are."""
    config = DeepseekV3Config(**LATENT, q_lora_rank=6, rope_interleave=False)
    config._attn_implementation = "eager"
    theirs = drawn(deepseek.DeepseekV3Attention(config, 0), w)
    ours = MLA(WIDTH, heads=2, latent=10, rotary_size=4, query_latent=6, norm_eps=1e-6)
    positions = deepseek.DeepseekV3RotaryEmbedding(config)(torch.zeros(1), torch.arange(LENGTH)[None])
    given = {"position_embeddings": positions, "attention_mask": causal_mask()}
    return theirs, ours, latent_weights(w), given


def of_mla_without_positions(w: Weights) -> Case:
    config = KimiLinearConfig(**LATENT, layer_types=["full_attention"])
    config._attn_implementation = "eager"
    theirs = drawn(kimi.KimiLinearAttention(config, 0), w)
    ours = MLA(WIDTH, heads=2, latent=10, rotary_size=4, positions="none", norm_eps=1e-6)
    return theirs, ours, latent_weights(w), {"attention_mask": causal_mask()}


def drawn(theirs: nn.Module, weights: Weights) -> Any:
    """Draw their parameters, and put copies into ``weights``."""
    use_torch_on_cpu(theirs)
    redraw(theirs, 0.5)
    weights.update({name: parameter.detach().clone() for name, parameter in theirs.named_parameters()})
    return theirs.eval()


CASES: dict[str, Callable[[Weights], Case]] = {
    "attention": of_attention,
    "mamba2": of_mamba2,
    "gated_attention": of_gated_attention,
    "gated_delta_net": of_gated_delta_net,
    "gated_delta_net, β to 2": of_negative_eigenvalues,
    "kda": of_kda,
    "lightning_attention": of_lightning_attention,
    "mlstm": of_mlstm,
    "rg_lru": of_rg_lru,
    "mla": of_mla,
    "mla, no positions": of_mla_without_positions,
}


@pytest.mark.parametrize("name", CASES)
@torch.no_grad()
def test_a_mixer_computes_what_transformers_layer_does(name: str) -> None:
    torch.manual_seed(0)
    theirs, ours, weights, given = CASES[name]({})
    x = torch.randn(2, LENGTH, weights["out.weight"].shape[0])
    expected = theirs(x, **given)
    expected = expected[0] if isinstance(expected, tuple) else expected
    ours.load_state_dict(weights)
    assert expected.std() > 0.1
    torch.testing.assert_close(ours(x), expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(ours.double()(x.double()).float(), expected, rtol=1e-4, atol=1e-4)


def normed_map(x: torch.Tensor, weight: torch.Tensor, bias: None, matrix: torch.Tensor, *rest: Any) -> torch.Tensor:
    """Of flash-linear-attention, whose own runs on a GPU."""
    return torch.nn.functional.rms_norm(x, x.shape[-1:], weight, 1e-5) @ matrix.mT


@pytest.mark.usefixtures("fla_models")
@torch.no_grad()
def test_hgrn2_computes_what_flash_linear_attentions_layer_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Theirs with its naive operator, which scales queries by 1/√K: the norm undoes that but for its epsilon."""
    from fla.layers import hgrn2
    from fla.ops.gla.naive import naive_recurrent_gla

    monkeypatch.setattr(hgrn2, "fused_recurrent_gla", lambda q, k, v, gk, **rest: naive_recurrent_gla(q, k, v, gk))
    monkeypatch.setattr(hgrn2, "swish", torch.nn.functional.silu)
    monkeypatch.setattr(hgrn2, "rms_norm_linear", normed_map)
    torch.manual_seed(1)
    w: Weights = {}
    theirs = drawn(hgrn2.HGRN2Attention(hidden_size=WIDTH, num_heads=2, expand_ratio=None, layer_idx=1), w)
    bound = torch.rand(WIDTH)
    ours = HGRN2(WIDTH, heads=2, norm_eps=1e-5 * 8)
    ours.load_state_dict(
        {
            "qfv.weight": torch.cat([w["q_proj.weight"], w["f_proj.weight"], w["i_proj.weight"]]),
            "lower_bound.weight": bound.logit(),
            "norm.weight": w["g_norm.weight"],
            "out.weight": w["o_proj.weight"],
        }
    )
    x = torch.randn(2, LENGTH, WIDTH)
    torch.testing.assert_close(ours(x), theirs(x, lower_bound=bound)[0], rtol=1e-4, atol=1e-4)
    ours.set_depth(0, 2)  # the first layer has no bound
    theirs.layer_idx = 0
    torch.testing.assert_close(ours(x), theirs(x, lower_bound=bound)[0], rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("fla_models")
@torch.no_grad()
def test_gsa_computes_what_flash_linear_attentions_layer_does(monkeypatch: pytest.MonkeyPatch) -> None:
    from fla.layers import gsa
    from fla.ops.gsa.naive import naive_recurrent_gsa

    monkeypatch.setattr(
        gsa, "fused_recurrent_gsa", lambda q, k, v, s, g, scale, **rest: naive_recurrent_gsa(q, k, v, s, g, scale)
    )
    monkeypatch.setattr(gsa, "SwishFeatureMap", nn.SiLU)
    monkeypatch.setattr(gsa, "rms_norm_linear", normed_map)
    torch.manual_seed(2)
    w: Weights = {}
    theirs = drawn(gsa.GatedSlotAttention(hidden_size=WIDTH, num_heads=2, num_slots=6, layer_idx=0), w)
    ours = GSA(WIDTH, heads=2, slots=6)
    ours.load_state_dict(
        {
            "qkv.weight": torch.cat([w["q_proj.weight"], w["k_proj.weight"], w["v_proj.weight"]]),
            "decay.weight": w["f_proj.weight"],
            "norm.weight": w["g_norm.weight"],
            "out.weight": w["o_proj.weight"],
        }
    )
    x = torch.randn(2, LENGTH, WIDTH)
    torch.testing.assert_close(ours(x), theirs(x)[0], rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("fla_models")
@torch.no_grad()
def test_rwkv7_computes_what_flash_linear_attentions_first_layer_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first layer has no residual of values. Their naive operator scales queries by 1/√K."""
    from fla.layers import rwkv7
    from fla.ops.generalized_delta_rule.dplr.naive import dplr_recurrence
    from fla.ops.rwkv7.fused_k_update import k_update_ref
    from fla.ops.rwkv7.gate_output_correction import gate_output_correction_ref

    def naive(r, k, v, a, b, w, **rest):
        heads_first = (x.transpose(1, 2) for x in (r * r.shape[-1] ** 0.5, k, v, a, b, w))
        return dplr_recurrence(*heads_first)[0].transpose(1, 2), None

    monkeypatch.setattr(rwkv7, "fused_mul_recurrent_rwkv7", lambda kk, a, **rest: naive(a=-kk, b=kk * a, **rest))
    monkeypatch.setattr(rwkv7, "fused_k_rwkv7", k_update_ref)
    monkeypatch.setattr(rwkv7, "gate_output_correction", gate_output_correction_ref)
    monkeypatch.setattr(rwkv7, "fused_addcmul_rwkv7", lambda x, delta, *mixes: [x + delta * mix for mix in mixes])
    monkeypatch.setattr(
        rwkv7, "token_shift", lambda x, *given, **rest: (torch.nn.functional.pad(x[:, :-1], (0, 0, 1, 0)) - x, None)
    )
    torch.manual_seed(3)
    w: Weights = {}
    ranks: dict[str, Any] = {"decay_low_rank_dim": 3, "a_low_rank_dim": 4, "gate_low_rank_dim": 5}
    with pytest.warns(UserWarning, match="potentially buggy"):
        theirs = rwkv7.RWKV7Attention(hidden_size=WIDTH, head_dim=8, layer_idx=0, num_hidden_layers=2, **ranks)
    drawn(theirs, w)
    ours = RWKV7(WIDTH, heads=2, decay_rank=3, rate_rank=4, gate_rank=5)
    shifts = {"receptance": "r", "decay": "w", "key": "k", "value": "v", "rate": "a", "gate": "g"}
    narrow = {"decay": "w_lora", "rate": "a_lora", "gate": "g_lora"}
    ours.load_state_dict(
        {f"shift.{name}.weight": 1 - w[f"x_{letter}"].flatten() for name, letter in shifts.items()}
        | {f"{name}_down.weight": w[f"{theirs}.lora.0.weight"] for name, theirs in narrow.items()}
        | {f"{name}_up.weight": w[f"{theirs}.lora.2.weight"] for name, theirs in narrow.items()}
        | {f"{name}_bias": w[f"{narrow[name]}.lora.2.bias"] for name in ("decay", "rate")}
        | {f"{name}.weight": w[f"{name[0]}_proj.weight"] for name in ("receptance", "key", "value", "out")}
        | {"removed": w["k_k"], "replaced": w["k_a"], "bonus": w["r_k"]}
        | {"norm.weight": w["g_norm.weight"], "norm.bias": w["g_norm.bias"]}
    )
    x = torch.randn(2, LENGTH, WIDTH)
    torch.testing.assert_close(ours(x), theirs(x)[0], rtol=1e-4, atol=1e-4)
