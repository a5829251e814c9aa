"""Operators of flash-linear-attention in our mixers: on a CPU by loops with their conventions, on a GPU theirs."""

import sys
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

import argap.models.fla.operators as fla_operators
from argap.errors import ArgapError, MismatchError
from argap.models import ArgapForCausalLM
from argap.models.block import compile_layers
from argap.models.fla.operators import DELTA_RULES, REPLACED, FlaOperators, choose_backend, use_fla
from argap.models.mixer import Mixer
from argap.models.mixers.delta_net import DeltaNet
from argap.models.mixers.gated_delta_net import GatedDeltaNet
from argap.models.mixers.gla import GLA
from argap.models.mixers.gsa import GSA
from argap.models.mixers.hgrn2 import HGRN2
from argap.models.mixers.kda import KDA
from argap.models.mixers.lightning_attention import LightningAttention
from argap.models.mixers.linear_attention import LinearAttention
from argap.models.mixers.mamba2 import Mamba2
from argap.models.mixers.mlstm import MLSTM
from argap.models.mixers.retnet import RetNet
from argap.models.mixers.rwkv7 import RWKV7
from argap.models.presets import build_config
from argap.records import read_record, write_record
from argap.runtime.torchrun import Parallel
from argap.train import load_config, train
from argap.train.loop import Objective, Trainer, Windows
from argap.train.records import TrainRecord
from tests.builders.weights import redraw

WIDTH, LENGTH = 128, 21
TOLERANCE = {torch.float32: 2e-3, torch.bfloat16: 2e-2}
"""Bounds of ‖theirs − ours‖ / ‖ours‖ on a GPU, ours in float64: their products are in TF32 or bfloat16."""


def recurrence(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scale: float | None,
    step: Callable[[torch.Tensor, torch.Tensor, torch.Tensor, int], torch.Tensor],
) -> tuple[torch.Tensor, torch.Tensor]:
    """o_t = scale · q_t S_t with S_t = step(S_{t−1}, k_t, v_t, t); all ``[B, T, H, X]``; scale 1/√K by default."""
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    state, outputs = q.new_zeros(*q.shape[:1], *q.shape[2:], v.shape[-1]), []
    for t in range(q.shape[1]):
        state = step(state, k[:, t], v[:, t], t)
        outputs.append((scale * q[:, t, :, None] @ state)[:, :, 0])
    return torch.stack(outputs, dim=1), state


FUNCTIONS = [field.name for field in fields(FlaOperators) if field.name != "scalar_decays"]


class Standin:
    """Their functions by their documentation, in the dtype of the inputs, and the names of those called."""

    def __init__(self) -> None:
        self.called: set[str] = set()

    def chunk_gla(self, q, k, v, g, scale=None, output_final_state=False):
        self.called.add("chunk_gla")
        return recurrence(
            q, k, v, scale, lambda s, k, v, t: g[:, t].exp()[..., None] * s + k[..., None] * v[..., None, :]
        )

    def chunk_delta_rule(self, q, k, v, beta, scale=None, output_final_state=False):
        self.called.add("chunk_delta_rule")

        def step(s: torch.Tensor, k: torch.Tensor, v: torch.Tensor, t: int) -> torch.Tensor:
            return s + k[..., None] * (beta[:, t, :, None] * (v - (k[..., None, :] @ s)[..., 0, :]))[..., None, :]

        return recurrence(q, k, v, scale, step)

    def chunk_gated_delta_rule(self, q, k, v, g, beta, scale=None, output_final_state=False):
        self.called.add("chunk_gated_delta_rule")
        return self._decayed_delta_rule(q, k, v, g[..., None], beta, scale)

    def chunk_kda(self, q, k, v, g, beta, scale=None, output_final_state=False):
        self.called.add("chunk_kda")
        return self._decayed_delta_rule(q, k, v, g, beta, scale)

    def _decayed_delta_rule(self, q, k, v, g, beta, scale):
        def step(s: torch.Tensor, k: torch.Tensor, v: torch.Tensor, t: int) -> torch.Tensor:
            s = g[:, t].exp()[..., None] * s
            return s + k[..., None] * (beta[:, t, :, None] * (v - (k[..., None, :] @ s)[..., 0, :]))[..., None, :]

        return recurrence(q, k, v, scale, step)

    def chunk_rwkv7(self, r, w, k, v, a, b, scale=1.0, output_final_state=False):
        self.called.add("chunk_rwkv7")

        def step(s: torch.Tensor, k: torch.Tensor, v: torch.Tensor, t: int) -> torch.Tensor:
            corrected = b[:, t, :, :, None] * (a[:, t, :, None, :] @ s)
            return w[:, t].exp()[..., None] * s + corrected + k[..., None] * v[..., None, :]

        return recurrence(r, k, v, scale, step)

    def chunk_simple_gla(self, q, k, v, g=None, g_gamma=None, scale=None, output_final_state=False):
        self.called.add("chunk_simple_gla")
        decays = torch.zeros(q.shape[:3], dtype=q.dtype) if g is None else g
        decays = decays if g_gamma is None else decays + g_gamma
        return recurrence(
            q, k, v, scale, lambda s, k, v, t: decays[:, t, :, None, None].exp() * s + k[..., None] * v[..., None, :]
        )

    def parallel_based(self, q, k, v, scale=None, use_norm=True):
        self.called.add("parallel_based")
        s = torch.einsum("bthk,bshk->bhts", q, k) * q.shape[-1] ** -0.5
        weights = (1 + s + s**2 / 2).tril()
        y = torch.einsum("bhts,bshv->bthv", weights, v)
        return y / (weights.sum(-1).mT[..., None] + 1e-6) if use_norm else y

    def operators(self) -> FlaOperators:
        return FlaOperators(
            **{field.name: getattr(self, field.name) for field in fields(FlaOperators) if field.name != "scalar_decays"}
        )


MIXERS: dict[str, tuple[Callable[[int], Mixer], str]] = {
    "gla": (lambda width: GLA(width, heads=2, gate_temperature=2.0), "chunk_gla"),
    "delta_net": (lambda width: DeltaNet(width, heads=2), "chunk_delta_rule"),
    "delta_net, relu and l1": (
        lambda width: DeltaNet(width, heads=2, activation="relu", key_norm="l1"),
        "chunk_delta_rule",
    ),
    "gated_delta_net": (lambda width: GatedDeltaNet(width, heads=1), "chunk_gated_delta_rule"),
    "kda": (lambda width: KDA(width, heads=2), "chunk_kda"),
    "rwkv7": (lambda width: RWKV7(width, heads=2), "chunk_rwkv7"),
    "hgrn2": (lambda width: HGRN2(width, heads=2), "chunk_gla"),
    "gsa": (lambda width: GSA(width, heads=2, slots=16), "chunk_gla"),
    "mamba2": (lambda width: Mamba2(width, states=64, heads=4, groups=2), "chunk_simple_gla"),
    "mlstm": (lambda width: MLSTM(width, heads=1), "chunk_simple_gla"),
    "lightning_attention": (lambda width: LightningAttention(width, heads=2), "chunk_simple_gla"),
    "retnet": (lambda width: RetNet(width, heads=2), "chunk_simple_gla"),
    "retnet, chunks alone": (lambda width: RetNet(width, heads=2, chunk_size=8, cross_chunk=False), "chunk_simple_gla"),
    "linear attention": (lambda width: LinearAttention(width, heads=2), "chunk_simple_gla"),
    "without a sum": (lambda width: LinearAttention(width, heads=2, feature_map="identity"), "chunk_simple_gla"),
    "with a decay": (lambda width: LinearAttention(width, heads=2, decay=-3.0), "chunk_simple_gla"),
    "taylor": (lambda width: LinearAttention(width, heads=2, feature_map="taylor", feature_dim=4), "parallel_based"),
}


def initialised(name: str) -> Mixer:
    torch.manual_seed(3)
    mixer = MIXERS[name][0](WIDTH)
    redraw(mixer, 0.1)
    return mixer


def results(mixer: Mixer, x: torch.Tensor, weights: torch.Tensor) -> list[torch.Tensor]:
    """The output and, of its weighted sum, the gradients by the input and every parameter."""
    x = x.detach().requires_grad_()
    y = mixer(x)
    return [y.detach(), *torch.autograd.grad((y * weights).sum(), [x, *mixer.parameters()])]


@pytest.mark.parametrize("name", MIXERS)
def test_a_mixer_computes_the_same_with_their_operator(name: str) -> None:
    mixer, theirs = initialised(name).double(), Standin()
    x, weights = torch.randn(2, 2, LENGTH, WIDTH, dtype=torch.float64).unbind()
    ours = results(mixer, x, weights)
    use_fla(mixer, theirs.operators())
    # Theirs adds 1e-6 to the sum of Taylor weights, at least 1/2.
    tolerance = 5e-5 if name == "taylor" else 1e-10
    torch.testing.assert_close(results(mixer, x, weights), ours, rtol=tolerance, atol=tolerance)
    assert theirs.called == {MIXERS[name][1]}


@pytest.mark.parametrize("name", ["gla", "delta_net", "kda", "rwkv7", "mamba2", "retnet", "linear attention", "taylor"])
@torch.no_grad()
def test_the_state_after_a_prompt_is_the_same(name: str) -> None:
    mixer = initialised(name).double()
    x = torch.randn(2, LENGTH, WIDTH, dtype=torch.float64)
    ours = mixer.prefill(x)
    use_fla(mixer, Standin().operators())
    torch.testing.assert_close(mixer.prefill(x), ours, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("operator", "keys", "called"),
    [("delta_rule", keys, 64 <= keys <= 256) for keys in (63, 64, 256, 257)]
    + [("linear_attention", keys, keys >= 64) for keys in (63, 64)]
    + [("taylor_attention", keys, keys <= 128) for keys in (128, 129)],
)
def test_keys_that_they_do_not_take_run_ours(operator: str, keys: int, called: bool) -> None:
    torch.manual_seed(5)
    q, k, v = torch.randn(3, 1, 2, LENGTH, keys, dtype=torch.float64).unbind()
    k = k / k.norm(dim=-1, keepdim=True)
    more: dict[str, Any] = {
        "delta_rule": {"beta": torch.rand(1, 2, LENGTH, dtype=torch.float64)},
        "linear_attention": {"log_decay": torch.tensor([-0.1, -0.3], dtype=torch.float64), "keep_state": False},
        "taylor_attention": {"keep_state": False},
    }[operator]
    theirs, ours = Standin(), next(one for one in REPLACED if one.__name__ == operator)
    found = getattr(theirs.operators(), operator)(q, k, v, **more)[0]
    tolerance = 1e-5 if operator == "taylor_attention" else 1e-10
    torch.testing.assert_close(found, ours(q, k, v, **more)[0], rtol=tolerance, atol=tolerance)
    assert bool(theirs.called) == called


@pytest.mark.parametrize(
    ("operator", "per_position"), [("delta_rule", True), ("linear_attention", True), ("linear_attention", False)]
)
def test_decays_per_position_run_ours_where_they_refuse_them(operator: str, per_position: bool) -> None:
    torch.manual_seed(6)
    q, k, v = torch.randn(3, 1, 2, LENGTH, 64, dtype=torch.float64).unbind()
    decay = -torch.rand(1, 2, LENGTH, dtype=torch.float64) if per_position else torch.tensor([-0.1, -0.3]).double()
    more = {"beta": torch.rand(1, 2, LENGTH, dtype=torch.float64)} if operator == "delta_rule" else {}
    theirs = Standin()
    operators = replace(theirs.operators(), scalar_decays=False)
    getattr(operators, operator)(q, k / k.norm(dim=-1, keepdim=True), v, log_decay=decay, **more)
    assert bool(theirs.called) != per_position


@pytest.mark.usefixtures("fla_models")
def test_the_standins_are_their_references() -> None:
    """Their references compute in float32 and scale by 1/√K."""
    from fla.ops.delta_rule.naive import delta_rule_recurrence
    from fla.ops.gated_delta_rule.naive import naive_recurrent_gated_delta_rule
    from fla.ops.generalized_delta_rule.dplr.naive import dplr_recurrence
    from fla.ops.gla.naive import naive_recurrent_gla
    from fla.ops.kda.naive import naive_recurrent_kda
    from fla.ops.linear_attn.naive import naive_recurrent_linear_attn
    from fla.ops.retention.naive import naive_retention
    from fla.ops.simple_gla.naive import naive_recurrent_simple_gla

    torch.manual_seed(4)
    q, k, v, g = torch.randn(4, 2, LENGTH, 2, 8).unbind()
    g, beta = -g.abs(), torch.rand(2, LENGTH, 2)
    k = k / k.norm(dim=-1, keepdim=True)
    heads_first: list[Any] = [x.transpose(1, 2) for x in (q, k, v, beta)]
    corrected: list[Any] = [x.transpose(1, 2) for x in (q, k, v, -k, k * beta[..., None], g)]
    gamma = torch.log1p(-torch.exp2(-5.0 - torch.arange(2)))
    standin = Standin()
    for ours, theirs in (
        (standin.chunk_gla(q, k, v, g), naive_recurrent_gla(q, k, v, g)[0]),
        (standin.chunk_delta_rule(q, k, v, beta), delta_rule_recurrence(*heads_first)[0].transpose(1, 2)),
        (
            standin.chunk_gated_delta_rule(q, k, v, g[..., 0], beta),
            naive_recurrent_gated_delta_rule(q, k, v, beta, g[..., 0])[0],
        ),
        (standin.chunk_kda(q, k, v, g, beta), naive_recurrent_kda(q, k, v, g, beta)[0]),
        (
            standin.chunk_rwkv7(q, g, k, v, -k, k * beta[..., None], scale=8**-0.5),
            dplr_recurrence(*corrected)[0].transpose(1, 2),
        ),
        (standin.chunk_simple_gla(q, k, v, g[..., 0]), naive_recurrent_simple_gla(q, k, v, g[..., 0])[0]),
        (standin.chunk_simple_gla(q, k, v), naive_recurrent_linear_attn(q, k, v)[0]),
        (standin.chunk_simple_gla(q, k, v, g_gamma=gamma), naive_retention(*heads_first[:3]).transpose(1, 2)),
    ):
        torch.testing.assert_close(ours[0], theirs, rtol=1e-5, atol=1e-5)


def model(architecture: str, layers: int = 2, width: int = 32) -> ArgapForCausalLM:
    torch.manual_seed(0)
    sizes = {"hidden_size": width, "num_hidden_layers": layers, "vocab_size": 64, "seq_len": 128}
    return ArgapForCausalLM(build_config(architecture, **sizes))


def test_fla_is_refused_where_it_cannot_run(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu, cuda, bfloat16 = torch.device("cpu"), torch.device("cuda"), torch.bfloat16
    with pytest.raises(ArgapError, match="no operator for Attention; use `backend=native`"):
        choose_backend("fla", model("attention"), cuda, bfloat16)
    with pytest.raises(ArgapError, match="needs a GPU, found cpu"):
        choose_backend("fla", model("gla"), cpu, bfloat16)
    with pytest.raises(ArgapError, match="its delta rule has no float32"):
        choose_backend("fla", model("delta_net"), cuda, torch.float32)
    monkeypatch.setitem(sys.modules, "fla.models", None)  # as if not installed
    with pytest.raises(ArgapError, match=r"needs flash-linear-attention .* `pip install 'argap\[fla\]'"):
        choose_backend("fla", model("gla"), cuda, bfloat16)
    assert choose_backend("auto", model("gla"), cuda, bfloat16) == "native"
    monkeypatch.setattr(FlaOperators, "load", Standin().operators)
    assert choose_backend("auto", model("gla"), cuda, bfloat16) == "fla"
    assert choose_backend("auto", model("gla"), cpu, bfloat16) == "native"
    assert choose_backend("native", model("gla"), cuda, bfloat16) == "native"
    assert choose_backend("auto", model("based", layers=3), cuda, bfloat16) == "fla"  # of its mixers one has one


def test_a_run_records_its_backend_and_keeps_it(
    toy_values: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = Standin()
    monkeypatch.setattr(FlaOperators, "load", theirs.operators)
    values = toy_values | {"architecture": "gla", "steps": 4, "warmup_steps": 1, "checkpoint_every": 2}
    config, native = load_config(None, values), load_config(None, values | {"backend": "native"})
    with monkeypatch.context() as patch:
        patch.setattr(fla_operators, "_check_runs", lambda *_: None)  # as on a GPU
        ours = train(native, tmp_path / "native")
        assert ours.backend == "native"
        assert not theirs.called
        run = train(config, tmp_path / "run")
    assert theirs.called == {"chunk_gla"}
    assert run.backend == "fla"
    assert run.finished is not None
    assert ours.finished is not None
    assert run.finished.loss == pytest.approx(ours.finished.loss, abs=1e-4)

    written = tmp_path / "run" / "train.json"
    write_record(written, msgspec.structs.replace(run, finished=None))
    with pytest.raises(MismatchError, match="holds a run with backend fla, asked for native"):
        train(native, tmp_path / "run")
    with pytest.raises(ArgapError, match="needs a GPU, found cpu"):  # auto resumes what was started
        train(config, tmp_path / "run")
    write_record(written, msgspec.structs.replace(run, finished=None, backend=None))  # a file that omits it
    assert train(config, tmp_path / "run").backend == "native"
    assert read_record(written, TrainRecord).backend == "native"


def untraced(function: Callable[..., Any]) -> FlaOperators:
    """Every operator is ``function``, called outside the graphs of `torch.compile`."""
    outside: Any = torch.compiler.disable(function)
    return FlaOperators(**{field.name: outside for field in fields(FlaOperators) if field.name != "scalar_decays"})


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the compiler, about torch's own code
def test_layers_share_their_compiled_code() -> None:
    """An operator that cannot be traced splits each layer; more layers do not add graphs, and the loss is the same."""
    from torch._dynamo.utils import counters

    ids = torch.randint(64, (2, 17))
    graphs = []
    for layers in (2, 6):
        net = model("gla", layers)
        use_fla(net, untraced(Standin().chunk_gla))
        objective = Objective(net.train(), torch.float32)
        plain = objective(ids[:, :-1], ids[:, 1:])[0]
        objective.compile_parts()
        counters.clear()
        compiled = objective(ids[:, :-1], ids[:, 1:])[0]
        compiled.backward()
        torch.testing.assert_close(compiled, plain, rtol=1e-5, atol=1e-5)
        graphs.append(counters["stats"]["unique_graphs"])
    assert graphs[0] == graphs[1]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the compiler, about torch's own code
def test_layers_run_with_code_compiled_earlier() -> None:
    """The first graph of RWKV-7 returns two views of one linear map: its values, for the operator and for the bonus."""
    from torch._dynamo.utils import counters
    from torch._inductor.utils import fresh_cache

    ids = torch.randint(64, (2, 17))
    losses = []
    with fresh_cache():
        for _ in range(2):
            net = model("rwkv7", layers=1, width=64)
            use_fla(net, untraced(Standin().chunk_rwkv7))
            objective = Objective(net.train(), torch.bfloat16)
            objective.compile_parts()  # forgets the code in memory, as if in a new process
            counters.clear()
            loss = objective(ids[:, :-1], ids[:, 1:])[0]
            loss.backward()
            losses.append(loss.item())
    assert losses[0] == losses[1]
    assert counters["inductor"]["fxgraph_cache_hit"] > 0
    assert counters["inductor"]["fxgraph_cache_miss"] == 0


@pytest.mark.filterwarnings("ignore")  # of the compiler, about torch's own code
def test_layers_are_compiled_without_the_autograd_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._functorch import config

    found = []

    def compile_fx(graph: torch.fx.GraphModule, inputs: list[torch.Tensor], **options: Any) -> Callable[..., Any]:
        found.append(config.enable_autograd_cache)
        return graph.forward

    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", compile_fx)
    before, net, ids = config.enable_autograd_cache, model("gla", layers=1), torch.randint(64, (2, 17))
    plain = net(ids).logits
    compile_layers(net)
    torch.testing.assert_close(net(ids).logits, plain)
    assert found
    assert not any(found)
    assert config.enable_autograd_cache == before


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", MIXERS)
def test_on_a_gpu_their_operator_and_ours_agree(name: str, dtype: torch.dtype) -> None:
    """Output and gradients of a mixer in ``dtype`` are as near to ours in float64 as ours in ``dtype``, or nearer.

    mLSTM's gradients have an error of 0.08 in bfloat16 by either.
    """
    if dtype == torch.float32 and MIXERS[name][0](WIDTH).operator in DELTA_RULES:
        pytest.skip("their delta rules have no float32")
    mixer = initialised(name).cuda()
    x, weights = torch.randn(2, 2, 200, WIDTH, device="cuda").unbind()
    exact = results(mixer.double(), x.double(), weights.double())
    mixer.float()
    with torch.autocast("cuda", dtype, enabled=dtype != torch.float32):
        ours = results(mixer, x, weights)
        use_fla(mixer)
        theirs = results(mixer, x, weights)
    for actual, own, expected in zip(theirs, ours, exact, strict=True):
        errors = [float((each.double() - expected).norm() / expected.norm().clamp_min(1e-3)) for each in (actual, own)]
        assert errors[0] < max(3 * TOLERANCE[dtype], 1.1 * errors[1])


@pytest.mark.gpu
@pytest.mark.parametrize("architecture", ["gla", "delta_net", "retnet", "linear_attention", "based"])
def test_on_a_gpu_200_steps_have_the_same_loss(architecture: str) -> None:
    """At thrice the learning rate training is chaotic: weights that differ by 10⁻⁴ of their size, all else equal, part
    by 0.03 on average with GLA."""
    text = torch.randint(64, (50,), generator=torch.Generator().manual_seed(1)).repeat(400).numpy()
    config = load_config(
        None,
        {"tokenizer": "", "data": [""], "architecture": architecture, "steps": 200, "seq_len": 128, "batch_size": 8}
        | {"compile": "false", "lr": 1e-3},
    )
    curves = []
    for backend in ("native", "fla"):
        net = model(architecture, layers=3, width=256 if architecture == "retnet" else 128)  # keys of 64 in RetNet
        if backend == "fla":
            use_fla(net)
        trainer = Trainer(net, config, Parallel(0, 1, torch.device("cuda")))
        windows = Windows(text, 128, 0)
        curves.append(torch.stack([trainer.step(windows, step)[0] for step in range(200)]).cpu())
    assert (curves[0] - curves[1]).abs().mean() < 0.02
