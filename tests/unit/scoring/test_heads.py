"""The probe identifies the linear map, scale and soft cap of a model's logits."""

from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, CohereConfig, Gemma2Config, GraniteConfig, LlamaConfig
from transformers.activations import NewGELUActivation, ReLUSquaredActivation

from argap.scoring.fused import fuse_activations
from argap.scoring.heads import find_head, logprobs_of_model

SIZES: dict[str, Any] = {
    "vocab_size": 50,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
}
IDLE: dict[str, Any] = {"logits_scaling": 8.0, "final_logit_softcapping": 3.0}
IDS = torch.arange(12)[None]


def model_of(config):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(40)  # so that a cap bends and a scale shows
    return model


@pytest.mark.parametrize(
    ("config", "scale", "softcap"),
    [
        (LlamaConfig(**SIZES), 1.0, None),
        (CohereConfig(**SIZES, logit_scale=0.125), 0.125, None),
        (GraniteConfig(**SIZES, logits_scaling=8.0), 0.125, None),
        (Gemma2Config(**SIZES, head_dim=8, final_logit_softcapping=3.0), 1.0, 3.0),
        # Named, but Llama does neither: the probe sees through it.
        (LlamaConfig(**SIZES, **IDLE), 1.0, None),
    ],
)
@torch.no_grad()
def test_scale_and_cap_reproduce_the_model_s_log_probs(config, scale, softcap):
    model = model_of(config)
    head = find_head(model, IDS)
    assert head is not None
    assert (head.scale, head.softcap) == (scale, softcap)
    hidden = model.base_model(input_ids=IDS).last_hidden_state[0, :-1]
    found, expected = head.logprobs(hidden, IDS[0, 1:]), logprobs_of_model(model, IDS[0])
    torch.testing.assert_close(found.logprob, expected.logprob, atol=1e-4, rtol=0)
    assert torch.equal(found.top1, expected.top1)  # pyright: ignore[reportArgumentType]


@torch.no_grad()
def test_nonlinear_logits_are_left_to_the_model(monkeypatch):
    model = model_of(LlamaConfig(**SIZES))
    forward = type(model).forward

    def bent(self, *arguments, **options):
        output = forward(self, *arguments, **options)
        output.logits = output.logits**2
        return output

    monkeypatch.setattr(type(model), "forward", bent)
    assert find_head(model, IDS) is None


@pytest.mark.parametrize("activation", [NewGELUActivation, ReLUSquaredActivation])
def test_the_fused_activation_equals_the_original(activation):
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), activation())
    x = torch.linspace(-8, 8, 400).view(100, 4)
    expected = model(x)
    fuse_activations(model)
    assert not isinstance(model[1], activation)
    torch.testing.assert_close(model(x), expected, atol=1e-6, rtol=1e-5)
