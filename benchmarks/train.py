"""Training speed of `argap train` with its own operators and with flash-linear-attention's, as ratios to attention.

    PYTHONPATH=. python benchmarks/train.py [--rows "attention native,gla fla"] [--json benchmarks/results/train.json]
    PYTHONPATH=. python benchmarks/train.py --lengths [2048,4096] [--json benchmarks/results/train-lengths.json]
    PYTHONPATH=. python benchmarks/train.py --seeds cpu [--json benchmarks/results/train-seeds.json]

A speed row is one architecture at the size ``360m`` with one backend: bfloat16, 8 windows of 2,048 random tokens per
step. ``tokens_per_s`` comes from the median step after warm-up; ``ratio`` divides it by attention's in the same run.
``first_step_s`` is the time from the start of the process to the end of the first step: imports, the model,
compilation and the choice of launch configurations, which ``kernels_tuned`` kernels needed, since argap has none
recorded for them (``benchmarks/tune.py``). ``attention whole`` is compiled as one graph instead of layer by layer. A
parity row trains a smaller model on text for 200 steps with each backend, from the same weights on the same windows.

``--lengths`` measures speed rows over lengths, with equal tokens per step (arXiv 2406.06484, figure 4), each
as a ratio to attention at its length. All models take their first steps at once, which is where the time goes, and are
then timed one after another. A repeated command with the same ``--json`` measures what is missing.

``--seeds`` trains small models on Python's standard library, all from one seed: two in each setting of
``deterministic`` and of the number of CPU threads. A row says how far apart two are that differ in one thing or none.

Each model has a process and a time limit of its own, and the results are written after each row. Without ``--lengths``,
the next one imports and builds its model on the CPU while a row is measured. A whole run takes up to twenty minutes on
an H200, one over lengths up to five; rows that do not fit into ``--limit`` seconds are left out. ``--cpu-check`` runs
everything at tiny sizes on a CPU, where rows of flash-linear-attention say that they need a GPU.
"""

import argparse
import copy
import fcntl
import signal
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measured import DEMO, machine, parser, save, seconds_since_start
from train_rows import SEEDS, by_length, one_by_one, path_of, seeds

from argap.files.atomic import read_json, write_json
from argap.models import ArgapForCausalLM
from argap.models.fla import autotuning
from argap.models.fla.operators import choose_backend, use_fla
from argap.models.presets import build_config
from argap.models.sizes import build_at
from argap.runtime.torchrun import Parallel
from argap.train import DataSource, TrainConfig
from argap.train.loop import Trainer, Windows

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
LENGTH_ROWS = "attention native", "delta_net fla", "gla fla", "retnet fla"
LENGTHS = "2048,4096,8192,16384"
PARITY_STEPS = 200
PACKAGES = ("torch", "triton", "transformers", "flash-linear-attention", "fla-core")


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

    @property
    def tokens(self) -> int:
        """Per step of a speed row."""
        return self.batch * self.length

    def shape(self, length: int) -> str:
        """Of a step with windows of ``length``, in words."""
        return f"B {self.tokens // length}, T {length}"


ON_GPU = Sizes("360m", 8, 2048, 15, parity_width=512, parity_layers=8, parity_batch=8, parity_length=512)
ON_CPU = Sizes("tiny", 2, 64, 2, parity_width=32, parity_layers=2, parity_batch=2, parity_length=32)


def main() -> None:
    flags = parser(__doc__)
    flags.add_argument("--rows", help=f"comma-separated; default: {', '.join(ROWS)}")
    flags.add_argument("--lengths", nargs="?", const=LENGTHS, help=f"comma-separated [{LENGTHS}]")
    flags.add_argument("--seeds", metavar="DEVICE", help=f"trainings apart; --rows: architectures [{','.join(SEEDS)}]")
    flags.add_argument("--limit", type=float, default=1200, help="seconds after which no further row starts [1200]")
    flags.add_argument("--cpu-check", action="store_true", help="tiny sizes on a CPU, to check that everything runs")
    flags.add_argument("--row", help=argparse.SUPPRESS)
    flags.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    arguments = flags.parse_args()
    lengths = [int(length) for length in arguments.lengths.split(",")] if arguments.lengths else []
    sizes = ON_CPU if arguments.cpu_check else ON_GPU
    if arguments.row:
        measure_row(arguments.row, lengths, sizes, arguments.out)
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # ends the processes of the rows, too
    default = SEEDS if arguments.seeds else LENGTH_ROWS if lengths else ROWS
    names = [name.strip() for name in arguments.rows.split(",")] if arguments.rows else list(default)
    rows = measured_before(arguments.json) if lengths else []
    with tempfile.TemporaryDirectory() as folder:
        if arguments.seeds:
            found = seeds(names, arguments.seeds, Path(folder), arguments.cpu_check)
        elif lengths:
            done = {(row["row"], row["shape"]) for row in rows}
            missing = {name: [each for each in lengths if (name, sizes.shape(each)) not in done] for name in names}
            found = by_length(missing, Path(folder), arguments.cpu_check, arguments.limit)
        else:
            found = one_by_one(names, Path(folder), arguments.cpu_check, arguments.limit)
        for name, figures in found:
            rows.append({"row": name} | figures)
            add_ratios(rows)
            print(rows[-1], flush=True)
            save(arguments.json, PACKAGES, rows=rows)


def measured_before(path: Path | None) -> list[dict[str, Any]]:
    """Read the rows in a file, without failed ones, if the same versions measured them on the same GPU."""
    if path is None or not path.is_file():
        return []
    before, now = read_json(path), machine(PACKAGES)
    same = all(before["machine"].get(key) == now.get(key) for key in ("gpu", "versions"))
    return [row for row in before["rows"] if same and "error" not in row]


def add_ratios(rows: list[dict[str, Any]]) -> None:
    """Add to each speed row the ratio to attention's at the same shape, if known."""
    speeds = [row for row in rows if "tokens_per_s" in row]
    attention = {row["shape"]: row["tokens_per_s"] for row in speeds if row["row"] == "attention native"}
    for row in speeds:
        if row["shape"] in attention:
            row["ratio"] = round(row["tokens_per_s"] / attention[row["shape"]], 3)


def measure_row(name: str, lengths: list[int], sizes: Sizes, out: Path) -> None:
    """Write the figures of one row, taken once a line on the standard input says that the GPU is free."""
    cuda = sizes is ON_GPU
    if cuda and not torch.cuda.is_available():
        raise SystemExit("no GPU; try --cpu-check")
    first, second = name.split()
    if first == "parity":
        model, other, config, windows = prepare_parity(second, sizes)
        wait_for_turn()
        write_json(out, parity(model, other, config, windows, cuda))
        return
    model, config = prepare_speed(first, second, sizes, max(lengths, default=sizes.length), cuda)
    if lengths:
        speeds_by_length(model, config, lengths, sizes, out)
        return
    imported = seconds_since_start()
    wait_for_turn()
    begun = time.monotonic()
    trainer = new_trainer(model, config, second == "whole", cuda)
    windows = random_windows(trainer)
    trainer.step(windows, 0).tolist()  # waits for the GPU
    first_step = round(time.monotonic() - begun + imported, 1)
    tuned = {"kernels_tuned": len(list(autotuning.chosen_here()))} if second == "fla" else {}
    write_json(out, speed(trainer, windows, sizes, cuda) | {"first_step_s": first_step} | tuned)


def wait_for_turn() -> None:
    """Wait until a line on the standard input says that the GPU is free; the end of the input ends the process."""
    if not sys.stdin.readline():
        raise SystemExit("the benchmark was stopped")


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


def prepare_speed(
    architecture: str, backend: str, sizes: Sizes, length: int, cuda: bool
) -> tuple[ArgapForCausalLM, TrainConfig]:
    """Build the model on the CPU with its operators, and the configuration for windows of ``length``."""
    model = build(architecture, sizes.speed, 128, length, sizes.parity_width, sizes.parity_layers)
    if backend == "fla":
        choose_backend("fla", model, torch.device("cuda" if cuda else "cpu"), torch.bfloat16)
        use_fla(model)
    return model, train_config(length, sizes.tokens // length, architecture, cuda)


def new_trainer(model: ArgapForCausalLM, config: TrainConfig, whole: bool, cuda: bool) -> Trainer:
    """Build the trainer of a model compiled layer by layer, or as a ``whole``."""
    parallel = Parallel(0, 1, torch.device("cuda" if cuda else "cpu"))
    if not (whole and cuda):
        return Trainer(model, config, parallel)
    trainer = Trainer(model, replace(config, compile="false"), parallel)
    trainer.objective.compile()
    return trainer


def random_windows(trainer: Trainer) -> Windows:
    """Draw random tokens for twenty steps."""
    model: Any = trainer.model
    config = trainer.config
    count = 20 * config.batch_size * config.seq_len + 1
    ids = np.random.default_rng(0).integers(min(50_000, model.config.vocab_size), size=count)
    return Windows(ids, config.seq_len, seed=0)


def speeds_by_length(model: ArgapForCausalLM, config: TrainConfig, lengths: list[int], sizes: Sizes, out: Path) -> None:
    """Take the first step at each length, write ``out``, then write the figures of a length for each line on the input.

    Each length is compiled for its own shape, as a run of that length alone is; configurations are timed while no
    other process of this benchmark times its own.
    """
    torch._dynamo.config.automatic_dynamic_shapes = False
    take_turns(out.with_name("tuning"))
    cuda = sizes is ON_GPU
    whole = new_trainer(model, config, False, cuda)
    trainers = []
    for length in sorted(lengths):
        trainer = copy.copy(whole)  # shares the model, the optimizer and the compiled layers
        trainer.config = replace(config, seq_len=length, batch_size=sizes.tokens // length)
        trainer.share = trainer.micro = trainer.config.batch_size
        trainers.append((trainer, random_windows(trainer)))
        trainer.step(trainers[-1][1], 0).tolist()
        torch.cuda.empty_cache()
    write_json(out, {"ready_s": round(seconds_since_start(), 1)})
    for trainer, windows in trainers:
        wait_for_turn()
        write_json(path_of(out, trainer.config.seq_len), speed(trainer, windows, sizes, cuda))
        torch.cuda.empty_cache()


def take_turns(path: Path) -> None:
    """Time launch configurations only while holding the lock ``path``."""
    timed = autotuning.do_bench

    def alone(*arguments: Any, **options: Any) -> Any:
        with open(path, "w") as lock:  # closing it releases the lock
            fcntl.flock(lock, fcntl.LOCK_EX)
            return timed(*arguments, **options)

    autotuning.do_bench = alone


def speed(trainer: Trainer, windows: Windows, sizes: Sizes, cuda: bool) -> dict[str, Any]:
    """Measure tokens per second and peak memory after the first step."""
    if cuda:
        torch.cuda.reset_peak_memory_stats()
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
        "parameters": sum(parameter.numel() for parameter in trainer.model.parameters()),
        "shape": sizes.shape(windows.seq_len),
        "step_ms": round(1000 * statistics.median(times), 1),
        "tokens_per_s": round(sizes.tokens / statistics.median(times)),
        "peak_gb": round(torch.cuda.max_memory_allocated() / 1e9, 1) if cuda else None,
        "loss": round(loss, 4),
    }


def prepare_parity(architecture: str, sizes: Sizes) -> tuple[ArgapForCausalLM, ArgapForCausalLM, TrainConfig, Windows]:
    """Build two equal models, the configuration, and a text's windows."""
    from argap.corpus import open_corpus  # here, because a speed row's time to the first step counts its imports
    from argap.corpus.tokenize import token_documents
    from argap.text.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(str(DEMO / "tokenizer"))
    ids = np.concatenate([document.ids for document in token_documents(open_corpus("stdlib:heldout"), tokenizer)])
    shape = sizes.parity_length, sizes.parity_width, sizes.parity_layers
    model = build(architecture, "tiny", tokenizer.vocab_size, *shape)
    config = train_config(sizes.parity_length, sizes.parity_batch, architecture, sizes is ON_GPU)
    return model, copy.deepcopy(model), config, Windows(ids, sizes.parity_length, seed=0)


def parity(
    model: ArgapForCausalLM, other: ArgapForCausalLM, config: TrainConfig, windows: Windows, cuda: bool
) -> dict[str, Any]:
    """Compute losses of 200 steps with both backends, in nats; on a CPU, of ten steps with our own twice."""
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
