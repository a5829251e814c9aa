"""What cannot be read is refused by one line that names it, and what can be is read from any file layout."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, MambaConfig, MambaForCausalLM, RwkvConfig

from argap.checkpoints.find import find_checkpoint
from argap.checkpoints.load import load_model, runs_native
from argap.errors import ArgapError
from argap.models.hub.load import native_config
from argap.models.hub.registry import FAMILIES, find_family
from argap.models.registry import build_mixer

WEIGHTS = "model.safetensors"


@pytest.fixture
def mamba(tmp_path) -> Path:
    torch.manual_seed(0)
    config = MambaConfig(vocab_size=61, hidden_size=16, num_hidden_layers=1, state_size=2)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    return tmp_path


def rewrite(folder: Path, name: str, weight: torch.Tensor | None) -> None:
    """Set a weight of the file, or remove it."""
    stored = load_file(folder / WEIGHTS) | ({} if weight is None else {name: weight})
    kept = {each: value for each, value in stored.items() if weight is not None or each != name}
    save_file(kept, folder / WEIGHTS, metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("name", "weight", "said"),
    [
        ("backbone.layers.0.mixer.A_log", None, r"1 weights are missing .* first is {}"),
        ("backbone.layers.0.mixer.in_proj.bias", torch.zeros(64), r"1 weights are not part of .* {}"),
        ("backbone.norm_f.weight", torch.zeros(17), r"{} gives model\.norm\.weight the shape \(17,\).*16"),
    ],
)
def test_a_missing_another_and_a_misshapen_weight_are_named(mamba, native, name, weight, said) -> None:
    rewrite(mamba, name, weight)
    with pytest.raises(ArgapError, match=said.format(re.escape(name))):
        native(mamba)


def test_the_heads_copy_of_a_tied_embedding_is_passed_over(mamba, native) -> None:
    ids = torch.tensor([[1, 2, 3]])
    before = native(mamba)(ids).logits
    rewrite(mamba, "lm_head.weight", load_file(mamba / WEIGHTS)["backbone.embeddings.weight"].clone())
    assert torch.equal(native(mamba)(ids).logits, before)


def test_shards_and_older_names_load_too(mamba, native) -> None:
    ids = torch.tensor([[1, 2, 3]])
    before = native(mamba)(ids).logits
    stored = load_file(mamba / WEIGHTS)
    stored["backbone.embedding.weight"] = stored.pop("backbone.embeddings.weight")
    names = sorted(stored)
    place = {name: f"model-0000{1 + (number % 2)}-of-00002.safetensors" for number, name in enumerate(names)}
    for file in set(place.values()):
        save_file({name: stored[name] for name in names if place[name] == file}, mamba / file)
    (mamba / WEIGHTS).unlink()
    (mamba / "model.safetensors.index.json").write_text(json.dumps({"weight_map": place}))
    assert torch.equal(native(mamba)(ids).logits, before)


def test_weights_of_another_name_are_not_guessed(mamba, native) -> None:
    (mamba / WEIGHTS).rename(mamba / "other.safetensors")
    with pytest.raises(ArgapError, match=r"expected model\.safetensors, or model\.safetensors\.index\.json"):
        native(mamba)


def test_weights_take_the_type_that_is_asked_for(mamba) -> None:
    model = load_model(find_checkpoint(mamba), dtype=torch.bfloat16, device="cpu")
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}


def test_an_unknown_type_lists_the_known_ones(mamba) -> None:
    (mamba / "config.json").write_text(json.dumps({"model_type": "hgrn"}))
    checkpoint = find_checkpoint(mamba)
    known = "based, delta_net, flash_gpt, gated_deltanet, gla, linear_attn, mamba, mamba_ssm, retnet, rwkv, transformer"
    with pytest.raises(ArgapError, match=f"no native form of model type 'hgrn'; known are {known}"):
        load_model(checkpoint, dtype=torch.float32, device="cpu", backend="native")
    assert not runs_native(checkpoint)  # by default it is left to transformers


def test_the_backend_decides_which_code_runs(mamba) -> None:
    checkpoint = find_checkpoint(mamba)
    assert runs_native(checkpoint)
    assert runs_native(checkpoint, "native")
    assert not runs_native(checkpoint, "hf")
    (mamba / "config.json").write_text(json.dumps({"model_type": "argap"}))
    assert runs_native(find_checkpoint(mamba), "hf")  # a native checkpoint has no other code
    with pytest.raises(ArgapError, match="`backend` jax: expected auto, native, hf"):
        runs_native(checkpoint, "jax")  # pyright: ignore[reportArgumentType]


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("mamba", {"use_bias": True}, "option use_bias True of mamba has no native form, expected False"),
    ("mamba", {"use_conv_bias": False}, "option use_conv_bias False"),
    ("mamba", {"hidden_act": "gelu"}, "option hidden_act 'gelu'"),
    ("mamba", {"hidden_size": 0}, "hidden_size 0 in config.json of mamba; expected a positive number"),
    ("mamba", {"num_hidden_layers": 10**9}, "num_hidden_layers 1000000000 .* at most 10,000"),
    ("mamba", {"pad_token_id": "x"}, "pad_token_id: .*, found 'x'"),
    ("delta_net", {"attn": "all"}, "config.json is not one of delta_net"),
    ("delta_net", {"norm_eps": {}}, "config.json is not one of delta_net"),
    ("rwkv", {"attention_hidden_size": 8}, "option attention_hidden_size 8"),
    ("rwkv", {"intermediate_size": 24}, "option intermediate_size 24 .* a multiple of hidden_size 16"),
    ("rwkv", {"layer_norm_epsilon": 1e-3}, "option layer_norm_epsilon 0.001"),
    ("gla", {"num_kv_heads": 1}, "option num_kv_heads 1"),
    ("gla", {"expand_v": 2.0}, "option expand_v 2.0 of gla has no native form, expected 1.0"),
    ("gla", {"clamp_min": -1.0}, "option clamp_min -1.0"),
    ("gla", {"use_gv": True}, "option use_gv True"),
    ("gla", {"use_output_gate": False}, "option use_output_gate False"),
    ("gla", {"attnres_block_size": 2}, "option attnres_block_size 2"),
    ("gla", {"hidden_act": "powlu"}, "option hidden_act 'powlu'"),
    ("retnet", {"expand_k": 0.5}, "option expand_k 0.5"),
    ("retnet", {"expand_v": 1.5}, "option expand_v 1.5 .* a whole number"),
    ("retnet", {"feature_map": "relu"}, "option feature_map 'relu'"),
    ("delta_net", {"use_gate": True}, "option use_gate True"),
    ("delta_net", {"allow_neg_eigval": 2}, "option allow_neg_eigval 2"),
    ("delta_net", {"use_rope": True}, "option use_rope True of delta_net has no native form, expected a known option"),
    ("gla", {"quantization_config": {"bits": 4}}, "option quantization_config .* expected a known option"),
    ("transformer", {"rope_scaling": {"factor": 2.0}}, "option rope_scaling .* expected a known option"),
    ("delta_net", {"attn": {"layers": [0], "num_heads": 4, "sinks": 1}}, r"option attn\.sinks 1 of .* a known option"),
    ("gated_deltanet", {"num_v_heads": 8}, "option num_v_heads 8 .* expected None or 4"),
    ("gated_deltanet", {"use_gate": False}, "option use_gate False"),
    ("gated_deltanet", {"output_gate_activation": "sigmoid"}, "option output_gate_activation 'sigmoid'"),
    ("gated_deltanet", {"head_dim": 6, "expand_v": 1.25}, "option expand_v 1.25 .* a whole number times 1/6"),
    ("delta_net", {"use_beta": False}, "option use_beta False"),
    ("delta_net", {"qk_norm": "max"}, "option qk_norm 'max' .* 'l2' or 'sum'"),
    ("delta_net", {"attn": {"layers": [0], "num_heads": 4, "qk_norm": True}}, "no qk_norm"),
    ("delta_net", {"attn": {"layers": [0]}}, "option attn .* expected layers and num_heads"),
    ("linear_attn", {"feature_map": "hedgehog"}, "option feature_map 'hedgehog' .* elu or relu or identity"),
    ("linear_attn", {"feature_map": "elu", "norm_q": True}, "option norm_q True"),
    ("linear_attn", {"feature_map": "elu", "norm_feature_map": True}, "option norm_feature_map True"),
]


@pytest.mark.parametrize(("kind", "options", "said"), REFUSED)
def test_an_option_without_native_form_is_named_with_its_value(kind: str, options: dict[str, Any], said: str) -> None:
    config = {"model_type": kind, "hidden_size": 16, "num_heads": 4, "num_hidden_layers": 1, **options}
    family = find_family(config)
    assert family is not None
    with pytest.raises(ArgapError, match=said):
        native_config("there", family, config)


@pytest.mark.parametrize("kind", ["mamba", "rwkv", "gla", "retnet", "delta_net", "gated_deltanet"])
def test_every_option_has_the_default_of_its_family(kind: str, request) -> None:
    config = {"model_type": kind}
    family = find_family(config)
    assert family is not None
    native = native_config("there", family, config)
    defaults = {"mamba": MambaConfig(), "rwkv": RwkvConfig()}.get(kind) or fla_defaults(
        kind, request.getfixturevalue("fla_models")
    )
    assert native.vocab_size == defaults.vocab_size
    assert native.hidden_size == defaults.hidden_size
    assert native.tie_word_embeddings == defaults.tie_word_embeddings
    for spec in native.mixers[:2]:
        with torch.device("meta"):
            build_mixer(spec, native.hidden_size, None)


def fla_defaults(kind: str, models: Any) -> Any:
    name = {"gla": "GLA", "retnet": "RetNet", "delta_net": "DeltaNet", "gated_deltanet": "GatedDeltaNet"}[kind]
    config = getattr(models, f"{name}Config")()
    family = find_family({"model_type": kind})
    assert family is not None
    written = native_config("there", family, config.to_dict())
    assert written.to_dict() == native_config("there", family, {"model_type": kind, **special(config)}).to_dict()
    return config


def special(config: Any) -> dict[str, Any]:
    return {name: getattr(config, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}


def test_every_family_is_there() -> None:
    for kind in FAMILIES:
        config = {"alt_mixer": {}, "alt_mixer_2": {}} if kind == "based" else {"model_type": kind}
        family = find_family(config)
        assert family is not None
        assert family.name == kind
    assert find_family({"model_type": "llama"}) is None
    assert find_family({}) is None


def test_another_package_takes_no_model_type_from_transformers(mamba, fla_models) -> None:
    """flash-linear-attention registers model types of transformers as its own."""
    assert type(AutoConfig.from_pretrained(mamba)) is MambaConfig
    model = load_model(find_checkpoint(mamba), dtype=torch.float32, device="cpu", backend="hf")
    assert type(model) is MambaForCausalLM


def test_a_package_that_is_not_installed_is_named(mamba, monkeypatch) -> None:
    (mamba / "config.json").write_text(json.dumps({"model_type": "gla"}))
    monkeypatch.setitem(sys.modules, "fla.models", None)  # as if it were not
    with pytest.raises(ArgapError, match=r"`backend=hf` needs flash-linear-attention .* pip install 'argap\[fla\]'"):
        load_model(find_checkpoint(mamba), dtype=torch.float32, device="cpu", backend="hf")
