"""Liger's patch of a loaded model: kept where a probe confirms it, undone where not, and never beyond the GPU."""

import sys
from collections.abc import Callable
from types import MethodType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, MambaConfig
from transformers.models.llama import modeling_llama

import argap.scoring.fused as fusion
from argap.scoring import fused
from argap.scoring.confirmed import confirmed
from argap.scoring.fused import fuse, fuse_by_liger, fuse_rotary, fuse_windows, liger_patches

pytest.importorskip("liger_kernel")
monkey_patch = liger_patches()
IDS = torch.arange(12)[None]


@pytest.fixture
def model() -> Any:
    torch.manual_seed(0)
    sizes: Any = {"hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2, "num_hidden_layers": 2}
    return AutoModelForCausalLM.from_config(LlamaConfig(vocab_size=32, **sizes)).eval()


@pytest.fixture
def liger(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Replaces Liger's patch of Llama by one that scales every norm, and writes to the family's module like Liger."""

    def install(scale: float) -> None:
        rotary = modeling_llama.apply_rotary_pos_emb

        def patch(rope: bool = True, rms_norm: bool = True, cross_entropy: bool = True, model: Any = None) -> None:
            assert rope
            assert rms_norm
            assert not cross_entropy
            modeling_llama.apply_rotary_pos_emb = lambda *given, **options: rotary(*given, **options)
            modeling_llama.LlamaRMSNorm = type("Fused", (torch.nn.Module,), {})  # pyright: ignore
            for module in model.modules():
                if "Norm" in type(module).__name__:
                    plain = type(module).forward
                    module.forward = MethodType(lambda self, x, plain=plain: scale * plain(self, x), module)

        monkeypatch.setitem(monkey_patch.MODEL_TYPE_TO_APPLY_LIGER_FN, "llama", patch)

    for name in ("apply_rotary_pos_emb", "LlamaRMSNorm"):
        monkeypatch.setattr(modeling_llama, name, getattr(modeling_llama, name))
    return install


@torch.inference_mode()
def hidden_states(model: Any) -> torch.Tensor:
    return model.base_model(input_ids=IDS, use_cache=False).last_hidden_state


def test_a_patch_that_the_probe_confirms_stays(model: Any, liger: Callable[[float], None]) -> None:
    plain, norm, rotary = hidden_states(model), modeling_llama.LlamaRMSNorm, modeling_llama.apply_rotary_pos_emb
    liger(1.0 + 1e-6)
    with torch.inference_mode():
        assert fuse_by_liger(model, IDS, "llama")
    assert "forward" in vars(model.model.norm)
    assert modeling_llama.LlamaRMSNorm is norm  # models loaded later are theirs
    assert modeling_llama.apply_rotary_pos_emb is rotary
    patched = model.model.layers[0].self_attn.forward.__func__.__globals__["apply_rotary_pos_emb"]
    assert patched.__module__ == __name__
    torch.testing.assert_close(hidden_states(model), plain, rtol=1e-4, atol=1e-5)


def test_a_patch_that_changes_the_model_is_undone(
    model: Any, liger: Callable[[float], None], capsys: pytest.CaptureFixture[str]
) -> None:
    plain, rotary = hidden_states(model), modeling_llama.apply_rotary_pos_emb
    liger(1.01)
    with torch.inference_mode():
        assert not fuse_by_liger(model, IDS, "some/model")
    assert "forward" not in vars(model.model.norm)
    assert modeling_llama.apply_rotary_pos_emb is rotary
    assert torch.equal(hidden_states(model), plain)
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("some/model: running without liger-kernel's fused layers (its hidden states differ by 1.")


def test_a_patch_that_fails_is_undone(
    model: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def patch(rms_norm: bool = True, model: Any = None) -> None:
        model.model.norm.forward = None
        raise AttributeError("no such layer")

    plain = hidden_states(model)
    monkeypatch.setitem(monkey_patch.MODEL_TYPE_TO_APPLY_LIGER_FN, "llama", patch)
    with torch.inference_mode():
        assert not fuse_by_liger(model, IDS, "some/model")
    assert torch.equal(hidden_states(model), plain)
    assert "(AttributeError: no such layer)" in capsys.readouterr().err


def test_a_part_that_liger_lacks_for_a_family_is_not_asked_for(
    model: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def patch(rope: bool = False, swiglu: bool = True, model: Any = None) -> None:
        if rope:
            raise NotImplementedError("no rotary positions of this family")

    monkeypatch.setitem(monkey_patch.MODEL_TYPE_TO_APPLY_LIGER_FN, "llama", patch)
    with torch.inference_mode():
        assert fuse_by_liger(model, IDS, "llama") == {"swiglu"}
        assert fuse_by_liger(model, IDS, "llama", ["rope"]) == set()
    assert not capsys.readouterr().err


def test_on_a_cpu_nothing_is_patched(model: Any, liger: Callable[[float], None]) -> None:
    liger(2.0)
    plain = hidden_states(model)
    with torch.inference_mode():
        fuse(model, IDS, "llama")
    assert torch.equal(hidden_states(model), plain)


ROTATED: dict[str, dict[str, Any]] = {
    "gpt_neox": {"rotary_pct": 0.25},  # a quarter of the dimensions, in a projection of heads of q, k and v
    "starcoder2": {"num_key_value_heads": 1},  # fewer heads of keys
    "phi": {"partial_rotary_factor": 0.5},  # the function is given the rotated dimensions alone
}


@pytest.fixture(params=ROTATED)
def rotated(request: pytest.FixtureRequest) -> Any:
    """A model of a family whose rotary function is to be replaced for this model alone."""
    torch.manual_seed(0)
    sizes: Any = {"hidden_size": 64, "intermediate_size": 24, "num_attention_heads": 2, "num_hidden_layers": 2}
    config = AutoConfig.for_model(request.param, vocab_size=32, **sizes, **ROTATED[request.param])
    model = AutoModelForCausalLM.from_config(config).eval()
    family = sys.modules[type(model).__module__]
    before = dict(vars(family))
    yield model
    assert vars(family) == before


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is not interpreted, and the model is on the CPU")
def test_argap_s_rotary_function_is_the_family_s(rotated: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel runs in Triton's interpreter, as if on a GPU."""
    plain, calls = hidden_states(rotated), []
    kernel = fusion.rotate_in_place
    monkeypatch.setattr(fusion, "rotate_in_place", lambda *given, **named: calls.append(1) or kernel(*given, **named))
    with torch.inference_mode():
        assert fuse_rotary(rotated, IDS, "some/model")
    calls.clear()
    torch.testing.assert_close(hidden_states(rotated), plain, rtol=1e-4, atol=1e-5)
    assert len(calls) == 2  # layers


def test_a_rotary_function_of_another_kind_stays(
    rotated: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = hidden_states(rotated)
    monkeypatch.setattr(fusion, "rotate_in_place", lambda q, k, cos, sin: (q.flip(-1), k))
    with torch.inference_mode():
        assert not fuse_rotary(rotated, IDS, "some/model")
    assert torch.equal(hidden_states(rotated), plain)
    assert "some/model: running without the fused rotary positions (its" in capsys.readouterr().err


@pytest.mark.gpu
def test_a_family_that_liger_does_not_know_takes_argap_s_rotary_function(rotated: Any) -> None:
    model, ids = rotated.to("cuda", torch.bfloat16), IDS.cuda()
    with torch.inference_mode():
        plain = model(ids).logits.float()
        assert fuse_rotary(model, ids, "some/model")
        fused = model(ids).logits.float()
    assert not torch.equal(fused, plain)
    assert float((fused - plain).norm() / plain.norm()) < 2e-2


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_liger_s_llama_is_transformers_llama(model: Any, dtype: torch.dtype) -> None:
    model, ids = model.to("cuda", dtype), IDS.cuda()
    with torch.inference_mode():
        plain = model(ids).logits.float()
        assert fuse_by_liger(model, ids, "llama")
        fused = model(ids).logits.float()
    bound = {torch.float32: 1e-5, torch.bfloat16: 2e-2}[dtype]
    assert float((fused - plain).norm() / plain.norm()) < bound


def test_the_import_of_liger_leaves_transformers_types_alone():
    liger_patches()
    assert type(AutoConfig.for_model("mamba")) is MambaConfig


WINDOWED = ("gemma3_text", "mistral", "phi3", "recurrent_gemma")


@pytest.mark.parametrize("family", WINDOWED)
def test_attention_in_windows_is_the_family_s(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the mask is one for all sequences; one sequence, or padding, goes through the mask."""
    torch.manual_seed(0)
    window = {"recurrent_gemma": "attention_window_size"}.get(family, "sliding_window")
    sizes: Any = {"hidden_size": 32, "intermediate_size": 24, "num_attention_heads": 4, "num_hidden_layers": 3}
    sizes |= {"num_key_value_heads": 2, "head_dim": 8, "vocab_size": 32, "pad_token_id": 0, window: 5}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **sizes)).eval()
    ids = torch.randint(3, 32, (3, 40))
    padded = torch.arange(40) < torch.tensor([40, 20, 30])[:, None]
    calls, kernel = [], fused.sliding_attention
    monkeypatch.setattr(fused, "sliding_attention", lambda *given, **named: calls.append(1) or kernel(*given, **named))
    given = {"all": (ids, None), "one": (ids[:1], None), "padded": (ids, padded.long())}
    with torch.inference_mode():
        plain = {name: model(each, attention_mask=mask).logits for name, (each, mask) in given.items()}
        assert fuse_windows(model, ids[:1], family)
        for name, (each, mask) in given.items():
            calls.clear()
            found = model(each, attention_mask=mask).logits
            assert (calls != []) == (name == "all")
            real = slice(None) if mask is None else padded
            torch.testing.assert_close(found[real], plain[name][real], rtol=1e-4, atol=1e-5)
        assert not fuse_windows(model, ids[:1, :5], family)  # no longer than the window


class Chaotic(nn.Module):
    """A trunk of twelve logistic maps, which amplify rounding errors about as trunks of random weights may."""

    def __init__(self) -> None:
        super().__init__()
        self.rate = nn.Parameter(torch.tensor(3.875, dtype=torch.bfloat16))
        self.step = lambda rate, x: rate * x * (1 - x)

    @property
    def dtype(self) -> torch.dtype:
        return self.rate.dtype

    @property
    def base_model(self) -> "Chaotic":
        return self

    def forward(self, input_ids: torch.Tensor, use_cache: bool) -> SimpleNamespace:
        x = (input_ids / 1000).to(self.dtype)
        for _ in range(12):
            x = self.step(self.rate, x)
        return SimpleNamespace(last_hidden_state=x)


class Routed(Chaotic):
    """A trunk of eight layers that sends each token to one of four experts, which a rounding error may change."""

    def __init__(self) -> None:
        super().__init__()
        drawn = torch.Generator().manual_seed(0)
        self.weight = torch.randn(16, 16, generator=drawn) / 16
        self.step = lambda rate, x: rate * (x @ self.weight.to(x.dtype))

    def forward(self, input_ids: torch.Tensor, use_cache: bool) -> SimpleNamespace:
        x = torch.cos(input_ids[..., None] * torch.arange(1, 17)).to(self.dtype)
        for _ in range(8):
            x = x + self.step(self.rate, x)
            x = x * torch.cos(100 * x[..., :4]).topk(1).indices.sub(1.5)
            x = x / x.square().mean(-1, keepdim=True).sqrt()
        return SimpleNamespace(last_hidden_state=x)


@torch.no_grad()
@pytest.mark.parametrize(("scale", "kept"), [(1 + 2**-8, True), (0.7, False)])  # one rounding error, and a mistake
def test_where_rounding_sends_tokens_to_other_experts_they_stay_with_the_first(scale: float, kept: bool) -> None:
    model: Any = Routed()
    ids = torch.arange(200)[None]
    own, plain = model.step, model(ids, False).last_hidden_state.float()

    def patch() -> None:
        model.step = lambda rate, x: scale * own(rate, x)

    patch()
    assert (model(ids, False).last_hidden_state.float() - plain).norm() > 0.2 * plain.norm()
    model.step = own
    assert confirmed(model, ids, patch, None) is kept


@torch.no_grad()
@pytest.mark.parametrize(("rate", "kept"), [(1.0, True), (0.98, False)])
def test_where_rounding_errors_are_amplified_float32_decides(rate: float, kept: bool) -> None:
    """The same map in another order of operations is confirmed; another map is not."""
    model: Any = Chaotic()
    ids = torch.randint(100, 900, (1, 200), generator=torch.Generator().manual_seed(0))
    own, weight = model.step, model.rate.data
    plain = model(ids, False).last_hidden_state.float()

    def patch() -> None:
        model.step = lambda r, x: rate * (x * (1 - x)) * r

    patch()
    assert (model(ids, False).last_hidden_state.float() - plain).norm() > 0.1 * plain.norm()
    model.step = own
    assert confirmed(model, ids, patch, None) is kept
    assert (model.step is own) is not kept
    assert model.rate.data is weight or torch.equal(model.rate.data, weight)
    assert model.dtype == torch.bfloat16
