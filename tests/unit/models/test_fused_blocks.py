"""The layers around the mixers: where no kernel runs, fused and plain forms agree to rounding."""

from typing import Any

import pytest
import torch
from torch.nn import functional as F

from argap.models import modeling
from argap.models.block import GELUMLP, SwiGLU
from argap.models.modeling import ArgapForCausalLM, ArgapModel
from argap.models.presets import build_config
from tests.unit.models.test_modeling import VARIED

LENGTH = 40
IDS = torch.arange(2 * LENGTH).reshape(2, LENGTH) % 32
CLOSE: dict[str, Any] = {"rtol": 1e-5, "atol": 1e-6}
"""The forms are different code, in float32."""


def built(architecture: str) -> ArgapForCausalLM:
    """A model in float32, with norm weights that are not 1."""
    torch.manual_seed(0)
    config = build_config(architecture, hidden_size=32, num_hidden_layers=3, vocab_size=32, seq_len=LENGTH)
    model = ArgapForCausalLM(config).eval()
    for module in model.modules():
        if isinstance(module, (torch.nn.RMSNorm, torch.nn.LayerNorm)) and module.elementwise_affine:
            torch.nn.init.uniform_(module.weight, 0.5, 2.0)
    return model


def plain_logits(model: ArgapForCausalLM) -> torch.Tensor:
    trunk = model.model
    x = trunk._embed(IDS, torch.arange(LENGTH))
    for block in trunk.blocks:
        normed = block.mixer_norm(x)
        x = x + (block.mixer(normed, IDS) if block.mixer.needs_ids else block.mixer(normed))
        if block.has_mlp:
            x = x + plain_mlp(block.mlp, block.mlp_norm(x))
    return model.lm_head(trunk.norm(x))


def plain_mlp(mlp: SwiGLU | GELUMLP, x: torch.Tensor) -> torch.Tensor:
    if isinstance(mlp, GELUMLP):
        return mlp.down(F.gelu(mlp.up(x)))
    return mlp.down(F.silu(mlp.gate(x)) * mlp.up(x))


@pytest.mark.parametrize("architecture", VARIED)
def test_logits_are_those_of_a_plain_composition(architecture: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = built(architecture)
    for gradients in (True, False):
        with torch.set_grad_enabled(gradients):
            torch.testing.assert_close(model(IDS).logits, plain_logits(model), **CLOSE)
    monkeypatch.setattr(ArgapModel, "_fuses", lambda self, x: True)
    with torch.no_grad():  # each sum left to the next norm, whose reference runs here
        torch.testing.assert_close(model(IDS).logits, plain_logits(model), **CLOSE)


def test_gradients_are_those_of_a_plain_composition() -> None:
    model = built("attention")
    gradients = []
    for logits in (model(IDS).logits, plain_logits(model)):
        model.zero_grad()
        logits.square().mean().backward()
        gradients.append([parameter.grad for parameter in model.parameters() if parameter.grad is not None])
    assert len(gradients[0]) == len(gradients[1]) == sum(1 for _ in model.parameters())
    torch.testing.assert_close(*gradients, **CLOSE)


def test_layers_are_fused_only_where_kernels_run(monkeypatch: pytest.MonkeyPatch) -> None:
    trunk, x = built("attention").model, torch.zeros(1, 2, 32)
    with torch.no_grad():
        assert not trunk._fuses(x)
        monkeypatch.setattr(modeling, "runs_kernels", lambda *tensors: True)
        assert trunk._fuses(x)
        assert not trunk.train()._fuses(x)
        trunk.eval()
    assert not trunk._fuses(x)


@pytest.mark.parametrize("name", ["layers.1", "layers.0.mixer_norm", "layers.2.mlp_norm", "norm"])
def test_a_hook_sees_its_module_called(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = built("attention")
    monkeypatch.setattr(modeling, "runs_kernels", lambda *tensors: True)
    inputs = []
    module = model.model.get_submodule(name)
    handle = module.register_forward_pre_hook(lambda module, given: inputs.append(given[0]))
    with torch.no_grad():
        model(IDS)
        assert len(inputs) == 1
        handle.remove()
        assert model.model._fuses(torch.zeros(1, 2, 32))
