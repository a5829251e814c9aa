"""flash-linear-attention's families: their own models where there is a GPU, and on the CPU their weights
and their plain operators, put together here as their layers do it."""

import copy
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from argap.checkpoints.find import find_checkpoint
from argap.checkpoints.load import load_model
from argap.models import ArgapForCausalLM
from argap.scoring.heads import find_head, logprobs_of_model
from tests.unit.models.hub.readings import recurrence, rms

pytestmark = pytest.mark.filterwarnings("ignore:ShortConvolution is crucial")  # says theirs where it is off

SMALL: dict[str, Any] = {"vocab_size": 61, "hidden_size": 64, "num_hidden_layers": 2, "num_heads": 2}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "delta_net": ("DeltaNet", {}),
    "delta_net, elu and sum": ("DeltaNet", {"qk_activation": "elu", "qk_norm": "sum", "conv_size": 3, "num_heads": 4}),
    "delta_net, no convolution": ("DeltaNet", {"use_short_conv": False, "norm_eps": 1e-2}),
    "delta_net, negative": ("DeltaNet", {"allow_neg_eigval": True}),
    "gated_deltanet": ("GatedDeltaNet", {"head_dim": 24, "expand_v": 1.5, "norm_eps": 1e-2}),
    "gated_deltanet, negative": ("GatedDeltaNet", {"head_dim": 16, "use_short_conv": False, "allow_neg_eigval": True}),
    "gla": ("GLA", {}),
    "gla, convolution": ("GLA", {"use_short_conv": True, "expand_k": 1.0, "fuse_norm": False, "norm_eps": 1e-2}),
    "retnet": ("RetNet", {"norm_eps": 1e-2}),
    "retnet, equal widths": ("RetNet", {"expand_v": 1.0, "fuse_norm": False, "intermediate_size": 96}),
    "linear_attn, elu": ("LinearAttention", {"feature_map": "elu", "norm_eps": 1e-2}),
    "linear_attn, relu": ("LinearAttention", {"feature_map": "relu", "expand_k": 0.5, "tie_word_embeddings": True}),
    "linear_attn, identity": ("LinearAttention", {"feature_map": "identity", "hidden_ratio": 2}),
}


@pytest.fixture(params=MODELS.values(), ids=list(MODELS), scope="module")
def original(request, shaken, fla_models) -> Any:
    """A small model of theirs with random weights, on the CPU, where it cannot run."""
    name, options = request.param
    torch.manual_seed(0)
    config = getattr(fla_models, f"{name}Config")(**{**SMALL, **options}, attn_mode="fused_recurrent")
    return shaken(getattr(fla_models, f"{name}ForCausalLM")(config))


@pytest.fixture(scope="module")
def checkpoint(original, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("fla")
    original.save_pretrained(folder)
    return folder


@torch.no_grad()
def test_logits_and_steps_are_those_of_their_plain_operators(original, checkpoint, native, stepped, ids) -> None:
    model, expected = native(checkpoint), by_hand(original, ids)
    assert expected.std() > 0.3
    torch.testing.assert_close(model(ids).logits, expected, rtol=0, atol=1e-4)
    torch.testing.assert_close(stepped(model, ids), expected, rtol=0, atol=1e-4)


@torch.no_grad()
def test_logits_and_steps_are_those_of_a_reading_in_float64(original, checkpoint, native, stepped, ids) -> None:
    """The same layers, with recurrences written from the papers' equations in place of their operators."""
    model, expected = native(checkpoint), by_hand(copy.deepcopy(original).double(), ids, exact=True)
    assert expected.dtype == torch.float64
    torch.testing.assert_close(model(ids).logits.double(), expected, rtol=0, atol=1e-4)
    torch.testing.assert_close(stepped(model, ids).double(), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize(("negative", "expected"), [(True, (1.5, 0.75, 1.125)), (False, (0.75, 0.9375, 0.984375))])
def test_a_beta_above_one_overshoots(native, tmp_path, negative: bool, expected: tuple[float, ...]) -> None:
    """One head of one number at inputs 1, 1, 1: q = k = 1, v = silu(1), σ(ln 3) = ¾.

    With β = 1.5 the state S is −½ S + 1.5 v: 1.5, 0.75, 1.125 times v; with β = ¾ it is ¼ S + ¾ v. The output is
    normed with ε = v²: S / √(S² + v²).
    """
    weights = {f"model.layers.0.attn.{name}_proj.weight": torch.ones(1, 1) for name in "qkvo"}
    weights["model.layers.0.attn.b_proj.weight"] = torch.full((1, 1), 3.0).log()
    weights |= {f"model.layers.0.mlp.{name}_proj.weight": torch.ones(1, 1) for name in ("gate", "up", "down")}
    norms = ("model.layers.0.attn_norm", "model.layers.0.attn.o_norm", "model.layers.0.mlp_norm", "model.norm")
    weights |= {f"{name}.weight": torch.ones(1) for name in norms}
    weights |= {f"{name}.weight": torch.ones(3, 1) for name in ("model.embeddings", "lm_head")}
    config = {"model_type": "delta_net", "vocab_size": 3, "hidden_size": 1, "num_heads": 1, "num_hidden_layers": 1}
    config |= {"intermediate_size": 1, "use_short_conv": False, "allow_neg_eigval": negative}
    save(tmp_path, {**config, "norm_eps": F.silu(torch.tensor(1.0)).square().item()}, weights)
    y = native(tmp_path).model.blocks[0].mixer(torch.ones(1, 3, 1))
    torch.testing.assert_close(y[0, :, 0], torch.tensor([s / (s**2 + 1) ** 0.5 for s in expected]), rtol=0, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@torch.no_grad()
def test_half_precision_rounds_and_does_no_more(checkpoint, native, ids, dtype: torch.dtype) -> None:
    exact = native(checkpoint)(ids).logits
    model = load_model(find_checkpoint(checkpoint), dtype=dtype, device="cpu", backend="native")
    logits = model(ids).logits
    assert (logits.float() - exact).abs().mean() < 0.1 * exact.std()
    head = find_head(model, ids[:1])
    assert head is not None
    hidden = model.base_model(input_ids=ids[:1], use_cache=False).last_hidden_state
    found, expected = head.logprobs(hidden[0, :-1], ids[0, 1:]), logprobs_of_model(model, ids[0])
    torch.testing.assert_close(found.logprob, expected.logprob, rtol=0, atol=0.1)


@pytest.mark.gpu
@pytest.mark.parametrize("length", [1, 63, 64, 70, 200])
@torch.no_grad()
def test_logits_are_those_of_their_models(original, checkpoint, length: int) -> None:
    """Theirs run step by step here (``attn_mode``), in float32 throughout, at any length."""
    ids = torch.randint(0, 61, (2, length), generator=torch.Generator().manual_seed(3)).cuda()
    theirs = load_model(find_checkpoint(checkpoint), dtype=torch.float32, device="cuda", backend="hf")
    assert type(theirs) is type(original)
    ours = load_model(find_checkpoint(checkpoint), dtype=torch.float32, device="cuda")
    assert isinstance(ours, ArgapForCausalLM)
    expected = theirs(input_ids=ids, use_cache=False).logits
    torch.testing.assert_close(ours(ids).logits, expected, rtol=0, atol=1e-4)


def test_attention_in_some_layers(native, tmp_path, original) -> None:
    """A hybrid's attention cannot be built without the package flash-attn: its weights are made here."""
    config = original.config.to_dict()
    config["attn"] = {"layers": [1], "num_heads": 4, "window_size": 5, "rope_theta": 50.0}
    weights = {k: v for k, v in original.state_dict().items() if not k.startswith("model.layers.1.attn.")}
    if original.config.tie_word_embeddings:
        del weights["lm_head.weight"]
    generator = torch.Generator().manual_seed(4)
    parts = {part: torch.randn(64, 64, generator=generator) / 8 for part in "qkvo"}
    weights |= {f"model.layers.1.attn.{part}_proj.weight": weight for part, weight in parts.items()}
    save(tmp_path, config, weights)
    model = native(tmp_path)
    assert [spec["name"] for spec in model.config.mixers] == [native_name(original), "attention"]
    x = torch.randn(1, 9, 64, generator=generator)
    q, k, v = ((x @ parts[part].T).view(9, 4, 16).transpose(0, 1) for part in "qkv")
    angles = torch.arange(9)[:, None] * 50.0 ** (-torch.arange(8) / 8)
    q, k = (turned(part, angles) for part in (q, k))
    near = torch.ones(9, 9).tril() - torch.ones(9, 9).tril(-5)  # itself and the 4 before
    y = (q @ k.mT / 4).masked_fill(near == 0, -torch.inf).softmax(-1) @ v
    expected = y.transpose(0, 1).flatten(1) @ parts["o"].T
    torch.testing.assert_close(model.model.blocks[1].mixer(x)[0], expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("family", ["transformer", "delta_net"])
def test_attention_with_grouped_keys_and_biases(native, stepped, tmp_path, ids, family: str) -> None:
    """The ``transformer`` that their models are compared with, and a hybrid all of attention: 4 heads, 2 of keys."""
    attention = {"num_heads": 4, "num_kv_heads": 2, "qkv_bias": True, "window_size": None, "rope_theta": 50.0}
    config: dict[str, Any] = {**SMALL, "model_type": family, "intermediate_size": 96, "norm_eps": 1e-5}
    config |= attention if family == "transformer" else {"attn": {"layers": [0, 1], **attention}}
    weights = transformer_weights()
    save(tmp_path, config, weights)
    model = native(tmp_path)
    expected = transformer({name: weight.double() for name, weight in weights.items()}, ids).float()
    with torch.no_grad():
        torch.testing.assert_close(model(ids).logits, expected, rtol=0, atol=1e-4)
        torch.testing.assert_close(stepped(model, ids), expected, rtol=0, atol=1e-4)


def test_older_layouts_give_the_same_logits(native, tmp_path, ids) -> None:
    """Until early 2025 the gate and the map up were one tensor, and with ``norm_first`` the norms lay in the parts."""
    config: dict[str, Any] = {**SMALL, "model_type": "transformer", "intermediate_size": 96, "num_heads": 4}
    config |= {"num_kv_heads": 2, "qkv_bias": True, "rope_theta": 50.0, "norm_eps": 1e-5}
    weights = transformer_weights()
    older = {name.replace("_norm.", ".norm."): weight for name, weight in weights.items()}
    for layer in range(2):
        at = f"model.layers.{layer}.mlp"
        older[f"{at}.gate_proj.weight"] = torch.cat(
            [older[f"{at}.gate_proj.weight"], older.pop(f"{at}.up_proj.weight")]
        )
    for name, stored in (("today", weights), ("older", older)):
        (tmp_path / name).mkdir()
        save(tmp_path / name, {**config, "norm_first": name == "older"}, stored)
    today, then = (native(tmp_path / name)(ids).logits for name in ("today", "older"))
    torch.testing.assert_close(then, today, rtol=0, atol=0)


def test_norm_first_is_refused_where_its_name_is_the_output_norm_s(native, tmp_path) -> None:
    """With one head the shapes agree, and only the name tells."""
    from argap.errors import ArgapError

    config = {**SMALL, "model_type": "linear_attn", "num_heads": 1, "feature_map": "relu", "norm_first": True}
    save(tmp_path, config, {"model.layers.0.attn.norm.weight": torch.ones(64)})
    with pytest.raises(ArgapError, match="option norm_first True of linear_attn has no native form"):
        native(tmp_path)


def transformer_weights() -> dict[str, torch.Tensor]:
    shapes: dict[str, tuple[int, ...]] = {"model.embeddings.weight": (61, 64), "lm_head.weight": (61, 64)}
    for layer in range(2):
        at = f"model.layers.{layer}"
        shapes |= {f"{at}.attn.{name}_proj.weight": (64, 64) for name in "qo"}
        shapes |= {f"{at}.attn.{name}_proj.weight": (32, 64) for name in "kv"}
        shapes |= {f"{at}.attn.q_proj.bias": (64,), f"{at}.attn.k_proj.bias": (32,), f"{at}.attn.v_proj.bias": (32,)}
        shapes |= {f"{at}.mlp.{name}_proj.weight": (96, 64) for name in ("gate", "up")}
        shapes[f"{at}.mlp.down_proj.weight"] = (64, 96)
    generator = torch.Generator().manual_seed(6)
    weights = {name: torch.randn(shape, generator=generator) * 1.5 / shape[-1] ** 0.5 for name, shape in shapes.items()}
    norms = ["model.norm", *(f"model.layers.{layer}.{part}_norm" for layer in range(2) for part in ("attn", "mlp"))]
    return weights | {f"{norm}.weight": 1 + 0.2 * torch.randn(64, generator=generator) for norm in norms}


def transformer(w: dict[str, torch.Tensor], ids: torch.Tensor) -> torch.Tensor:
    """fla/models/transformer and fla/layers/attn.py, read plainly: key head g serves query heads 2g and 2g + 1."""
    x = w["model.embeddings.weight"][ids]
    angles = torch.arange(ids.shape[1])[:, None].double() * 50.0 ** (-torch.arange(8).double() / 8)
    later = torch.ones(ids.shape[1], ids.shape[1]).triu(1).bool()
    for layer in range(2):
        at = f"model.layers.{layer}"
        normed = rms(x, w[f"{at}.attn_norm.weight"], 1e-5)
        q, k, v = (
            (normed @ w[f"{at}.attn.{name}_proj.weight"].T + w[f"{at}.attn.{name}_proj.bias"]).unflatten(-1, (-1, 16))
            for name in "qkv"
        )
        out = []
        for head in range(4):
            query, key = turned(q[:, :, head], angles), turned(k[:, :, head // 2], angles)
            out.append((query @ key.mT / 4).masked_fill(later, -torch.inf).softmax(-1) @ v[:, :, head // 2])
        x = x + torch.cat(out, dim=-1) @ w[f"{at}.attn.o_proj.weight"].T
        normed = rms(x, w[f"{at}.mlp_norm.weight"], 1e-5)
        gate, up = (normed @ w[f"{at}.mlp.{name}_proj.weight"].T for name in ("gate", "up"))
        x = x + (F.silu(gate) * up) @ w[f"{at}.mlp.down_proj.weight"].T
    return rms(x, w["model.norm.weight"], 1e-5) @ w["lm_head.weight"].T


@pytest.mark.filterwarnings("ignore:According to Bo")  # about RWKV-7
@pytest.mark.parametrize("name", ["GSA", "HGRN2", "RWKV7"])
def test_their_other_models_load_through_transformers(tmp_path, fla_models, name: str) -> None:
    """Model types that transformers alone does not know; their code runs on a GPU."""
    sizes: dict[str, Any] = {"expand_ratio": 32} if name == "HGRN2" else {"head_dim": 16, "num_slots": 8}
    config = getattr(fla_models, f"{name}Config")(**{**SMALL, **sizes})
    getattr(fla_models, f"{name}ForCausalLM")(config).save_pretrained(tmp_path)
    model = load_model(find_checkpoint(tmp_path), dtype=torch.float32, device="cpu")
    assert type(model).__module__.startswith("fla.models.")
    assert type(model).__name__ == f"{name}ForCausalLM"


@pytest.mark.parametrize(("model_type", "backend"), [("gsa", "auto"), ("gated_deltanet", "hf"), ("gla", "hf")])
def test_on_a_cpu_their_kernels_are_one_line(tmp_path, model_type: str, backend: Any) -> None:
    """Triton finds no driver there, long after the text was read and the model loaded."""
    from argap.checkpoints.load import check_loadable
    from argap.errors import ArgapError

    save(tmp_path, {"model_type": model_type}, {"a": torch.ones(1)})
    with pytest.raises(ArgapError, match=f"runs model type {model_type}, and only on a GPU; `device` is cpu"):
        check_loadable(find_checkpoint(tmp_path), backend, device="cpu")
    check_loadable(find_checkpoint(tmp_path), backend, device="cuda:0")


def test_their_mamba2_is_read_by_transformers_own(tmp_path, fla_models) -> None:
    sizes = {**SMALL, "head_dim": 32, "num_heads": 4, "state_size": 16}
    original = fla_models.Mamba2ForCausalLM(fla_models.Mamba2Config(**sizes, expand=2, n_groups=1))
    original.save_pretrained(tmp_path)
    model = load_model(find_checkpoint(tmp_path), dtype=torch.float32, device="cpu")
    assert type(model).__module__.startswith("transformers.")
    state = original.state_dict()
    assert {name: tuple(value.shape) for name, value in model.state_dict().items()} == {
        name: tuple(value.shape) for name, value in state.items()
    }
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, state[name], rtol=0, atol=0)


def test_without_their_package_the_extra_is_named(tmp_path, monkeypatch) -> None:
    from argap.errors import ArgapError

    save(tmp_path, {"model_type": "rwkv7"}, {"a": torch.ones(1)})
    for module in ("fla", "fla.models"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ArgapError, match=r"needs flash-linear-attention .*; run `pip install 'argap\[fla\]'`"):
        load_model(find_checkpoint(tmp_path), dtype=torch.float32, device="cpu", backend="hf")


def native_name(original: Any) -> str:
    kind = str(original.config.model_type)
    return {"linear_attn": "linear_attention", "gated_deltanet": "gated_delta_net"}.get(kind, kind)


def save(folder: Path, config: dict[str, Any], weights: dict[str, torch.Tensor]) -> None:
    from safetensors.torch import save_file

    (folder / "config.json").write_text(json.dumps(config, default=str))
    save_file({name: weight.contiguous() for name, weight in weights.items()}, folder / "model.safetensors")


def by_hand(model: Any, ids: torch.Tensor, *, exact: bool = False) -> torch.Tensor:
    """Their forward pass in plain PyTorch, with their ``naive`` operators, which compute in float32; ``exact``: with
    `recurrence`."""
    config, w = model.config, model.state_dict()
    eps = config.norm_eps
    x = w["model.embeddings.weight"][ids]
    for layer in range(config.num_hidden_layers):
        at = f"model.layers.{layer}."
        part = {key.removeprefix(at): value for key, value in w.items() if key.startswith(at)}
        normed = rms(x, part["attn_norm.weight"], eps)
        own = {key.removeprefix("attn."): value for key, value in part.items() if key.startswith("attn.")}
        x = x + MIXERS[config.model_type](config, own, normed, exact)
        normed = rms(x, part["mlp_norm.weight"], eps)
        gate, up = (normed @ part[f"mlp.{name}_proj.weight"].T for name in ("gate", "up"))
        x = x + (F.silu(gate) * up) @ part["mlp.down_proj.weight"].T
    return rms(x, w["model.norm.weight"], eps) @ w["lm_head.weight"].T


def turned(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """Rotary positions, the halves of a vector as pairs."""
    a, b = x.chunk(2, dim=-1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


def heads_of(config: Any, w: dict[str, torch.Tensor], x: torch.Tensor, name: str, convolved: bool) -> torch.Tensor:
    """One of q, k, v ``[B, T, H, K]``; convolved with the present tap last."""
    y = x @ w[f"{name}_proj.weight"].T
    if convolved:
        filters = w[f"{name}_conv1d.weight"]
        padded = F.pad(y.transpose(1, 2), (filters.shape[-1] - 1, 0))
        y = F.conv1d(padded, filters, groups=len(filters)).transpose(1, 2)
    return y.unflatten(-1, (config.num_heads, -1))


def gated(config: Any, w: dict[str, torch.Tensor], x: torch.Tensor, o: torch.Tensor) -> torch.Tensor:
    norm = w["g_norm_swish_gate.weight" if config.fuse_norm else "g_norm.weight"]
    return (rms(o, norm, config.norm_eps).flatten(-2) * F.silu(x @ w["g_proj.weight"].T)) @ w["o_proj.weight"].T


def delta_net(config: Any, w: dict[str, torch.Tensor], x: torch.Tensor, exact: bool) -> torch.Tensor:
    from fla.ops.delta_rule.naive import delta_rule_recurrence

    q, k, v = (heads_of(config, w, x, name, config.use_short_conv) for name in "qkv")
    activation = {"silu": F.silu, "elu": lambda t: F.elu(t) + 1}[config.qk_activation]
    q, k, v = activation(q), activation(k), F.silu(v)
    if config.qk_norm == "l2":  # as their kernel has it
        q, k = (part / (part.square().sum(-1, keepdim=True) + 1e-6).sqrt() for part in (q, k))
    else:
        q, k = (F.normalize(part, p=1, dim=-1, eps=1e-6) for part in (q, k))
    beta = (1 + config.allow_neg_eigval) * (x @ w["b_proj.weight"].T).sigmoid()
    if exact:
        o = recurrence(q, k, v, beta=beta)
    else:
        q, k, v, beta = (part.transpose(1, 2) for part in (q, k, v, beta))
        o = delta_rule_recurrence(q, k, v, beta)[0].transpose(1, 2)
    return rms(o, w["o_norm.weight"], config.norm_eps).flatten(-2) @ w["o_proj.weight"].T


def gated_deltanet(config: Any, w: dict[str, torch.Tensor], x: torch.Tensor, exact: bool) -> torch.Tensor:
    from fla.ops.gated_delta_rule.naive import naive_recurrent_gated_delta_rule

    q, k, v = (F.silu(heads_of(config, w, x, name, config.use_short_conv)) for name in "qkv")
    q, k = (part / (part.square().sum(-1, keepdim=True) + 1e-6).sqrt() for part in (q, k))
    beta = (1 + config.allow_neg_eigval) * (x @ w["b_proj.weight"].T).sigmoid()
    decay = -w["A_log"].exp() * F.softplus(x @ w["a_proj.weight"].T + w["dt_bias"])
    if exact:
        o = recurrence(q, k, v, log_decay=decay[..., None], beta=beta)
    else:
        o = naive_recurrent_gated_delta_rule(q, k, v, beta, decay)[0]
    gate = F.silu(x @ w["g_proj.weight"].T)
    return (rms(o, w["o_norm.weight"], config.norm_eps).flatten(-2) * gate) @ w["o_proj.weight"].T


def gla(config: Any, w: dict[str, torch.Tensor], x: torch.Tensor, exact: bool) -> torch.Tensor:
    from fla.ops.gla.naive import naive_recurrent_gla

    q, k, v = (heads_of(config, w, x, name, config.use_short_conv) for name in "qkv")
    if config.use_short_conv:
        q, k, v = F.silu(q), F.silu(k), F.silu(v)
    decay = F.logsigmoid(x @ w["gk_proj.0.weight"].T @ w["gk_proj.1.weight"].T + w["gk_proj.1.bias"]) / 16
    decay = decay.unflatten(-1, (config.num_heads, -1))
    o = recurrence(q, k, v, log_decay=decay) if exact else naive_recurrent_gla(q, k, v, decay)[0]
    return gated(config, w, x, o)


def retnet(config: Any, w: dict[str, torch.Tensor], x: torch.Tensor, exact: bool) -> torch.Tensor:
    from fla.ops.retention.naive import naive_retention

    q, k, v = (heads_of(config, w, x, name, False).transpose(1, 2) for name in "qkv")
    size, at = q.shape[-1], torch.arange(x.shape[1], dtype=x.dtype)
    angles = at[:, None] * 10_000.0 ** (-torch.arange(size // 2, dtype=x.dtype) * 2 / size)
    q, k = turned(q, angles), turned(k, angles)
    if exact:
        rates = torch.log1p(-(2.0 ** (-5 - torch.arange(config.num_heads, dtype=x.dtype))))
        o = recurrence(*(part.transpose(1, 2) for part in (q, k, v)), log_decay=rates[:, None])
    else:
        o = naive_retention(q, k, v).transpose(1, 2)
    return gated(config, w, x, o)


def linear_attn(config: Any, w: dict[str, torch.Tensor], x: torch.Tensor, exact: bool) -> torch.Tensor:
    from fla.ops.linear_attn.naive import naive_recurrent_linear_attn

    q, k, v = (heads_of(config, w, x, name, False) for name in "qkv")
    feature: Callable[[torch.Tensor], torch.Tensor] = {
        "elu": lambda t: F.elu(t) + 1,
        "relu": F.relu,
        "identity": lambda t: t,
    }[config.feature_map]
    q, k = feature(q), feature(k)
    o = recurrence(q, k, v) if exact else naive_recurrent_linear_attn(q, k, v)[0]
    return rms(o, w["norm.weight"], config.norm_eps).flatten(-2) @ w["o_proj.weight"].T


MIXERS = {
    "delta_net": delta_net,
    "gated_deltanet": gated_deltanet,
    "gla": gla,
    "retnet": retnet,
    "linear_attn": linear_attn,
}
