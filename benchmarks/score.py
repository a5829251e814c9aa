"""Scoring with whole models, compared with what a user would run instead.

    PYTHONPATH=. python benchmarks/score.py [--models "Llama 360M,gla"] [--json benchmarks/results/score.json]
    PYTHONPATH=. python benchmarks/score.py --kl --models "Llama 1.3B,Llama 7B" [--json FILE]

On a GPU: randomly initialised models in bfloat16, 8 windows of 2,048 tokens. argap's batch (trunk, head, the log-prob
and the most likely token of every position) is compared with Hugging Face models as they are, as Liger patches them and
with torch.compile of trunk and head; native models with their trunk before its kernels were fused, and models of
flash-linear-attention, where it is installed, with argap's native form of the same weights. Times are lowest medians
of `do_bench`, for native models also on the device alone; memory is the peak above the weights. The accuracy is that
of the log-probs against the same weights in float32: mean absolute difference and bias, in nats. On a CPU: tokens per
second of the GPT-2 shape in float32 on a text, compared with lm-eval's ``loglikelihood_rolling``, which returns one
number per document.

With ``--kl``, two models of one shape: each scored alone, then the first with its KL from the second, as `argap score
--kl` does it; ``times both`` is the time over that of scoring the two.
"""

import copy
import statistics
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from measured import DEMO, parser, save, timed
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PretrainedConfig

from argap.checkpoints.find import find_checkpoint
from argap.checkpoints.load import load_model
from argap.evaluation.windows import EvaluationSet
from argap.scoring.batches import Batches
from argap.scoring.fused import liger_patches

BATCH, LENGTH = 8, 2048


def decoder(
    family: str, vocabulary: int, width: int, inner: int, layers: int, heads: int, **options: Any
) -> PretrainedConfig:
    return AutoConfig.for_model(
        family,
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        max_position_embeddings=LENGTH,
        **options,
    )


GPT2 = partial(AutoConfig.for_model, "gpt2", vocab_size=50304)
SHAPES: dict[str, Callable[[], PretrainedConfig]] = {
    "GPT-2 124M": partial(GPT2, n_positions=LENGTH),
    "Llama 360M": partial(decoder, "llama", 49152, 960, 2560, 32, 15, num_key_value_heads=5, tie_word_embeddings=True),
    "Qwen3 0.6B": partial(
        decoder, "qwen3", 151936, 1024, 3072, 28, 16, num_key_value_heads=8, head_dim=128, tie_word_embeddings=True
    ),
    "Llama 1.3B": partial(decoder, "llama", 50304, 2048, 5504, 24, 16),
    "Llama 7B": partial(decoder, "llama", 32000, 4096, 11008, 32, 32),
    "Pythia 410M": partial(decoder, "gpt_neox", 50304, 1024, 4096, 24, 16),
}
NATIVE = ("attention", "retnet", "hyena", "rwkv4_channel", "mamba", "h3", "base_conv", "delta_net", "gla")
FLA = {
    "FLA GLA": ("GLA", {"num_heads": 4}),
    "FLA DeltaNet": ("DeltaNet", {"num_heads": 8}),
    "FLA RetNet": ("RetNet", {"num_heads": 4, "hidden_ratio": 4, "expand_v": 1.0}),
}
"""Models of flash-linear-attention: the class and the fields that differ from the size."""
WIDTH, LAYERS, VOCABULARY = 1024, 24, 50_257
"""Of the native models: the size ``360m``."""
CHECKED = 2
"""Windows whose log-probs are compared with float32."""
TEXT = "stdlib:heldout"
CPU_LENGTH, CPU_BATCH, CPU_TOKENS = 1024, 2, 4096
ROUNDS = 3
AGREED, TRIES = 1.01, 8
"""Two medians that differ by less than this factor agree; how often a time is measured at most."""
PACKAGES = ("torch", "triton", "transformers", "liger_kernel", "fla_core", "lm_eval", "numpy")


def main() -> None:
    flags = parser(__doc__)
    flags.add_argument("--models", help="comma-separated rows; default: all")
    flags.add_argument("--windows", type=int, default=BATCH, metavar="N", help="windows in a batch (%(default)s)")
    flags.add_argument("--length", type=int, default=LENGTH, metavar="N", help="tokens in a window (%(default)s)")
    flags.add_argument("--without-compile", action="store_true", help="leave torch.compile out")
    flags.add_argument("--kl", action="store_true", help="models of transformers beside a reference")
    arguments = flags.parse_args()
    every = [*SHAPES] if arguments.kl else [*SHAPES, *NATIVE, *(FLA if find_spec("fla") else ())]
    names = arguments.models.split(",") if arguments.models else every
    rows: list[dict[str, Any]] = []
    with torch.inference_mode():
        if arguments.kl:
            found = on_pairs(names, "cuda" if torch.cuda.is_available() else "cpu")
        else:
            shape = (arguments.windows, arguments.length)
            found = on_gpu(names, shape, not arguments.without_compile) if torch.cuda.is_available() else on_cpu()
        for model, shape, (way, figures) in found:
            if not rows or rows[-1]["model"] != model:
                rows.append({"model": model, "shape": shape})
            rows[-1][way] = figures
            print(f"{model:14} {way:26}", *(f"{key} {value:.4g}" for key, value in figures.items()), flush=True)
            save(arguments.json, PACKAGES, rows=rows)


Way = tuple[str, dict[str, float]]
"""An implementation, and what is measured of it."""


def on_gpu(names: list[str], shape: tuple[int, int], compiles: bool) -> Iterator[tuple[str, str, Way]]:
    """Measure milliseconds, peak memory and accuracy of argap and of each alternative for each model and shape."""
    for name in names:
        torch.manual_seed(0)
        ids = torch.randint(1000, shape, device="cuda")
        if name in SHAPES:
            ways = on_hub_model(name, ids, compiles)
        else:
            ways = on_fla_model(name, ids) if name in FLA else on_native_model(name, ids)
        for way in ways:
            yield name, f"B {shape[0]}, T {shape[1]}", way


def on_hub_model(name: str, ids: torch.Tensor, compiles: bool) -> Iterator[Way]:
    """Measure a model of transformers: plain, with Liger, compiled, and after argap has fused it in place."""
    with torch.device("cuda"):
        model = AutoModelForCausalLM.from_config(SHAPES[name](), dtype=torch.bfloat16).eval()
    exact = in_float32(model, ids)

    def trunk_of(some: Any) -> Callable[[], Any]:
        return lambda: some.base_model(input_ids=ids, use_cache=False)

    def by_path(some: Any) -> dict[str, float]:
        return measure(lambda: by_all_logits(some, ids)) | accuracy(by_all_logits(some, ids[:CHECKED, :LENGTH]), exact)

    yield "HF path", by_path(model)
    yield "trunk of HF", measure(trunk_of(model))
    liger = liger_patches()
    if model.config.model_type in liger.MODEL_TYPE_TO_APPLY_LIGER_FN:
        with family_restored(model):
            patched = copy.deepcopy(model)
            liger._apply_liger_kernel_to_instance(patched)
            yield "Liger path", by_path(patched)
            yield "trunk of Liger", measure(trunk_of(patched))
            del patched
    if compiles:
        torch._dynamo.reset()
        compiled = torch.compile(model.base_model)
        head = torch.compile(logprobs_and_top1)
        weight = model.get_output_embeddings().weight

        def by_compiler() -> Any:
            hidden = compiled(input_ids=ids, use_cache=False).last_hidden_state
            return [head(h, weight, t) for h, t in zip(hidden, ids, strict=True)]

        yield "torch.compile", measure(by_compiler)
        yield "trunk under torch.compile", measure(lambda: compiled(input_ids=ids, use_cache=False))
        torch._dynamo.reset()
    with family_restored(model):
        batches = Batches(model, windows_of(ids), "cuda", len(ids), name)
        yield "trunk of argap", measure(trunk_of(model))
        yield "head of argap", measure(head_of(batches, ids))
        yield "argap", by_argap(batches, ids, exact)


@contextmanager
def family_restored(model: Any) -> Iterator[None]:
    """Restore at the end the rotary function and classes that a patch replaces in the module of the model's family.

    Otherwise the next model of the family would run them as its plain path.
    """
    family = sys.modules[type(model).__module__]
    before = dict(vars(family))
    try:
        yield
    finally:
        for name, own in before.items():
            setattr(family, name, own)


def head_of(batches: Batches, ids: torch.Tensor) -> Callable[[], Any]:
    """Return a function that runs the part of a batch after the trunk, on the device."""
    hidden = batches.model.base_model(input_ids=ids, use_cache=False).last_hidden_state.flatten(0, 1)
    head, targets = batches.head, ids.roll(-1, dims=1).flatten()
    assert head is not None
    return lambda: head.logprobs(hidden, targets)


def on_native_model(name: str, ids: torch.Tensor) -> Iterator[Way]:
    """Measure a native model with and without the fused kernels around its mixers."""
    from argap.models.modeling import ArgapForCausalLM
    from argap.models.presets import build_config

    config = build_config(
        name, hidden_size=WIDTH, num_hidden_layers=LAYERS, vocab_size=VOCABULARY, seq_len=ids.shape[1]
    )
    # Outside inference mode, as argap loads it: filters of inference tensors are not cached.
    with torch.inference_mode(False), torch.device("cuda"):
        model: Any = ArgapForCausalLM(config)
        model = model.to(torch.bfloat16).eval()
    exact = in_float32(model, ids)
    batches = Batches(model, windows_of(ids), "cuda", len(ids), name)
    yield "unfused", by_references(lambda: by_argap(batches, ids, exact))
    yield "argap", by_argap(batches, ids, exact) | measure_device(lambda: batches.logprobs(ids))


def on_fla_model(name: str, ids: torch.Tensor) -> Iterator[Way]:
    """Measure a model of flash-linear-attention, and argap on the same weights.

    Its first calls choose launch configurations, which takes up to a minute on a fresh machine and is not counted.
    """
    import fla.models  # pyright: ignore[reportMissingImports]

    from argap.models.fla.autotuning import compile_at_once

    compile_at_once()
    family, options = FLA[name]
    shape = {"hidden_size": WIDTH, "num_hidden_layers": LAYERS, "vocab_size": VOCABULARY, "tie_word_embeddings": True}
    config = getattr(fla.models, f"{family}Config")(**shape, **options)
    with torch.device("cuda"):
        theirs: Any = getattr(fla.models, f"{family}ForCausalLM")(config).to(torch.bfloat16).eval()
    with tempfile.TemporaryDirectory() as folder:
        theirs.save_pretrained(folder)
        checkpoint = find_checkpoint(folder)
        with torch.inference_mode(False):
            wide = load_model(checkpoint, dtype=torch.float32, device="cuda", backend="native")
            model = load_model(checkpoint, dtype=torch.bfloat16, device="cuda", backend="native")
        exact = in_float32(wide, ids)
    found = by_all_logits(theirs, ids[:CHECKED, :LENGTH])
    yield "FLA path", measure(lambda: by_all_logits(theirs, ids)) | accuracy(found, exact)
    yield "trunk of FLA", measure(lambda: theirs.model(input_ids=ids, use_cache=False))
    batches = Batches(model, windows_of(ids), "cuda", len(ids), name)
    yield "argap", by_argap(batches, ids, exact) | measure_device(lambda: batches.logprobs(ids))


def on_pairs(names: list[str], device: str) -> Iterator[tuple[str, str, Way]]:
    """Measure each model and its reference alone, and the model with its KL from the reference."""
    rows, length = (BATCH, LENGTH) if device == "cuda" else (CPU_BATCH, CPU_LENGTH)
    for name in names:
        torch.manual_seed(0)
        ids = torch.randint(1000, (rows, length), device=device)
        pair, alone = [], []
        for which in ("model", "reference"):
            with torch.device(device):
                dtype = torch.bfloat16 if device == "cuda" else torch.float32
                model = AutoModelForCausalLM.from_config(SHAPES[name](), dtype=dtype).eval()
            pair.append(Batches(model, windows_of(ids), device, rows, name))
            alone.append(took(shards(pair[-1]), device))
            yield name, f"B {rows}, T {length}", (which, alone[-1])
        pair[0].follow(pair[1])
        both = took(shards(pair[0]), device)
        both["times both"] = both["ms"] / sum(each["ms"] for each in alone)
        yield name, f"B {rows}, T {length}", ("both with KL", both)


def took(function: Callable[[], Any], device: str) -> dict[str, float]:
    """Measure as `measure` does; on a CPU the median milliseconds of a few calls."""
    if device == "cuda":
        return measure(function)
    return {"ms": 1000 * statistics.median(timed(function)[0].wall for _ in range(ROUNDS))}


def by_argap(batches: Batches, ids: torch.Tensor, exact: torch.Tensor) -> dict[str, float]:
    found = batches.logprobs(ids[:CHECKED]).logprob[:, : exact.shape[1]]
    return measure(shards(batches)) | accuracy(found, exact)


def shards(batches: Batches) -> Callable[[], None]:
    """Return a function that scores all windows like the scorer, reading a shard while the device works on the next."""
    windows = range(batches.data.windows)
    queued = deque([batches.score(windows)])

    def next_shard() -> None:
        queued.append(batches.score(windows))
        queued.popleft().arrays()

    return next_shard


def by_references(function: Callable[[], Any]) -> Any:
    """Call ``function`` with the kernels around the mixers replaced by their references."""
    from argap.kernels.fused import gated_norm, gated_product, residual_norm, rotary, token_shift
    from argap.models.mixers import rwkv4

    modules: tuple[Any, ...] = (gated_norm, gated_product, residual_norm, rotary, rwkv4, token_shift)
    chosen = residual_norm.runs_kernels
    for module in modules:
        module.runs_kernels = lambda *tensors: False
    try:
        return function()
    finally:
        for module in modules:
            module.runs_kernels = chosen


def in_float32(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """Compute the log-probs at the start of the first windows with the same weights in float32."""
    wide = copy.deepcopy(model).float()
    return torch.cat([by_all_logits(wide, row[None]) for row in ids[:CHECKED, :LENGTH]])


def accuracy(found: torch.Tensor, exact: torch.Tensor) -> dict[str, float]:
    difference = (found.float() - exact).double()
    return {"error_nats": float(difference.abs().mean()), "bias_nats": float(difference.mean())}


def by_all_logits(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """Compute the log-prob of every token as most scripts do."""
    logits = model(input_ids=ids, use_cache=False).logits[:, :-1]
    return logits.float().log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]


def logprobs_and_top1(hidden: torch.Tensor, weight: torch.Tensor, ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return log-prob and most likely token of one window ``hidden [T, D]``, as argap does."""
    logits = (hidden[:-1] @ weight.T).float()
    picked = logits.gather(-1, ids[1:, None])[:, 0]
    return picked - torch.logsumexp(logits, -1), logits.argmax(-1)


def measure(function: Callable[[], Any]) -> dict[str, float]:
    function()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    function()
    peak = torch.cuda.max_memory_allocated() - before
    return {"ms": milliseconds(function), "peak_gb": peak / 1e9}


def measure_device(function: Callable[[], Any]) -> dict[str, float]:
    """Measure milliseconds on the device alone, by a CUDA graph: without the host's time to launch kernels.

    Empty if the host waits for the device, which a graph cannot record. Not for models of transformers, which use
    another attention mask while a graph is captured.
    """
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            kept = function()
    except RuntimeError:
        return {}
    found = milliseconds(graph.replay)
    del kept
    return {"device_ms": found}


def milliseconds(function: Callable[[], Any]) -> float:
    """Return the lowest median of repeated `do_bench`: other load on the host only adds to a time.

    Repeats until the lowest two medians agree, or `TRIES` times.
    """
    from triton.testing import do_bench

    medians: list[Any] = []
    while len(medians) < TRIES:
        medians = sorted([*medians, do_bench(function, warmup=50, rep=200, return_mode="median")])
        if len(medians) > 1 and medians[1] < AGREED * medians[0]:
            break
    return medians[0]


def windows_of(ids: torch.Tensor) -> EvaluationSet:
    """Build an evaluation set with one window for each row of ids ``[B, T]``."""
    rows, length = ids.shape
    tokens = ids.flatten().int().cpu().numpy()
    return EvaluationSet(
        tokens=tokens,
        offsets=np.arange(rows + 1, dtype=np.int64) * length,
        document_ends=np.array([len(tokens)]),
        domains=["random"],
        sources=["random"],
        seq_len=length,
        packing="packed",
        eos=None,
        tokenizer="none",
        tokenizer_fingerprint="none",
    )


def on_cpu() -> Iterator[tuple[str, str, Way]]:
    """Measure tokens per second, the median over alternating rounds of the two implementations."""
    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM

    from argap.corpus import open_corpus
    from argap.evaluation.windows import build_evaluation_set
    from argap.text.tokenizer import load_tokenizer

    config = GPT2(n_positions=CPU_LENGTH)
    plain = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(DEMO / "tokenizer")
    data = build_evaluation_set(
        open_corpus(TEXT),
        load_tokenizer(DEMO / "tokenizer"),
        seq_len=CPU_LENGTH,
        packing="document",
        limit_tokens=CPU_TOKENS,
    )
    bounds = zip(data.offsets[:-1], data.offsets[1:], strict=True)
    texts = [tokenizer.decode(data.tokens[start:end].tolist()) for start, end in bounds]
    rolling: Any = HFLM(
        pretrained=plain, tokenizer=tokenizer, device="cpu", batch_size=CPU_BATCH, max_length=CPU_LENGTH
    )
    requests = [Instance("loglikelihood_rolling", {}, (text,), k) for k, text in enumerate(texts)]
    batches = Batches(copy.deepcopy(plain), data, "cpu", CPU_BATCH, "GPT-2 124M")
    ways: dict[str, Callable[[], Any]] = {
        "lm-eval": lambda: rolling.loglikelihood_rolling(requests, disable_tqdm=True),
        "argap": lambda: batches.score(range(data.windows)).arrays(),
    }
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(ROUNDS):
        for way, function in ways.items():
            seconds[way].append(timed(function)[0].wall)
    rates = {way: len(data.tokens) / statistics.median(taken) for way, taken in seconds.items()}
    shape = f"{len(data.tokens)} tokens, windows of {CPU_LENGTH}, {torch.get_num_threads()} threads"
    for way, rate in rates.items():
        yield "GPT-2 124M", shape, (way, {"tokens_per_s": rate, "times lm-eval": rate / rates["lm-eval"]})


if __name__ == "__main__":
    main()
