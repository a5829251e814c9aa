"""argap's operators in the mixers of transformers: the same log-probs, on the loaded model alone."""

import copy
import sys
from collections.abc import Callable
from dataclasses import replace
from types import MethodType
from typing import Any

import numpy as np
import pytest
import torch
from transformers import CONFIG_MAPPING
from transformers.models.mamba import modeling_mamba
from transformers.models.mamba2 import modeling_mamba2

from argap.checkpoints.rebinding import use_torch_on_cpu
from argap.scoring.batches import Batches
from argap.scoring.fused import fuse
from argap.scoring.operators import families
from argap.scoring.operators.families import run_references, slow_functions, use_operators
from argap.scoring.operators.layers import fused_layers
from argap.scoring.operators.mamba import causal_conv1d, mamba2_scan, mamba_block, mamba_scan
from argap.scoring.operators.recurrences import mlstm
from tests.unit.models.hub.families import VOCABULARY, by_hand, tiny, windows

HYBRID = ["linear_attention", "hybrid", "linear_attention", "hybrid"]
OPTIONS: dict[str, dict[str, Any]] = {
    "mamba2": {"n_groups": 2, "head_dim": 8},
    "bamba": {"num_hidden_layers": 1},
    "granitemoehybrid": {},
    "zamba2": {"num_hidden_layers": 4, "layers_block_type": HYBRID, "layer_types": None},
    "falcon_h1": {"mlp_multipliers": [0.7, 1.3], "ssm_out_multiplier": 0.8, "attention_out_multiplier": 1.2},
    "nemotron_h": {"mamba_num_heads": 8, "mamba_head_dim": 8, "n_groups": 4, "ssm_state_size": 8},
    "mamba": {},
    "falcon_mamba": {},
    "jamba": {},
    "zamba": {"num_hidden_layers": 4, "layer_types": HYBRID},
    "minimax": {},
    "recurrent_gemma": {"num_hidden_layers": 3},
    "rwkv": {},
    "xlstm": {},
    "kimi_linear": {},
    "bailing_hybrid": {},
    "qwen3_next": {},
    "qwen3_5_text": {},
    "olmo_hybrid": {},
    "lfm2": {"layer_types": ["conv", "full_attention"]},
}
"""A small model of each family whose mixers run argap's operators."""
if "bailing_hybrid" not in CONFIG_MAPPING:  # before transformers 5.23
    del OPTIONS["bailing_hybrid"]
ON_GPUS = ("qwen3_next", "qwen3_5_text", "olmo_hybrid", "lfm2")
"""Families whose own functions are as fast on a CPU."""
MIXTURES = ("olmoe", "qwen3_moe", "mixtral")
"""Families of attention and experts."""
WINDOWS = windows(70, 33, 129, 2)
IDS = torch.arange(3, 3 + 70)[None] % VOCABULARY


def patched(model: Any) -> list[str]:
    """Return the modules with methods of their own."""
    own = {name: vars(module).values() for name, module in model.named_modules()}
    return [name for name, values in own.items() if any(isinstance(value, MethodType) for value in values)]


@pytest.mark.parametrize("family", OPTIONS)
def test_log_probs_are_the_family_s(
    family: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Uneven windows, alone and three in a batch; another model of the family runs as before."""
    if family in ON_GPUS:
        everywhere = {name: replace(operator, on_cpu=True) for name, operator in families.FUNCTIONS.items()}
        monkeypatch.setattr(families, "FUNCTIONS", everywhere)
    model = tiny(family, **OPTIONS[family])
    other, plain, module = copy.deepcopy(model), copy.deepcopy(model), sys.modules[type(model).__module__]
    use_torch_on_cpu(plain)  # flash-linear-attention may be installed
    before, expected = dict(vars(module)), by_hand(plain, WINDOWS)
    batches = Batches(model, WINDOWS, "cpu", 3, family)
    assert batches.sharing == "any"
    assert patched(model)
    assert not patched(other)
    assert vars(module) == before
    assert capsys.readouterr().err == ""
    for batches.batch in (1, 3):
        found = batches.score(range(WINDOWS.windows)).arrays()[0]
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)


def test_a_wrong_operator_is_undone_alone(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    model = tiny("mamba2")
    operator = families.FUNCTIONS["mamba2_chunk_scan"]
    wrong = replace(operator, function=lambda plain, *given, **options: plain(*given, **options).flip(-1))
    right = replace(families.FUNCTIONS["causal_conv1d_fn"], on_cpu=True)
    monkeypatch.setattr(families, "FUNCTIONS", {"mamba2_chunk_scan": wrong, "causal_conv1d_fn": right})
    with torch.inference_mode():
        plain = model(IDS, use_cache=False).logits
        use_operators(model, IDS, "some/model")
        found = model(IDS, use_cache=False).logits
    torch.testing.assert_close(found, plain, rtol=1e-4, atol=1e-3)
    assert patched(model)  # by the convolution
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("some/model: running without argap's form of Mamba-2 (its hidden states differ by ")


@pytest.mark.parametrize("family", ["falcon_h1", "minimax", "recurrent_gemma"])
def test_a_model_with_a_cache_generates_the_same(family: str) -> None:
    model = tiny(family, **OPTIONS[family])
    plain = model.generate(IDS[:, :20], max_new_tokens=5, do_sample=False)
    with torch.inference_mode():
        use_operators(model, IDS, family)
    assert torch.equal(model.generate(IDS[:, :20], max_new_tokens=5, do_sample=False), plain)


LAYERS = {
    "bamba": {"BambaMLP", "BambaRMSNorm", "BambaRMSNormGated"},
    "granitemoehybrid": {f"GraniteMoeHybrid{layer}" for layer in ("RMSNorm", "MLP", "RMSNormGated", "Experts")},
    "zamba2": {"Zamba2RMSNormGated", "Zamba2RMSNorm"},  # its MLP has adapters
    "zamba": {"ZambaRMSNorm"},  # its MLP has a GELU
    "falcon_h1": {"FalconH1RMSNorm", "FalconH1MLP"},
    "kimi_linear": {f"KimiLinear{layer}" for layer in ("ForgetGate", "RMSNormGated", "MLP", "RMSNorm", "Experts")},
    "xlstm": {"xLSTMRMSNorm", "xLSTMMultiHeadLayerNorm", "xLSTMFeedForward"},
    "qwen3_next": {f"Qwen3Next{layer}" for layer in ("RMSNormGated", "MLP", "RMSNorm", "Experts")},
    "lfm2": {"Lfm2RMSNorm", "Lfm2MLP"},
    "olmoe": {"OlmoeRMSNorm", "OlmoeExperts"},
    "qwen3_moe": {"Qwen3MoeRMSNorm", "Qwen3MoeExperts"},
    "mixtral": {"MixtralRMSNorm", "MixtralExperts"},
    "gpt_oss": {"GptOssRMSNorm"},  # its experts have biases
}


@pytest.mark.parametrize("family", LAYERS)
def test_layers_take_the_form_that_their_outputs_confirm(family: str) -> None:
    model = tiny(family, **OPTIONS.get(family, {}))
    for parameter in model.parameters():  # weights of norms differ from 1
        parameter.data += 0.1 * torch.randn_like(parameter) if parameter.dim() == 1 else 0
    with torch.inference_mode():
        plain = model(IDS, use_cache=False).logits
        patches = dict(fused_layers(model))
        for patch in patches.values():
            patch()
        found = model(IDS, use_cache=False).logits
    assert patches.keys() == LAYERS[family]
    assert {type(model.get_submodule(name)).__name__ for name in patched(model)} == LAYERS[family]
    torch.testing.assert_close(found, plain, rtol=1e-4, atol=1e-3)


def test_mlstm_goes_on_from_a_state() -> None:
    backend = tiny("xlstm").backbone.blocks[0].mlstm_layer.mlstm_backend
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 2, 4, 70, 8).unbind()
    gates = {"igate": 8 * torch.randn(2, 4, 70), "fgate": 8 * torch.randn(2, 4, 70)}
    expected, states = backend(q, k, v, **gates)
    first, state = mlstm(backend.forward, backend, *(x[:, :, :40] for x in (q, k, v, *gates.values())))
    second, found = mlstm(backend.forward, backend, *(x[:, :, 40:] for x in (q, k, v, *gates.values())), *state)
    torch.testing.assert_close(torch.cat([first, second], dim=2), expected, rtol=1e-3, atol=1e-4)
    for mine, own in zip(found, states, strict=True):
        torch.testing.assert_close(mine, own, rtol=1e-3, atol=1e-4)


def test_selective_scan_in_blocks_of_a_processor() -> None:
    torch.manual_seed(0)
    u, step, z = torch.randn(3, 2, 130, 140).unbind()
    B, C = torch.randn(2, 2, 3, 140).unbind()
    options = {"D": torch.randn(130), "z": z, "delta_bias": torch.randn(130), "delta_softplus": True}
    given = (u, step, -torch.rand(130, 3), B, C)
    plain = modeling_mamba.mamba_selective_scan
    for mine, own in zip(
        mamba_scan(plain, *given, **options, return_last_state=True),
        plain(*given, **options, return_last_state=True),
        strict=True,
    ):
        torch.testing.assert_close(mine, own, rtol=1e-4, atol=1e-4)


def test_functions_left_to_pytorch_are_named() -> None:
    model = tiny("mamba2")
    assert slow_functions(model) == {"causal_conv1d_fn": "causal-conv1d", "mamba2_chunk_scan": "mamba-ssm"}
    with torch.inference_mode():
        use_operators(model, IDS, "mamba2")
    assert slow_functions(model) == {"causal_conv1d_fn": "causal-conv1d"}
    assert slow_functions(tiny("gpt2")) == {}


X = torch.randn(2, 6, 9, generator=torch.Generator().manual_seed(0))
CASES: dict[str, tuple[Callable[..., Any], Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = {
    "other activation": (causal_conv1d, modeling_mamba.causal_conv1d_fn, (X, X[0, :, :4]), {"activation": "gelu"}),
    "sequence ids": (causal_conv1d, modeling_mamba.causal_conv1d_fn, (X, X[0, :, :4]), {"seq_idx": torch.zeros(1)}),
    "step without softplus": (
        mamba_scan,
        modeling_mamba.mamba_selective_scan,
        (X, X.abs(), -X[0, :, :3].abs(), X[:, :3], X[:, :3]),
        {"D": X[0, :, 0], "return_last_state": True},
    ),
    "gate": (
        mamba2_scan,
        modeling_mamba2.mamba2_chunk_scan,
        (X[..., None], X, -torch.ones(9), X[:, :, None], X[:, :, None], 4),
        {"z": X},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_an_operator_does_not_do_goes_to_the_family_s_function(case: str) -> None:
    function, plain, given, options = CASES[case]
    seen = []

    def spy(*arguments: Any, **named: Any) -> str:
        seen.append((arguments, named))
        return "plain"

    assert function(spy, *given, **options) == "plain"
    ((arguments, named),) = seen
    assert len(arguments) >= len(given)
    assert all(named[name] is value for name, value in options.items())
    if "seq_idx" not in options:
        plain(*arguments, **named)  # and it takes them


MAMBA2: dict[str, dict[str, Any]] = {
    "as the families call it": {"dt_softplus": True, "dt_bias": torch.linspace(-1, 1, 4), "D": torch.ones(4)},
    "limits and state": {
        "dt_limit": (0.1, 0.6),
        "initial_states": torch.ones(2, 4, 3, 5),
        "return_final_states": True,
    },
    "skip of each channel": {"D": torch.linspace(-1, 1, 4)[:, None].expand(4, 3)},
}


@pytest.mark.parametrize("case", MAMBA2)
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_options_of_mamba2_s_scan(case: str, groups: int) -> None:
    torch.manual_seed(0)
    x, dt, A = torch.randn(2, 70, 4, 3), torch.rand(2, 70, 4), -torch.rand(4)
    B, C = torch.randn(2, 2, 70, groups, 5).unbind()
    options, plain = MAMBA2[case], modeling_mamba2.mamba2_chunk_scan
    if case == "skip of each channel":  # mamba_ssm's, which transformers' function lacks
        without = {**options, "D": None}
        expected = plain(x, dt, A, B, C, 16, **without) + options["D"] * x
    else:
        expected = plain(x, dt, A, B, C, 16, **options)
    found = mamba2_scan(plain, x, dt, A, B, C, 16, **options)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", ["mamba", "falcon_mamba", "mamba2"])
@pytest.mark.parametrize("wide", [True, False])
def test_blocks_with_a_residual_stream_in_float32(family: str, *, wide: bool) -> None:
    model = tiny(family, residual_in_fp32=wide).to(torch.bfloat16)
    block = model.base_model.layers[0]
    block.norm.weight.data += 0.3 * torch.randn_like(block.norm.weight)
    with torch.inference_mode():
        for dtype in (torch.bfloat16, torch.float32) if wide else (torch.bfloat16,):
            x = torch.randn(1, 20, len(block.norm.weight)).to(dtype)
            found, expected = mamba_block(block.forward, block, x), block(x)
            assert found.dtype == expected.dtype
            assert (found - expected).norm() <= 2e-2 * (expected - x).norm()
    assert families.METHODS[type(block).__name__, "forward"].function is mamba_block


@pytest.mark.gpu
@pytest.mark.parametrize("family", [*OPTIONS, *MIXTURES])
def test_kernels_in_bfloat16_are_as_exact_as_the_family(family: str, capsys: pytest.CaptureFixture[str]) -> None:
    model = tiny(family, **OPTIONS.get(family, {})).cuda()
    ids = (torch.arange(3 * 200).reshape(3, 200) * 7 % VOCABULARY).cuda()
    with torch.inference_mode():
        exact = model(ids, use_cache=False).logits
        model = model.to(torch.bfloat16)
        theirs = copy.deepcopy(model)
        run_references(theirs)
        plain = (theirs(ids, use_cache=False).logits.float() - exact).norm()
        fuse(model, ids[:1], family)
        found = (model(ids, use_cache=False).logits.float() - exact).norm()
    assert patched(model)
    assert "running without" not in capsys.readouterr().err
    assert float(found) < 1.5 * float(plain)
