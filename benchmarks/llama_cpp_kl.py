"""KL(reference ‖ model) of two GGUF files by ``argap score --kl`` and from llama.cpp's logits, on the same tokens.

    PYTHONPATH=. python benchmarks/llama_cpp_kl.py --pair REF.gguf MODEL.gguf --llama-cpp VENV/bin/python

``VENV`` holds llama-cpp-python. Tokens and protocol are those of llama.cpp's ``perplexity --kl-divergence``: the second
half of chunks of 512 tokens, and as the error the standard deviation over tokens divided by √(n - 1). Its mean is given
twice: exactly, from both models' logits in float64, and as the tool has it, which stores the reference's log-probs in
16 bits, none less than 16 below the largest, and skips those below -16.

llama.cpp's kernels round activations to 8 bits beside quantised weights, argap multiplies by the dequantised weights in
float32. ``llama_model_quantize`` with the type ``ALL_F32`` writes such weights as a file of their own, on which both
compute the same.
"""

import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from measured import LLAMA_CPP, parser, save

CHUNK = 512
LLAMA = """
paths, given, out, threads = sys.argv[1:3], sys.argv[3], sys.argv[4], int(sys.argv[5])
before, windows, first = json.load(open(given))
size = len(before) + max(map(len, windows))
reference, model = (Llama(path, n_ctx=size, n_batch=size, n_threads=threads, n_threads_batch=threads, type_k=0,
                          type_v=0, logits_all=True, verbose=False) for path in paths)
def logprobs(llama, window):
    llama.reset()
    llama.eval(before + window)
    logits = np.array(llama.scores[len(before) + first - 1 : len(before) + len(window) - 1], dtype=np.float64)
    logits -= logits.max(-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))
def stored(p):
    high = p.max(-1, keepdims=True)
    low = np.maximum(p.min(-1, keepdims=True), high - 16)
    scale = (high - low) / 65535
    return low + scale * np.round(np.maximum(p - low, 0) / scale)
exact, tool = [], []
for window in windows:
    p, q = logprobs(reference, window), logprobs(model, window)
    exact += (np.exp(p) * (p - q)).sum(-1).tolist()
    p = stored(p)
    tool += np.where(p > -16, np.exp(p) * (p - q), 0).sum(-1).tolist()
json.dump({"exact": exact, "tool": tool, "version": llama_cpp.__version__}, open(out, "w"))
"""


def by_argap(reference: Path, model: Path, windows: int, out: Path) -> tuple[list[int], list[list[int]], np.ndarray]:
    """Return what stands before each window, the tokens of whole chunks, and the KL of their second halves."""
    import pyarrow.parquet as pq

    import argap
    from argap.records import ids_of
    from argap.tokens.runs import open_run

    asked: dict[str, Any] = {"data": "stdlib:heldout", "seq_len": CHUNK, "limit_tokens": CHUNK * windows}
    argap.score({"model": model}, f"reference={reference}", kl=True, out=out, device="cpu", dtype="float32", **asked)
    table = pq.read_table(out / "model" / "tokens", columns=["pos", "token", "kl"])
    kl = table["kl"].to_numpy().reshape(windows, CHUNK)[:, CHUNK // 2 + 1 :]
    tokens = table["token"].to_numpy().reshape(windows, CHUNK).tolist()
    return list(ids_of(open_run(out / "model").record.identity.bos)), tokens, kl.ravel()


def mean(values: np.ndarray) -> dict[str, float]:
    """Return the mean and its error as llama.cpp has it, from tokens as if they were independent."""
    return {"mean": round(float(values.mean()), 6), "error": round(float(values.std() / (len(values) - 1) ** 0.5), 6)}


def compared(reference: Path, model: Path, python: str, windows: int, threads: int) -> dict[str, Any]:
    """Compare both means, and the divergences token by token."""
    with tempfile.TemporaryDirectory() as folder:
        before, tokens, own = by_argap(reference, model, windows, Path(folder, "runs"))
        given, out = Path(folder, "given.json"), Path(folder, "out.json")
        given.write_text(json.dumps([before, tokens, CHUNK // 2 + 1]))
        files = [str(path) for path in (reference, model, given, out)]
        subprocess.run([python, "-c", LLAMA_CPP + LLAMA, *files, str(threads)], check=True, capture_output=True)
        theirs = json.loads(out.read_text())
    exact = np.array(theirs["exact"])
    apart = np.abs(own - exact)
    return {
        "reference": reference.name,
        "model": model.name,
        "tokens": len(own),
        "argap": mean(own),
        "llama.cpp": mean(exact),
        "llama.cpp, 16 bits": mean(np.array(theirs["tool"])),
        "difference": {"mean_absolute": round(float(apart.mean()), 7), "largest": round(float(apart.max()), 7)},
        "llama-cpp-python": theirs["version"],
    }


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--pair", nargs=2, type=Path, action="append", required=True, metavar=("REF", "MODEL"))
    made.add_argument("--llama-cpp", required=True, help="Python with llama-cpp-python")
    made.add_argument("--windows", type=int, default=8)
    made.add_argument("--threads", type=int, default=2)
    asked = made.parse_args()
    pairs = [compared(one, other, asked.llama_cpp, asked.windows, asked.threads) for one, other in asked.pair]
    print(json.dumps(pairs, indent=1))
    save(asked.json, ("torch", "transformers", "gguf", "numpy"), pairs=pairs)


if __name__ == "__main__":
    main()
