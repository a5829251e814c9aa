"""Scoring with transformers' models whose mixers are not attention alone, compared with transformers itself.

    PYTHONPATH=. python benchmarks/hybrids.py [--models "mamba2;OLMoE 1B-7B"] [--without-peers] [--json FILE]

On a GPU: random weights in bfloat16, 8 windows of 2,048 tokens (4 for the mixtures of `PUBLISHED`). argap's batch
(trunk, head, log-prob and most likely token of every position) is compared with the model's own logits, as transformers
computes them in PyTorch and, where flash-linear-attention or another package with kernels is installed, with that.
argap is also measured in the batch that its scorer takes by itself, 64 windows, for as many windows as the others.
Times are lowest medians after a first call that never counts; a way whose second call takes over `SLOW_MS` is measured
by that call. Memory is the peak above the weights. The limit is the time of the products with the weights at the rate
of a large matrix product measured in the same run. The error is that of the log-probs of one window against the same
weights in float32 in PyTorch, in nats.

``--smoke`` runs four layers of each model on the CPU, to see that all rows run.
"""

import copy
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from measured import parser, save
from score import PACKAGES, accuracy, by_all_logits, head_of, milliseconds, windows_of
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig

from argap.checkpoints.rebinding import called, choice_of, rebind, use_torch_on_cpu
from argap.models.hub.registry import give_back
from argap.scoring.batches import AUTO_BATCH_TOKENS, Batches

BATCH, LENGTH, CHECKED = 8, 2048, 1
SMOKE_LAYERS, SMOKE_BATCH, SMOKE_LENGTH, SMOKE_VOCABULARY = 4, 2, 96, 512
SLOW_MS = 1000.0
COUNTED = 16
"""Tokens whose products with the weights are counted."""
VOCABULARY, WIDTH, INNER, HEADS = 50_304, 1024, 2752, 16
PRODUCT = 8192
"""Rows and columns of the matrix product whose rate is the limit."""

Config = Callable[[int], dict[str, Any]]
"""Takes the number of layers, returns the fields that a family needs besides `COMMON`."""
COMMON = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "intermediate_size": INNER,
    "num_attention_heads": HEADS,
    "num_key_value_heads": HEADS,
    "max_position_embeddings": LENGTH,
    "tie_word_embeddings": True,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
MAMBA2 = {"mamba_n_heads": 32, "mamba_d_head": 64, "mamba_d_state": 128, "mamba_n_groups": 1}
DELTA = {
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 8,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "head_dim": 128,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
}


def every(period: int, layers: int, rare: str, usual: str = "linear_attention") -> list[str]:
    """Return the types of layers: each ``period``-th is ``rare``, and at least two are."""
    period = min(period, layers // 2)
    return [rare if (layer + 1) % period == 0 else usual for layer in range(layers)]


def hybrid_mamba(layers: int, **sizes: Any) -> dict[str, Any]:
    """Return Zamba's fields: layers that share one block of attention after every six."""
    return {**sizes, "layers_block_type": every(6, layers, "hybrid")}


def nemotron_h(layers: int) -> dict[str, Any]:
    types = ["linear_attention", "mlp", "full_attention", "mlp", "linear_attention", "mlp"] * -(-layers // 6)
    sizes = {"mamba_num_heads": 32, "ssm_state_size": 128, "n_groups": 8, "head_dim": 64, "mamba_head_dim": 64}
    return {**sizes, "layers_block_type": types[:layers]}


ROWS: dict[str, tuple[int, Config]] = {
    "mamba2": (24, lambda n: {"num_heads": 32, "head_dim": 64, "n_groups": 1, "state_size": 128}),
    "bamba": (24, lambda n: {**MAMBA2, "attn_layer_indices": list(range(min(5, n - 1), n, 6))}),
    "granitemoehybrid": (
        24,
        lambda n: {
            **MAMBA2,
            "num_local_experts": 0,
            "shared_intermediate_size": INNER,
            "layer_types": every(6, n, "full_attention"),
        },
    ),
    "zamba2": (24, partial(hybrid_mamba, mamba_d_state=64, n_mamba_heads=32, mamba_headdim=64)),
    "falcon_h1": (24, lambda n: {**MAMBA2, "mamba_n_heads": 16, "mamba_d_ssm": 1024}),
    "nemotron_h": (24, nemotron_h),
    "kimi_linear": (
        24,
        lambda n: {
            "layer_types": every(4, n, "full_attention"),
            "mlp_layer_types": ["dense"] * n,
            "linear_num_heads": 8,
            "linear_head_dim": 128,
            **dict.fromkeys(("qk_nope_head_dim", "v_head_dim"), 64),
            "qk_rope_head_dim": 32,
            "kv_lora_rank": 256,
        },
    ),
    "qwen3_next": (
        24,
        lambda n: {**DELTA, "layer_types": every(4, n, "full_attention"), "mlp_only_layers": list(range(n))},
    ),
    "olmo_hybrid": (
        22,
        lambda n: {
            "linear_num_key_heads": 8,
            "linear_num_value_heads": 8,
            "linear_key_head_dim": 96,
            "linear_value_head_dim": 192,
            "layer_types": every(4, n, "full_attention"),
        },
    ),
    "qwen3_5_text": (24, lambda n: {**DELTA, "layer_types": every(4, n, "full_attention")}),
    "lfm2": (
        20,
        lambda n: {"layer_types": every(4, n, "full_attention", "conv"), "block_auto_adjust_ff_dim": False},
    ),
    "gemma3_text": (24, lambda n: {"head_dim": 64, "sliding_window": 512}),
    "llama": (24, lambda n: {}),
    "mamba": (48, lambda n: {"intermediate_size": 2 * WIDTH, "time_step_rank": 64}),
    "falcon_mamba": (48, lambda n: {"intermediate_size": 2 * WIDTH, "time_step_rank": 64}),
    "xlstm": (24, lambda n: {"num_heads": 4, "embedding_dim": WIDTH, "num_blocks": n}),
    "recurrent_gemma": (24, lambda n: {"lru_width": WIDTH, "attention_window_size": LENGTH, "head_dim": 64}),
    "rwkv": (24, lambda n: {"attention_hidden_size": WIDTH, "intermediate_size": 4 * WIDTH, "context_length": LENGTH}),
    "minimax": (
        24,
        lambda n: {
            "head_dim": 64,
            "num_local_experts": 4,
            "num_experts_per_tok": 1,
            "intermediate_size": INNER // 4,
            "layer_types": every(4, n, "full_attention"),
        },
    ),
    "jamba": (24, lambda n: {"num_experts": 1, "num_experts_per_tok": 1, "mamba_dt_rank": 64}),
    "zamba": (24, partial(hybrid_mamba, mamba_dt_rank=64)),
    "olmoe": (16, lambda n: {"num_experts": 32, "num_experts_per_tok": 4, "intermediate_size": 352}),
    "qwen3_moe": (
        16,
        lambda n: {
            "num_experts": 32,
            "num_local_experts": 32,
            "num_experts_per_tok": 4,
            "moe_intermediate_size": 352,
            "head_dim": 64,
        },
    ),
}
"""By the model type: layers, and what the configuration has besides `COMMON`."""
PUBLISHED_BATCH = 4
PUBLISHED: dict[str, tuple[str, dict[str, int]]] = {
    "OLMoE 1B-7B": (
        "olmoe",
        {
            "hidden_size": 2048,
            "intermediate_size": 1024,
            "num_hidden_layers": 16,
            "num_attention_heads": 16,
            "num_key_value_heads": 16,
            "num_experts": 64,
            "num_experts_per_tok": 8,
            "vocab_size": 50_304,
        },
    ),
    "Qwen3-30B-A3B, 12 layers": (
        "qwen3_moe",
        {
            "hidden_size": 2048,
            "moe_intermediate_size": 768,
            "num_hidden_layers": 12,
            "num_attention_heads": 32,
            "num_key_value_heads": 4,
            "head_dim": 128,
            "num_experts": 128,
            "num_local_experts": 128,
            "num_experts_per_tok": 8,
            "vocab_size": 151_936,
        },
    ),
}
"""Mixtures of experts in the shapes of their published ``config.json``, in batches of `PUBLISHED_BATCH`."""


def main() -> None:
    flags = parser(__doc__)
    flags.add_argument("--models", help="rows, separated by semicolons; default: all")
    flags.add_argument("--without-peers", action="store_true", help="measure argap alone")
    flags.add_argument("--smoke", action="store_true", help="a few layers on the CPU")
    arguments = flags.parse_args()
    names = arguments.models.split(";") if arguments.models else [*ROWS, *(() if arguments.smoke else PUBLISHED)]
    rows: list[dict[str, Any]] = []
    device = "cpu" if arguments.smoke else "cuda"
    rate = rate_of_products(device)
    for name in names:
        rows.append({"model": name})
        try:
            with torch.inference_mode():
                rows[-1] |= measured(name, device, rate, peers=not arguments.without_peers)
        except Exception as error:  # goes on to the next row
            rows[-1]["failed"] = reason(error)
            print(f"{name:16} {rows[-1]['failed']}", flush=True)
        save(arguments.json, PACKAGES, product_tflops=rate / 1e12, rows=rows)


def config_of(name: str, *, smoke: bool) -> PretrainedConfig:
    give_back()
    if name in PUBLISHED:
        family, sizes = PUBLISHED[name]
        return AutoConfig.for_model(family, **sizes)
    layers, more = ROWS[name]
    layers = SMOKE_LAYERS if smoke else layers
    plain: Any = AutoConfig.for_model(name)
    common = {key: value for key, value in COMMON.items() if hasattr(plain, key)}
    own = {"num_hidden_layers": layers, **more(layers)}
    return type(plain)(**common | own | ({"vocab_size": SMOKE_VOCABULARY} if smoke else {}))


def measured(name: str, device: str, rate: float, *, peers: bool = True) -> dict[str, Any]:
    """Return the row of a model; a way that fails, by want of memory or otherwise, says why in one line."""
    batch, length = (BATCH, LENGTH) if device == "cuda" else (SMOKE_BATCH, SMOKE_LENGTH)
    batch = PUBLISHED_BATCH if name in PUBLISHED else batch
    torch.manual_seed(0)
    config = config_of(name, smoke=device == "cpu")
    with torch.device(device):
        dtype = torch.bfloat16 if device == "cuda" else torch.float32
        model: Any = AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
        ids = torch.randint(3, config.vocab_size, (batch, length))
    if device == "cpu":
        use_torch_on_cpu(model)
    row: dict[str, Any] = {"shape": f"B {batch}, T {length}", "parameters": model.num_parameters()}
    with counted_products(model) as products:
        model(input_ids=ids[:1, :COUNTED], use_cache=False)
    row["limit_ms"] = 1e3 * products() / (COUNTED * rate) * ids.numel()
    print(f"{name:16} {row['parameters'] / 1e6:.0f}M parameters, limit {row['limit_ms']:.3g} ms", flush=True)
    exact = logprobs_in_float32(model, ids)
    for way, run in ways(name, model, ids, peers=peers):
        try:
            row[way] = run(exact)
            told = " ".join(f"{key} {value:.4g}" for key, value in row[way].items())
        except Exception as error:  # a benchmark goes on to its next row
            row[way] = told = reason(error)
        print(f"{name:16} {way:16} {told}", flush=True)
        if device == "cuda":
            torch.cuda.empty_cache()
    return row


def reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:200]


Run = Callable[[torch.Tensor], dict[str, float]]


def ways(name: str, model: Any, ids: torch.Tensor, *, peers: bool) -> Iterator[tuple[str, Run]]:
    """Yield each implementation; the last one patches ``model`` in place."""

    def own(some: Any, exact: torch.Tensor) -> dict[str, float]:
        return timed(lambda: by_all_logits(some, ids)) | accuracy(by_all_logits(some, ids[:CHECKED]), exact)

    if peers:
        yield "transformers", partial(own, in_pytorch(model))
    others = packages(model)
    if peers and others and ids.is_cuda:
        yield "with " + ", ".join(sorted(others)), partial(own, model)

    def argap(exact: torch.Tensor) -> dict[str, float]:
        batches = Batches(model, windows_of(ids), ids.device.type, len(ids), name)
        found = timed(lambda: batches.logprobs(ids))
        trunk = timed(lambda: model.base_model(input_ids=ids, use_cache=False))
        head = {} if batches.head is None else {"head_ms": timed(head_of(batches, ids))["ms"]}
        found |= accuracy(batches.logprobs(ids[:CHECKED]).logprob[:, : exact.shape[1]], exact)
        return found | {"trunk_ms": trunk["ms"]} | head | in_own_batch(batches, ids)

    yield "argap", argap


def in_own_batch(batches: Batches, ids: torch.Tensor) -> dict[str, float]:
    """Measure the batch that the scorer takes by itself, whose work hides that of launching kernels.

    Milliseconds for as many windows as ``ids`` has; empty on the CPU.
    """
    if not ids.is_cuda:
        return {}
    times = AUTO_BATCH_TOKENS["cuda"] // ids.numel()
    found = timed(lambda: batches.logprobs(ids.repeat(times, 1)))
    return {"own_batch_ms": found["ms"] / times, "own_batch_gb": found["peak_gb"]}


def packages(model: Any) -> set[str]:
    """Return the packages whose kernels transformers has chosen for the model."""
    choices = filter(None, map(choice_of, called(model).values()))
    return {choice.package for choice in choices if choice.chosen is not choice.plain}


def in_pytorch(model: Any) -> Any:
    """Return a model of the same weights whose mixers run transformers' PyTorch forms."""
    same = copy.deepcopy(model, {id(parameter): parameter for parameter in model.parameters()})
    choices = {name: choice for name, function in called(same).items() if (choice := choice_of(function))}
    rebind(same, {name: lambda _, plain=choice.plain: filtered(plain) for name, choice in choices.items()})
    return same


def filtered(plain: Callable[..., Any]) -> Callable[..., Any]:
    """Drop the options that only a package's function takes, as transformers does."""
    known = plain.__code__.co_varnames[: plain.__code__.co_argcount]
    return lambda *given, **named: plain(*given, **{key: value for key, value in named.items() if key in known})


def logprobs_in_float32(model: Any, ids: torch.Tensor) -> torch.Tensor:
    wide = in_pytorch(copy.deepcopy(model).float())
    return torch.cat([by_all_logits(wide, row[None]) for row in ids[:CHECKED]])


@contextmanager
def counted_products(model: nn.Module) -> Iterator[Callable[[], float]]:
    """Count the FLOPs of the products with weights in the block, the head's included; of experts, those in use."""
    flops = 0.0

    def linear(module: Any, given: Any, result: Any) -> None:
        nonlocal flops
        flops += 2 * given[0].numel() * module.out_features

    def experts(module: Any, given: Any, result: Any) -> None:
        nonlocal flops
        chosen = getattr(config, "num_experts_per_tok", None) or getattr(config, "num_experts_per_token", 1)
        for parameter in module.parameters(recurse=False):
            if parameter.dim() == 3:
                flops += 2 * chosen * parameter[0].numel() * given[0].numel() / given[0].shape[-1]

    config: Any = getattr(model, "config", None)
    hooks = [
        module.register_forward_hook(linear if isinstance(module, nn.Linear) else experts)
        for module in model.modules()
        if isinstance(module, nn.Linear) or type(module).__name__.endswith("Experts")
    ]
    try:
        yield lambda: flops
    finally:
        for hook in hooks:
            hook.remove()


def rate_of_products(device: str) -> float:
    """Return the FLOP per second of a large square matrix product."""
    size, dtype = (PRODUCT, torch.bfloat16) if device == "cuda" else (512, torch.float32)
    a, b = torch.randn(2, size, size, device=device, dtype=dtype).unbind()
    return 2 * size**3 / (1e-3 * timed(lambda: a @ b)["ms"])


def timed(function: Callable[[], Any]) -> dict[str, float]:
    """Measure milliseconds and the peak of memory above the weights; what is slow is measured once.

    The first call never counts, because it compiles kernels and chooses their launch configurations.
    """
    on_gpu = torch.cuda.is_available()
    before = 0
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    seconds(function)
    second = 1e3 * seconds(function)
    if not on_gpu:
        return {"ms": second}
    peak = torch.cuda.max_memory_allocated() - before
    return {"ms": second if second > SLOW_MS else milliseconds(function), "peak_gb": peak / 1e9}


def seconds(function: Callable[[], Any]) -> float:
    begun = time.perf_counter()
    kept = function()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    del kept
    return time.perf_counter() - begun


if __name__ == "__main__":
    main()
