"""Training speed of `argap train` with its own operators and with flash-linear-attention's, as ratios to attention.

    PYTHONPATH=. python benchmarks/train.py [--rows "attention native,gla fla"] [--json benchmarks/results/train.json]

A speed row is one architecture at the size ``360m`` with one backend: bfloat16, 8 windows of 2,048 random tokens a
step. ``tokens_per_s`` comes from the median step after warm-up; ``ratio`` divides it by attention's in the same run.
``first_step_s`` is the time from the start of the process to the end of the first step: imports, the model,
compilation and the choice of launch configurations. ``attention whole`` is compiled as one graph instead of layer by
layer. A parity row trains a smaller model on text for 200 steps with each backend, from the same weights on the same
windows.

Each row has a process and a time limit of its own, and the results are written after each. While a row is measured, the
next one imports and builds its model on the CPU. A whole run takes up to twenty minutes on an H200; rows that do not
fit into ``--limit`` seconds are left out. ``--cpu-check`` runs everything at tiny sizes on a CPU, where rows of
flash-linear-attention say that they need a GPU.
"""

import argparse
import copy
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measured import DEMO, parser, save, seconds_since_start

from argap.atomic import read_json, write_json
from argap.models import ArgapForCausalLM
from argap.models.presets import build_config
from argap.models.sizes import build_at
from argap.parallel import Parallel
from argap.train import DataSource, TrainConfig
from argap.train.fla_operators import choose_backend, use_fla
from argap.train.loop import Trainer
from argap.train.windows import Windows

ROWS: tuple[str, ...] = (
    "attention native",
    "delta_net fla",
    "gla fla",
    "parity gla",
    "parity delta_net",
    "retnet fla",
    "linear_attention fla",
    "based fla",
    "delta_net native",
    "gla native",
    "retnet native",
    "linear_attention native",
    "mamba native",
    "attention whole",
)
LIMITS = {"fla": 240, "native": 150, "whole": 100, "parity": 300}
"""Seconds that a row may take, by its type."""
PARITY_STEPS = 200
PACKAGES = ("torch", "triton", "transformers", "flash-linear-attention", "fla-core")
Process = subprocess.Popen[str]


@dataclass(frozen=True)
class Sizes:
    """Shapes of the rows."""

    speed: str
    """A size of `argap.models.sizes`, or ``tiny``."""
    batch: int
    length: int
    steps: int
    """Timed steps."""
    parity_width: int
    parity_layers: int
    parity_batch: int
    parity_length: int


ON_GPU = Sizes("360m", 8, 2048, 15, parity_width=512, parity_layers=8, parity_batch=8, parity_length=512)
ON_CPU = Sizes("tiny", 2, 64, 2, parity_width=32, parity_layers=2, parity_batch=2, parity_length=32)


def main() -> None:
    flags = parser(__doc__)
    flags.add_argument("--rows", help=f"comma-separated; default: {', '.join(ROWS)}")
    flags.add_argument("--limit", type=float, default=1200, help="seconds after which no further row starts [1200]")
    flags.add_argument("--cpu-check", action="store_true", help="tiny sizes on a CPU, to check that everything runs")
    flags.add_argument("--row", help=argparse.SUPPRESS)
    flags.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    arguments = flags.parse_args()
    if arguments.row:
        write_json(arguments.out, measured(arguments.row, ON_CPU if arguments.cpu_check else ON_GPU))
        return
    names = [name.strip() for name in arguments.rows.split(",")] if arguments.rows else list(ROWS)
    rows: list[dict[str, Any]] = []
    attention = None
    with tempfile.TemporaryDirectory() as folder:
        for name, row in results(names, Path(folder), arguments.cpu_check, arguments.limit):
            if name == "attention native":
                attention = row.get("tokens_per_s")
            if attention and "tokens_per_s" in row:
                row["ratio"] = round(row["tokens_per_s"] / attention, 3)
            rows.append({"row": name} | row)
            print(rows[-1], flush=True)
            save(arguments.json, PACKAGES, rows=rows)


def results(names: list[str], folder: Path, cpu_check: bool, limit: float) -> Iterator[tuple[str, dict[str, Any]]]:
    """The figures of each row by its own process. The next process has started and waits for a line on its input."""
    following = start(names[0], folder, cpu_check)
    for name, after in zip(names, [*names[1:], ""], strict=True):
        process, following = following, start(after, folder, cpu_check) if after else following
        try:
            yield name, outcome(name, process, folder)
        except BaseException:
            end(following)
            raise
        if after and seconds_since_start() > limit:
            end(following)
            print(f"not run, after {limit:.0f} s: {', '.join(names[names.index(after) :])}", flush=True)
            return


def start(name: str, folder: Path, cpu_check: bool) -> Process:
    """The process of a row; it writes ``NAME.json`` in ``folder``."""
    command = [sys.executable, __file__, "--row", name, "--out", str(folder / f"{name}.json")]
    with open(folder / f"{name}.log", "w") as log:
        return subprocess.Popen(
            [*command, *(["--cpu-check"] if cpu_check else [])],
            text=True,
            start_new_session=True,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
        )


def outcome(name: str, process: Process, folder: Path) -> dict[str, Any]:
    """The figures that the process of a row wrote, or the reason why there are none."""
    seconds = LIMITS["parity" if name.startswith("parity") else name.split()[1]]
    try:
        process.communicate("go\n", timeout=seconds)
    except subprocess.TimeoutExpired:
        return {"error": f"not finished within {seconds} s"}
    finally:
        end(process)
    if process.returncode:
        lines = (folder / f"{name}.log").read_text().strip().splitlines()
        return {"error": (lines or [f"exit status {process.returncode}"])[-1]}
    return read_json(folder / f"{name}.json")


def end(process: Process) -> None:
    """Kill a row's process, if it still runs, and those of its compiler."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def measured(name: str, sizes: Sizes) -> dict[str, Any]:
    """The figures of one row, taken once a line on the standard input says that the GPU is free."""
    cuda = sizes is ON_GPU
    if cuda and not torch.cuda.is_available():
        raise SystemExit("no GPU; try --cpu-check")
    first, second = name.split()
    if first == "parity":
        model, other, config, windows = prepare_parity(second, sizes)
        sys.stdin.readline()
        return parity(model, other, config, windows, cuda)
    model, config = prepare_speed(first, second, sizes, cuda)
    imported = seconds_since_start()
    sys.stdin.readline()
    found = speed(model, config, second == "whole", sizes, cuda)
    return found | {"first_step_s": round(found["first_step_s"] + imported, 1)}


def train_config(length: int, batch: int, architecture: str, cuda: bool) -> TrainConfig:
    return TrainConfig(
        tokenizer=str(DEMO / "tokenizer"),
        data=(DataSource("stdlib:heldout"),),
        architecture=architecture,
        seq_len=length,
        batch_size=batch,
        steps=PARITY_STEPS,
        compile="auto" if cuda else "false",
    )


def build(architecture: str, size: str, vocabulary: int, length: int, width: int, layers: int) -> ArgapForCausalLM:
    torch.manual_seed(0)
    if size != "tiny":
        return ArgapForCausalLM(build_at(architecture, size, seq_len=length))
    shape = {"hidden_size": width, "num_hidden_layers": layers, "vocab_size": vocabulary, "seq_len": length}
    return ArgapForCausalLM(build_config(architecture, **shape))


def prepare_speed(architecture: str, backend: str, sizes: Sizes, cuda: bool) -> tuple[ArgapForCausalLM, TrainConfig]:
    """The model on the CPU with its operators, and the configuration."""
    model = build(architecture, sizes.speed, 128, sizes.length, sizes.parity_width, sizes.parity_layers)
    if backend == "fla":
        choose_backend("fla", model, torch.device("cuda" if cuda else "cpu"), torch.bfloat16)
        use_fla(model)
    return model, train_config(sizes.length, sizes.batch, architecture, cuda)


def speed(model: ArgapForCausalLM, config: TrainConfig, whole: bool, sizes: Sizes, cuda: bool) -> dict[str, Any]:
    """Seconds to the first step, tokens per second, peak memory."""
    begun = time.monotonic()
    device = torch.device("cuda" if cuda else "cpu")
    tokens = sizes.batch * sizes.length
    ids = np.random.default_rng(0).integers(min(50_000, model.config.vocab_size), size=20 * tokens + 1)
    windows = Windows(ids, sizes.length, seed=0)
    if whole and cuda:
        trainer = Trainer(model, replace(config, compile="false"), Parallel(0, 1, device))
        trainer.objective.compile()
    else:
        trainer = Trainer(model, config, Parallel(0, 1, device))
    trainer.step(windows, 0).tolist()  # waits for the GPU
    first = time.monotonic() - begun
    mark = time.monotonic()
    trainer.step(windows, 1).tolist()
    count = min(sizes.steps, max(3, int(10 / (time.monotonic() - mark))))  # within some ten seconds
    for step in range(2, 5):
        trainer.step(windows, step)
    trainer.step(windows, 5).tolist()
    times, loss = [], 0.0
    for step in range(6, 6 + count, 3):
        mark = time.monotonic()
        last = [trainer.step(windows, each) for each in range(step, step + 3)][-1]
        loss, *_ = last.tolist()
        times.append((time.monotonic() - mark) / 3)
    return {
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "shape": f"B {sizes.batch}, T {sizes.length}",
        "first_step_s": first,
        "step_ms": round(1000 * statistics.median(times), 1),
        "tokens_per_s": round(tokens / statistics.median(times)),
        "peak_gb": round(torch.cuda.max_memory_allocated() / 1e9, 1) if cuda else None,
        "loss": round(loss, 4),
    }


def prepare_parity(architecture: str, sizes: Sizes) -> tuple[ArgapForCausalLM, ArgapForCausalLM, TrainConfig, Windows]:
    """Two equal models, the configuration, and a text's windows."""
    from argap.corpus import open_corpus  # here, because a speed row's time to the first step counts its imports
    from argap.corpus.tokenize import token_documents
    from argap.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(str(DEMO / "tokenizer"))
    ids = np.concatenate([document.ids for document in token_documents(open_corpus("stdlib:heldout"), tokenizer)])
    shape = sizes.parity_length, sizes.parity_width, sizes.parity_layers
    model = build(architecture, "tiny", tokenizer.vocab_size, *shape)
    config = train_config(sizes.parity_length, sizes.parity_batch, architecture, sizes is ON_GPU)
    return model, copy.deepcopy(model), config, Windows(ids, sizes.parity_length, seed=0)


def parity(
    model: ArgapForCausalLM, other: ArgapForCausalLM, config: TrainConfig, windows: Windows, cuda: bool
) -> dict[str, Any]:
    """Losses of 200 steps by both backends, in nats; on a CPU of ten steps by our own twice."""
    if cuda:
        use_fla(other)
    curves = []
    for each in (other, model):
        trainer = Trainer(each, config, Parallel(0, 1, torch.device("cuda" if cuda else "cpu")))
        losses = [trainer.step(windows, step)[0] for step in range(PARITY_STEPS if cuda else 10)]
        curves.append(torch.stack(losses).double().cpu())
    theirs, ours = curves
    last = slice(-20, None)
    return {
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "shape": f"B {config.batch_size}, T {config.seq_len}, {len(ours)} steps",
        "mean_abs_difference": round((theirs - ours).abs().mean().item(), 5),
        "largest_difference": round((theirs - ours).abs().max().item(), 5),
        "loss_first": [round(curve[0].item(), 4) for curve in curves],
        "loss_last_20_steps": {
            "fla": round(theirs[last].mean().item(), 4),
            "native": round(ours[last].mean().item(), 4),
        },
    }


if __name__ == "__main__":
    main()
