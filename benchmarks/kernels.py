"""Compare the kernels with their peers on one GPU, and with the limits of the hardware.

    PYTHONPATH=. python benchmarks/kernels.py linear_attention gla --json benchmarks/results/kernels.json

``cases()`` in ``kernel_cases/OP.py`` yields the cases of an op. Times are for the forward pass without gradients: the
median of `triton.testing.do_bench`, which flushes the L2 cache before each run, in the better of two rounds. The limit
is the larger of FLOPs / (rate of a bfloat16 matrix product) and bytes / (bandwidth of a copy), both measured in the
same process. A failing peer is listed with its error.
"""

import math
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from kernel_case import Case
from measured import machine, parser
from triton.testing import do_bench

from argap.files.atomic import write_json

CASES = Path(__file__).resolve().parent / "kernel_cases"
PEERS = ("flash-linear-attention", "fla-core", "liger-kernel", "cut-cross-entropy", "causal-conv1d")
MATRIX = 8192
COPIED = 2**32  # bytes


def main() -> None:
    known = sorted(path.stem for path in CASES.glob("*.py"))
    flags = parser(__doc__)
    flags.add_argument("ops", nargs="*", default=known, metavar="op", help=f"all by default: {', '.join(known)}")
    arguments = flags.parse_args()
    if unknown := set(arguments.ops) - set(known):
        flags.error(f"no cases for {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    if not torch.cuda.is_available():
        flags.error("needs a GPU")
    with torch.no_grad():
        about = machine(("torch", "triton", *PEERS)) | measure_rates()
        print(f"{about['gpu']}: {about['flops_per_s'] / 1e12:.0f} TFLOP/s, {about['bytes_per_s'] / 1e12:.2f} TB/s")
        rows = []
        for op in arguments.ops:
            for case in import_module(f"kernel_cases.{op}").cases():
                rows.append(row := measure(case, about))
                print(in_short(row), flush=True)
            if arguments.json:  # after each op, so that an interrupted run keeps its results
                write_json(arguments.json, {"machine": about, "rows": rows})


def measure_rates() -> dict[str, float]:
    """Measure the rates behind the limits."""
    a, b = (torch.randn(MATRIX, MATRIX, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    product = milliseconds(lambda: a @ b)
    source = torch.randn(COPIED // 4, device="cuda")
    target = torch.empty_like(source)
    copy = milliseconds(lambda: target.copy_(source))
    return {"flops_per_s": 2 * MATRIX**3 / product * 1e3, "bytes_per_s": 2 * COPIED / copy * 1e3}


def measure(case: Case, rates: dict[str, Any]) -> dict[str, Any]:
    """Measure error, time and memory of our kernel and of each peer."""
    limit = 1e3 * max(case.flops / rates["flops_per_s"], case.bytes / rates["bytes_per_s"])
    runs = {"ours": case.ours, **case.peers}
    results = {name: measure_one(function, case.check, limit) for name, function in runs.items()}
    ours = results.pop("ours")
    timed = {name: peer["ms"] for name, peer in results.items() if "ms" in peer}
    best = min(timed, key=timed.__getitem__, default=None)
    ratio = None if best is None or "ms" not in ours else timed[best] / ours["ms"]
    return {
        "op": case.op,
        "shape": case.shape,
        "flops": case.flops,
        "bytes": case.bytes,
        "limit_ms": limit,
        "ours": ours,
        "peers": results,
        "best_peer": best,
        "times_best_peer": ratio,
    }


def measure_one(function: Callable[[], Any], check: Callable[[Any], float], limit: float) -> dict[str, Any]:
    """Measure milliseconds, share of the limit, error, and memory in addition to the inputs."""
    try:
        error = check(function())
        if not math.isfinite(error):
            return {"failed": f"an error of {error}"}
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        function()
        torch.cuda.synchronize()
        extra = torch.cuda.max_memory_allocated() - before
        time = milliseconds(function)
    except Exception as failure:  # a failing peer is a result, too
        torch.cuda.synchronize()
        return {"failed": f"{type(failure).__name__}: {failure}".splitlines()[0]}
    return {"ms": time, "share_of_limit": limit / time, "error": error, "extra_bytes": extra}


def milliseconds(function: Callable[[], Any]) -> float:
    """Return the better of two rounds, because clocks and caches may be cold in the first."""
    rounds = [do_bench(function, warmup=25, rep=100, return_mode="median") for _ in range(2)]
    return min(rounds)  # pyright: ignore[reportReturnType, reportArgumentType]


def in_short(row: dict[str, Any]) -> str:
    """Format a row of the table: ours, then the peers from fastest to slowest."""
    peers = sorted(row["peers"].items(), key=lambda item: item[1].get("ms", float("inf")))
    parts = [one_in_short("ours", row["ours"]), *(one_in_short(name, peer) for name, peer in peers)]
    ratio = "" if row["times_best_peer"] is None else f"{row['times_best_peer']:5.2f}×"
    return f"{row['op']:18} {row['shape']:42} {ratio:6} {' | '.join(parts)}"


def one_in_short(name: str, result: dict[str, Any]) -> str:
    if "failed" in result:
        return f"{name} failed: {result['failed'][:80]}"
    return f"{name} {result['ms']:.4f} ms ({result['share_of_limit']:.0%}, error {result['error']:.1e})"


if __name__ == "__main__":
    main()
