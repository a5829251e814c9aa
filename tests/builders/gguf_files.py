"""A small GGUF file of a Llama, written with the ``gguf`` package as llama.cpp's converter lays it out."""

import json
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM


def small_llama(seed: int = 0) -> LlamaForCausalLM:
    """Four heads, two key-value heads, untied; matrices of 32 columns, the block of GGUF's 8-bit type."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=8192,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        rms_norm_eps=1e-5,
        bos_token_id=0,
        eos_token_id=0,
        initializer_range=0.3,
    )
    return LlamaForCausalLM(config).eval()


def write_gguf(path: Path, model: LlamaForCausalLM, tokenizer_folder: Path, *, add_bos: bool, eight_bits: bool) -> None:
    """Write ``model``; ``eight_bits``: its matrices as Q8_0, else float32."""
    import gguf  # pyright: ignore[reportMissingImports]

    config: Any = model.config
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(config.hidden_size // config.num_attention_heads)
    writer.add_rope_freq_base(10_000.0)
    writer.add_vocab_size(config.vocab_size)
    _add_tokenizer(writer, tokenizer_folder, add_bos)
    for name, value in _tensors(model).items():
        array = value.detach().float().numpy()
        if eight_bits and array.ndim == 2:
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(name, gguf.quants.quantize(array, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_tokenizer(writer: Any, folder: Path, add_bos: bool) -> None:
    state = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = state["model"]["vocab"] | {added["content"]: added["id"] for added in state["added_tokens"]}
    special = {added["id"] for added in state["added_tokens"]}
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if vocabulary[token] in special else 1 for token in tokens])  # control, normal
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in state["model"]["merges"]]
    writer.add_token_merges(merges)
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    writer.add_add_bos_token(add_bos)


def _tensors(model: LlamaForCausalLM) -> dict[str, torch.Tensor]:
    config: Any = model.config
    state = model.state_dict()
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    named = {
        "token_embd.weight": state["model.embed_tokens.weight"],
        "output_norm.weight": state["model.norm.weight"],
        "output.weight": state["lm_head.weight"],
    }
    parts = {
        "attn_norm": "input_layernorm",
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "ffn_norm": "post_attention_layernorm",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
    }
    for layer in range(config.num_hidden_layers):
        for theirs, ours in parts.items():
            value = state[f"model.layers.{layer}.{ours}.weight"]
            if (count := heads.get(ours.rpartition(".")[2])) is not None:  # llama.cpp rotates neighbours, not halves
                value = value.view(count, 2, -1, value.shape[1]).transpose(1, 2).reshape(value.shape)
            named[f"blk.{layer}.{theirs}.weight"] = value
    return named
