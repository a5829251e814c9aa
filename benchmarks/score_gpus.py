"""Scoring on several GPUs: tokens per second under torchrun, compared with one GPU in the same run.

    PYTHONPATH=. python benchmarks/score_gpus.py [--gpus 1,2,4] [--tokens 16000000] [--json FILE]

Each row is the whole command ``argap score`` on a randomly initialised native model of the size ``360m`` (bfloat16,
windows of 2,048 random tokens from a ``.bin`` shard). ``scoring`` is the time that the run itself records, from the
first batch to the last shard; ``process`` adds start-up and the result. Every row must write the same log-probs to
within bfloat16's rounding: ``difference`` is the largest absolute one from the first row, in nats.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
from measured import DEMO, parser, save

WIDTH, LAYERS, LENGTH = 1024, 24, 2048


def main() -> None:
    flags = parser(__doc__)
    flags.add_argument("--gpus", default="1,2", help="comma-separated numbers of processes, one a GPU")
    flags.add_argument("--tokens", type=int, default=16_000_000)
    flags.add_argument("--model", default="gla")
    flags.add_argument("--width", type=int, default=WIDTH)
    flags.add_argument("--layers", type=int, default=LAYERS)
    arguments = flags.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        write_checkpoint(work / "model", arguments.model, arguments.width, arguments.layers)
        vocabulary = json.loads((work / "model" / "config.json").read_text())["vocab_size"]
        ids = np.random.default_rng(0).integers(4, vocabulary - 1, arguments.tokens)
        ids.astype(np.uint16).tofile(work / "text.bin")
        rows = [on(int(gpus), work) for gpus in arguments.gpus.split(",")]
    for row in rows:
        row["times one GPU"] = row["scoring tokens/s"] / rows[0]["scoring tokens/s"]
        print(row)
    model = f"{arguments.model}, width {arguments.width}, {arguments.layers} layers"
    packages = ("torch", "triton", "transformers", "numpy")
    save(arguments.json, packages, model=model, tokens=arguments.tokens, rows=rows)


def write_checkpoint(folder: Path, name: str, width: int, layers: int) -> None:
    """Write a randomly initialised native model with the demo's tokenizer."""
    from argap.models.modeling import ArgapForCausalLM
    from argap.models.presets import build_config
    from argap.text.tokenizer import load_tokenizer

    torch.manual_seed(0)
    tokenizer = load_tokenizer(DEMO / "tokenizer")
    config = build_config(
        name, hidden_size=width, num_hidden_layers=layers, vocab_size=tokenizer.vocab_size, seq_len=LENGTH
    )
    ArgapForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save(folder)


def on(gpus: int, work: Path) -> dict[str, Any]:
    """Score with ``gpus`` processes; measure tokens per second and the largest difference from one GPU's log-probs."""
    out = work / f"out{gpus}"
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(gpus)] if gpus > 1 else []
    command = [sys.executable, *launcher, "-m", "argap", "score", str(work / "model"), "--ref", str(work / "model")]
    command += ["--data", str(work / "text.bin"), "--seq-len", str(LENGTH), "--out", str(out)]
    started = time.perf_counter()
    subprocess.run(command, check=True, env=os.environ | {"PYTHONWARNINGS": "ignore"})
    process = time.perf_counter() - started
    (run,) = sorted(out.glob("**/run.json"))[:1]
    finished = json.loads(run.read_text())["finished"]
    scores, first = logprobs(run.parent), logprobs(next((work / "out1").glob("**/run.json"), run).parent)
    return {
        "gpus": gpus,
        "scoring s": finished["seconds"],
        "scoring tokens/s": finished["tokens per second"],
        "process s": process,
        "difference": float(np.nanmax(np.abs(scores - first))),
    }


def logprobs(run: Path) -> np.ndarray:
    parts = sorted((run / "tokens").glob("part-*.parquet"))
    return np.concatenate([pq.read_table(part, columns=["logprob"])["logprob"].to_numpy() for part in parts])


if __name__ == "__main__":
    main()
