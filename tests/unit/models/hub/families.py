"""Tiny random models of the causal families that transformers knows, by model type."""

from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMultimodalLM, PretrainedConfig

from argap.evaluation.windows import EvaluationSet
from argap.models.hub.registry import give_back

VOCABULARY = 64
WIDTH = 32
MOST_PARAMETERS = 20_000_000
SIZES: dict[str, Any] = {
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "embed_dim", "dim_model"), WIDTH),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers", "encoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "mamba_n_heads"), 4),
    **dict.fromkeys(("decoder_attention_heads", "encoder_attention_heads", "num_key_value_heads", "num_kv_heads"), 4),
    **dict.fromkeys(("head_dim", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"), 8),
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank", "qk_head_dim", "mamba_d_head", "index_head_dim"), 16),
    **dict.fromkeys(("intermediate_size", "n_inner", "ffn_dim", "decoder_ffn_dim", "encoder_ffn_dim"), 48),
    **dict.fromkeys(("dim_ff", "dim_feedforward", "ffn_hidden_size"), 48),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "shared_intermediate_size"), 24),
    **dict.fromkeys(("num_experts", "n_routed_experts", "num_local_experts", "time_step_rank"), 4),
    **dict.fromkeys(("n_group", "topk_group", "n_shared_experts"), 1),
    **dict.fromkeys(("state_size", "mamba_d_state", "linear_key_head_dim", "linear_value_head_dim"), 8),
    "linear_head_dim": 8,
    "linear_num_heads": 4,
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len"), 128),
    "num_experts_per_tok": 2,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "mamba_expand": 2,
    "vocab_size": VOCABULARY,
    "vocab_size_per_layer_input": VOCABULARY,
    "hidden_size_per_layer_input": 8,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    # Few heads of an indexer have ties at exactly 0, and padding seems to matter.
    "index_n_heads": 64,
    "index_topk": 1024,
}
"""Sizes by the names that configurations give them; each takes those that it has."""
MROPE = {"text_config": {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]}}}
"""Positions in three dimensions, for heads of 8."""
MORE: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("glm46v", "glm4v", "glm_ocr", "glmga", "paddleocr_vl"), MROPE),
    **dict.fromkeys(("qwen2_vl", "qwen2_5_vl", "qwen2_5_omni_thinker"), MROPE),
    "codegen": {"rotary_dim": 4},
    "cohere": {"logit_scale": 1.0},
    "falcon": {"head_dim": None},
    "falcon_h1": {"mamba_d_ssm": 64},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "gptj": {"rotary_dim": 4},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "mamba": {"intermediate_size": 64},
    "mamba2": {"num_heads": 8},
    "prophetnet": {"num_hidden_layers": None},
    "rwkv": {"intermediate_size": 64},
    "xlnet": {"max_position_embeddings": None},
    "xlstm": {"v_head_dim": None, "qk_head_dim": None},
    "zamba": {"num_hidden_layers": 6, "layer_types": ["mamba", "mamba", "hybrid", "mamba", "mamba", "hybrid"]},
    "zamba2": {"num_hidden_layers": 6, "layer_types": ["mamba", "mamba", "hybrid", "mamba", "mamba", "hybrid"]},
    "zaya": {"num_experts_per_tok": 1},
}
"""What a family needs besides; None leaves a size at its default."""


def tiny_config(family: str, **options: Any) -> PretrainedConfig:
    """Configure a small model of a family; ``options`` override its sizes."""
    give_back()
    plain = AutoConfig.for_model(family)
    sizes = _sizes(plain)
    parts: Any = type(plain).sub_configs  # of text, images, sound
    for part in parts:
        if isinstance(inner := getattr(plain, part, None), PretrainedConfig):
            sizes[part] = {"model_type": inner.model_type, **_sizes(inner)}
    given = dict(sizes)
    for name, value in MORE.get(family, {}).items():
        given[name] = given[name] | value if isinstance(value, dict) and name in given else value
    given |= options
    return type(plain)(**{name: value for name, value in given.items() if value is not None})


def _sizes(plain: PretrainedConfig) -> dict[str, Any]:
    """Return the sizes that a configuration has; those that vary by layer keep their defaults."""
    found = {}
    for name, value in SIZES.items():
        try:
            found |= {name: value} if hasattr(plain, name) else {}
        except Exception:  # of the configuration's own code
            continue
    return found


def tiny(family: str, *, multimodal: bool = False, **options: Any) -> Any:
    """Make a model of random float32 weights. Raises `MemoryError` where `SIZES` leaves it large."""
    config = tiny_config(family, **options)
    auto = AutoModelForMultimodalLM if multimodal else AutoModelForCausalLM
    with torch.device("meta"):
        parameters = auto.from_config(config).num_parameters()
    if parameters > MOST_PARAMETERS:
        raise MemoryError(f"{family}: {parameters:,} parameters")
    torch.manual_seed(0)
    model = auto.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():  # so that logits differ from token to token
        for parameter in model.parameters():
            parameter.mul_(3.0 if parameter.dim() > 1 else 1.0)
    return model


def windows(*lengths: int) -> EvaluationSet:
    """Make windows of random tokens."""
    offsets = np.cumsum([0, *lengths])
    return EvaluationSet(
        tokens=np.random.default_rng(0).integers(3, VOCABULARY, offsets[-1]).astype(np.int32),
        offsets=offsets,
        document_ends=offsets[1:],
        domains=[""] * len(lengths),
        sources=["t"] * len(lengths),
        seq_len=max(lengths),
        packing="document",
        eos=None,
        tokenizer="t",
        tokenizer_fingerprint="t",
    )


def by_hand(model: Any, data: EvaluationSet, *before: int) -> np.ndarray:
    """Return the log-prob of every token, each window by itself, after the tokens ``before``; NaN at position 0."""
    found: list[float] = []
    for first, last in zip(data.offsets[:-1], data.offsets[1:], strict=True):
        ids = torch.tensor([[*before, *data.tokens[first:last].tolist()]])
        with torch.inference_mode():
            rows = model(input_ids=ids, use_cache=False).logits[0, :-1].float().log_softmax(-1)
        own = rows.gather(1, ids[0, 1:, None])[len(before) :, 0]
        found += [np.nan, *own.tolist()]
    return np.array(found)
