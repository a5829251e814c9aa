"""Mamba and RWKV: whole native models against those of transformers, through a checkpoint on disk."""

import json

import pytest
import torch
from safetensors.torch import load_file
from transformers import (
    AutoModelForCausalLM,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    RwkvConfig,
    RwkvForCausalLM,
)

from argap.checkpoints.find import find_checkpoint, read_config
from argap.checkpoints.lengths import max_positions
from argap.checkpoints.load import load_model
from argap.models import ArgapForCausalLM
from tests.unit.models.hub.readings import mamba, rwkv4

CONFIGS = {
    "mamba": MambaConfig(vocab_size=61, hidden_size=32, num_hidden_layers=3, state_size=4),
    "mamba, other sizes": MambaConfig(
        vocab_size=61,
        hidden_size=24,
        num_hidden_layers=2,
        state_size=3,
        expand=3,
        conv_kernel=2,
        time_step_rank=5,
        layer_norm_epsilon=1e-2,
        tie_word_embeddings=False,
    ),
    "rwkv": RwkvConfig(vocab_size=61, hidden_size=32, num_hidden_layers=3),
    "rwkv, other sizes": RwkvConfig(
        vocab_size=61, hidden_size=24, num_hidden_layers=2, intermediate_size=48, tie_word_embeddings=True
    ),
}


@pytest.mark.parametrize("model_class", ["Mamba", "Mamba2"])
def test_loading_leaves_the_weights_as_they_are_stored(tmp_path, model_class: str) -> None:
    """With ``rescale_prenorm_residual`` transformers divides out_proj by √layers again, each time it is loaded."""
    import transformers

    sizes = {"num_heads": 4, "head_dim": 32, "n_groups": 1} if model_class == "Mamba2" else {}
    sizes |= {"vocab_size": 61, "hidden_size": 64, "num_hidden_layers": 2, "state_size": 16}
    config = getattr(transformers, f"{model_class}Config")(**sizes, rescale_prenorm_residual=True)
    getattr(transformers, f"{model_class}ForCausalLM")(config).save_pretrained(tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    state = load_model(find_checkpoint(tmp_path), dtype=torch.float32, device="cpu", backend="hf").state_dict()
    for name, value in stored.items():
        torch.testing.assert_close(state[name], value, rtol=0, atol=0)


@pytest.mark.parametrize(
    "changed", [{"return_dict": False}, {"return_dict": {}}, {"output_hidden_states": True, "output_attentions": True}]
)
def test_a_model_returns_its_logits_by_name_and_nothing_else(tmp_path, ids, changed: dict) -> None:
    config = GPTNeoXConfig(
        vocab_size=61, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4
    )
    GPTNeoXForCausalLM(config).save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changed))
    model = load_model(find_checkpoint(tmp_path), dtype=torch.float32, device="cpu", backend="hf")
    assert [*model(input_ids=ids, use_cache=False)] == ["logits"]


@pytest.fixture(params=CONFIGS.values(), ids=list(CONFIGS), scope="module")
def checkpoint(request, tmp_path_factory, shaken):
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("checkpoint")
    shaken(AutoModelForCausalLM.from_config(request.param)).save_pretrained(folder)
    return folder


@torch.no_grad()
def test_logits_and_steps_are_those_of_transformers(checkpoint, native, stepped, ids) -> None:
    original = load_model(find_checkpoint(checkpoint), dtype=torch.float32, device="cpu", backend="hf")
    assert isinstance(original, (MambaForCausalLM, RwkvForCausalLM))
    expected = original(input_ids=ids, use_cache=False).logits
    assert expected.std() > 0.3  # not all alike
    model = native(checkpoint)
    torch.testing.assert_close(model(ids).logits, expected, rtol=0, atol=1e-4)
    torch.testing.assert_close(stepped(model, ids), expected, rtol=0, atol=1e-4)


@torch.no_grad()
def test_logits_and_steps_are_those_of_a_reading_in_float64(checkpoint, native, stepped, ids) -> None:
    found = find_checkpoint(checkpoint)
    weights = {name: weight.double() for name, weight in load_file(checkpoint / "model.safetensors").items()}
    config = read_config(found)
    if config["model_type"] == "mamba":
        expected = mamba(weights, ids, embedding="backbone.embeddings.weight", eps=config["layer_norm_epsilon"])
    else:
        expected = rwkv4(weights, ids)
    model = native(checkpoint)
    torch.testing.assert_close(model(ids).logits.double(), expected, rtol=0, atol=1e-4)
    torch.testing.assert_close(stepped(model, ids).double(), expected, rtol=0, atol=1e-4)


def test_the_native_model_is_the_default_and_takes_any_length(checkpoint) -> None:
    model = load_model(find_checkpoint(checkpoint), dtype=torch.float32, device="cpu")
    assert isinstance(model, ArgapForCausalLM)
    assert not model.training
    assert max_positions(model.config.to_dict()) is None  # as transformers', but for RWKV's limit of its CUDA kernel


@torch.no_grad()
def test_a_loaded_model_is_saved_as_a_native_one(checkpoint, native, ids, tmp_path) -> None:
    model = native(checkpoint)
    model.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert isinstance(again, ArgapForCausalLM)
    assert torch.equal(again(ids).logits, model(ids).logits)


@torch.no_grad()
def test_in_bfloat16_rwkvs_decays_stay_in_float32(ids, shaken, tmp_path) -> None:
    """As in transformers: a rounded log w would be another rate of forgetting."""
    torch.manual_seed(0)
    shaken(RwkvForCausalLM(CONFIGS["rwkv"])).save_pretrained(tmp_path)
    checkpoint = find_checkpoint(tmp_path)
    ours, theirs = (
        load_model(checkpoint, dtype=torch.bfloat16, device="cpu", backend=backend) for backend in ("native", "hf")
    )
    wide = {name for name, parameter in ours.named_parameters() if parameter.dtype == torch.float32}
    assert wide == {f"model.layers.{layer}.mixer.{name}" for layer in (0, 2, 4) for name in ("log_decay", "bonus")}
    exact = load_model(checkpoint, dtype=torch.float32, device="cpu", backend="hf")(input_ids=ids, use_cache=False)
    far = (theirs(input_ids=ids, use_cache=False).logits.float() - exact.logits).abs().mean()
    assert (ours(ids).logits.float() - exact.logits).abs().mean() < 1.5 * far


@torch.no_grad()
def test_rescaling_for_float16_changes_no_more_than_the_norms_epsilon(native, ids, shaken, tmp_path) -> None:
    """transformers halves the residual stream after each block here: by 8 after three, so that an epsilon of
    1e-5 weighs as 64 times that."""
    torch.manual_seed(0)
    config = RwkvConfig(vocab_size=61, hidden_size=32, num_hidden_layers=3, rescale_every=1)
    shaken(RwkvForCausalLM(config)).save_pretrained(tmp_path)
    expected = RwkvForCausalLM.from_pretrained(tmp_path).eval()(input_ids=ids, use_cache=False).logits
    torch.testing.assert_close(native(tmp_path)(ids).logits, expected, rtol=0, atol=2e-3)
