"""Whole-model scoring compared with the usual implementation and with the trunk alone.

    PYTHONPATH=. python benchmarks/score.py [--json benchmarks/results/score.json]

On a GPU: randomly initialised models with the shapes of GPT-2 124M and Llama 360M, in bfloat16, on 8 windows of
2,048 tokens. argap's batch (trunk, head, log-probs and top-1) is compared with the Hugging Face path (all logits,
log-softmax in float32, gather) and with the trunk without a head. Times are medians of `do_bench`; memory is the peak
above the weights. On a CPU: tokens per second of the GPT-2 shape in float32 on a text, compared with lm-eval's
``loglikelihood_rolling``, which returns one number per document.
"""

import argparse
import copy
import platform
import statistics
import time
from collections.abc import Callable
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, LlamaConfig, PretrainedConfig

from argap.atomic import write_json
from argap.batches import Batches
from argap.evaluation import EvaluationSet

BATCH, LENGTH = 8, 2048
SHAPES: dict[str, PretrainedConfig] = {
    "GPT-2 124M": GPT2Config(vocab_size=50304, n_positions=LENGTH),
    "Llama 360M": LlamaConfig(
        vocab_size=49152,
        hidden_size=960,
        intermediate_size=2560,
        num_hidden_layers=32,
        num_attention_heads=15,
        num_key_value_heads=5,
        max_position_embeddings=LENGTH,
        tie_word_embeddings=True,
    ),
}
TEXT = "stdlib:heldout"
TOKENIZER = Path(__file__).resolve().parent.parent / "argap" / "demo" / "tokenizer"
CPU_LENGTH, CPU_BATCH, CPU_TOKENS = 1024, 2, 4096
ROUNDS = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="file to write the results to")
    arguments = parser.parse_args()
    on_gpu = torch.cuda.is_available()
    with torch.inference_mode():
        rows = [on_one_gpu(name, config) for name, config in SHAPES.items()] if on_gpu else [on_cpu()]
    for row in rows:
        print(row)
    if arguments.json:
        write_json(arguments.json, {"machine": machine(), "rows": rows})


def on_one_gpu(name: str, config: PretrainedConfig) -> dict[str, Any]:
    """Milliseconds and peak memory of argap, of the Hugging Face path and of the trunk."""
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).cuda().eval()
    ids = torch.randint(1000, (BATCH, LENGTH), device="cuda")
    ways: dict[str, Callable[[], Any]] = {
        "HF path": lambda: by_all_logits(model, ids),
        "trunk of HF": lambda: model.base_model(input_ids=ids, use_cache=False),
    }
    measured = {way: measure(function) for way, function in ways.items()}
    batches = Batches(model, windows_of(ids), "cuda", BATCH, name)  # fuses the activations of ``model`` in place
    ours, _ = batches.score(range(BATCH)).arrays()
    plain = by_all_logits(model, ids).cpu().numpy()
    error = float(np.abs(ours.reshape(BATCH, LENGTH)[:, 1:] - plain).mean())
    measured["trunk of argap"] = measure(ways["trunk of HF"])
    measured["argap"] = measure(lambda: batches.score(range(BATCH)).arrays())
    time_of_ours = measured["argap"]["ms"]
    return {
        "model": name,
        "shape": f"B {BATCH}, T {LENGTH}",
        **measured,
        "times HF path": measured["HF path"]["ms"] / time_of_ours,
        "times trunk of HF": time_of_ours / measured["trunk of HF"]["ms"],
        "mean difference from HF path, nats": error,
    }


def by_all_logits(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """The log-prob of every token, computed as most scripts do."""
    logits = model(input_ids=ids, use_cache=False).logits[:, :-1]
    return logits.float().log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]


def measure(function: Callable[[], Any]) -> dict[str, float]:
    from triton.testing import do_bench

    function()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    function()
    peak = torch.cuda.max_memory_allocated() - before
    return {"ms": do_bench(function, warmup=100, rep=400, return_mode="median"), "peak_gb": peak / 1e9}  # pyright: ignore[reportReturnType]


def windows_of(ids: torch.Tensor) -> EvaluationSet:
    """An evaluation set with one window for each row of ids ``[B, T]``."""
    rows, length = ids.shape
    tokens = ids.flatten().int().cpu().numpy()
    return EvaluationSet(
        tokens=tokens,
        offsets=np.arange(rows + 1, dtype=np.int64) * length,
        document=np.zeros_like(tokens),
        domains=["random"],
        sources=["random"],
        seq_len=length,
        packing="packed",
        eos=None,
        tokenizer="none",
        tokenizer_fingerprint="none",
    )


def on_cpu() -> dict[str, Any]:
    """Tokens per second, the median over alternating rounds of the two implementations."""
    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM

    from argap.corpus import open_corpus
    from argap.evaluation import build_evaluation_set
    from argap.tokenizer import load_tokenizer

    config = GPT2Config(vocab_size=50304, n_positions=CPU_LENGTH)
    plain = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(TOKENIZER)
    data = build_evaluation_set(
        open_corpus(TEXT),
        load_tokenizer(TOKENIZER),
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
            started = time.perf_counter()
            function()
            seconds[way].append(time.perf_counter() - started)
    rates = {way: len(data.tokens) / statistics.median(taken) for way, taken in seconds.items()}
    return {
        "model": "GPT-2 124M",
        "shape": f"{len(data.tokens)} tokens, windows of {CPU_LENGTH}, {torch.get_num_threads()} threads",
        **{way: {"tokens_per_s": rate} for way, rate in rates.items()},
        "times lm-eval": rates["argap"] / rates["lm-eval"],
    }


def machine() -> dict[str, Any]:
    found = {"date": datetime.now(UTC).isoformat(timespec="minutes"), "python": platform.python_version()}
    for package in ("torch", "triton", "transformers", "lm_eval", "numpy"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return {"device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu", "versions": found}


if __name__ == "__main__":
    main()
