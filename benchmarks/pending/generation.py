"""Generation with and without CUDA graphs in one process: rows of `argap models bench --generate` to $OUT/generation.json.

python generation.py OUT SECONDS [--tiny]
"""

import shutil
import sys
import time
from pathlib import Path

import torch

from argap.models.speed import measure, speed_cases
from argap.reports.speed import write_speed

out, limit, tiny = Path(sys.argv[1]), float(sys.argv[2]), "--tiny" in sys.argv
started = time.perf_counter()
size = {"hidden_size": 32, "num_hidden_layers": 5, "vocab_size": 64} if tiny else {
    "hidden_size": 1024, "num_hidden_layers": 24, "vocab_size": 50257}
options = {"device": "cpu", "dtype": "float32"} if tiny else {"device": "cuda", "dtype": "bfloat16"}
options |= {"compile": False, "backend": "auto"}
NAMES, BATCHES = ("attention", "based", "based_post", "mamba"), (1, 16, 128)
TOKENS = 12 if tiny else 256
LONG = "20x2" if tiny else "1024x128"


def case(name, shape):
    (found,) = speed_cases([name], training=None, generation=[shape], **size, **options)
    return found


# The most important rows first: Based against attention, then the others, then longer answers.
plan = [(name, f"{TOKENS}x{batch}", graphs) for batch in (128, 1, 16) for name in NAMES[:2] for graphs in (True, False)]
plan += [(name, f"{TOKENS}x{batch}", graphs) for batch in (128, 1, 16) for name in NAMES[2:] for graphs in (True, False)]
plan += [(name, LONG, True) for name in NAMES] + [(name, LONG, False) for name in NAMES[:2]]
rows, slowest = {}, 0.0


def order(key):
    name, shape, graphs = key
    length, batch = map(int, shape.split("x"))
    return length, batch, not graphs, NAMES.index(name)


for key in plan:
    if time.perf_counter() - started + 1.3 * slowest > limit:
        print(f"no time for {key}", flush=True)
        continue
    name, shape, graphs = key
    began = time.perf_counter()
    try:
        rows[key] = measure(case(name, shape), graphs=graphs)
    except torch.OutOfMemoryError as error:
        print(f"{key}: out of memory: {str(error).splitlines()[0]}", flush=True)
        continue
    finally:
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    row = rows[key]
    slowest = max(slowest, time.perf_counter() - began)
    print(f"{time.perf_counter() - started:.0f} s: {name} {shape} graphs={graphs}: recorded {row.graph}, "
          f"{row.tokens_per_s:,.0f} tokens/s, {1e3 * row.seconds / row.length:.2f} ms a token", flush=True)
    write_speed([rows[k] for k in sorted(rows, key=order)], out)
    shutil.move(out / "speed.json", out / "generation.json")

print(f"\ntokens/s (share of attention's), GB; {torch.cuda.get_device_name() if not tiny else 'CPU'}, torch {torch.__version__}")
for length_batch in [f"{TOKENS}x{batch}" for batch in BATCHES] + [LONG]:
    for graphs in (True, False):
        cells = []
        base = rows.get(("attention", length_batch, graphs))
        for name in NAMES:
            row = rows.get((name, length_batch, graphs))
            share = f" ({row.tokens_per_s / base.tokens_per_s:.2f})" if row and base else ""
            recorded = "" if row is None or row.graph == graphs else " NOT RECORDED"
            cells.append(f"{name} {row.tokens_per_s:,.0f}{share} {row.peak_bytes / 1e9:.1f}{recorded}" if row else f"{name} -")
        print(f"{length_batch:>9} {'graph' if graphs else 'plain'} | " + " | ".join(cells))
