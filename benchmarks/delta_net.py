"""DeltaNet's speed: its two forms, training by length at equal tokens, and generation by batch size.

    PYTHONPATH=. python benchmarks/delta_net.py forms training generation --json benchmarks/results/delta_net.json

``forms``: the layer's operator, chunk by chunk and position by position, at equal tokens and for several head sizes
(arXiv 2406.06484, figure 1, forward pass; FLA's also with gradients). ``training``: tokens per second of whole models
in training steps of equal tokens (its figure 4). ``generation``: tokens per second by batch size (second blog post on
the Zoology paper, section 3). Models have ``--hidden-size`` and ``--layers``; without a GPU all shapes are tiny, to try
the script. Peers of flash-linear-attention are measured where it is installed.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from argap.atomic import read_json, write_json
from argap.kernels.delta_rule import delta_rule
from argap.models.recurrence import delta_rule_step
from argap.models.speed import in_words, measure_apart, speed_cases
from argap.runs import environment

PARTS = ("forms", "training", "generation")
ROUNDS = 5


@dataclass(frozen=True)
class Shapes:
    """What is measured on a kind of device."""

    tokens: int
    """Tokens of every call of an operator: batch × length."""
    lengths: tuple[int, ...]
    head_sizes: tuple[int, ...]
    heads_width: int
    """Heads × head size."""
    stepped: int
    """Longest sequence that is timed position by position in PyTorch."""
    training: tuple[str, ...]
    generation: tuple[str, ...]
    hidden_size: int
    layers: int
    vocabulary: int
    trained: tuple[str, ...]
    generating: tuple[str, ...]


GPU = Shapes(
    tokens=2**15,
    lengths=(512, 1024, 2048, 4096, 8192, 16384),
    head_sizes=(64, 128, 256),
    heads_width=2048,
    stepped=2048,
    training=("2048x8", "4096x4", "8192x2", "16384x1"),
    generation=("512x1", "512x16", "512x64", "512x256"),
    hidden_size=1024,
    layers=24,
    vocabulary=50_304,
    trained=("attention", "delta_net", "delta_net_window", "gla", "retnet", "mamba"),
    generating=("attention", "delta_net", "based", "based_post", "mamba"),
)
CPU = Shapes(
    tokens=256,
    lengths=(64, 128),
    head_sizes=(8, 16),
    heads_width=32,
    stepped=64,
    training=("64x2", "128x1"),
    generation=("16x1", "16x4"),
    hidden_size=32,
    layers=2,
    vocabulary=64,
    trained=("attention", "delta_net"),
    generating=("attention", "delta_net", "based_post"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="part", help=f"any of {', '.join(PARTS)}; all by default")
    parser.add_argument("--json", type=Path, help="file for the results; parts that are not measured now stay in it")
    parser.add_argument("--hidden-size", type=int, help="width of the models")
    parser.add_argument("--layers", type=int, help="layers of the models")
    parser.add_argument("--compile", action="store_true", help="train with torch.compile, as `argap train` does")
    arguments = parser.parse_args()
    if unknown := [part for part in arguments.parts if part not in PARTS]:
        parser.error(f"no part {unknown[0]}; there are {', '.join(PARTS)}")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    shapes = GPU if device == "cuda" else CPU
    size = {
        "hidden_size": arguments.hidden_size or shapes.hidden_size,
        "num_hidden_layers": arguments.layers or shapes.layers,
    }
    name = torch.cuda.get_device_name() if device == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    result: dict[str, Any] = {"machine": {"device": name, **environment()}, **size}
    if arguments.json and arguments.json.is_file():
        result = read_json(arguments.json) | result
    measured: dict[str, Callable[[], Iterator[dict[str, Any]]]] = {
        "forms": partial(forms, shapes, torch.device(device)),
        "training": partial(models, "training", shapes, device, size, compile=arguments.compile),
        "generation": partial(models, "generation", shapes, device, size),
    }
    for part in arguments.parts or PARTS:
        result[part] = rows = []
        for row in measured[part]():
            rows.append(row)
            print(part, row.pop("text"), flush=True)
            if arguments.json:  # after each row, so that an interrupted run keeps its results
                write_json(arguments.json, result)


def forms(shapes: Shapes, device: torch.device) -> Iterator[dict[str, Any]]:
    """The operator in its chunkwise and recurrent forms: a row per head size and length."""
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    for size in shapes.head_sizes:
        for length in shapes.lengths:
            batch, heads = max(1, shapes.tokens // length), shapes.heads_width // size
            q, k, v = (torch.randn(batch, length, heads, size, device=device, dtype=dtype) for _ in range(3))
            q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
            beta = torch.rand(batch, length, heads, device=device, dtype=dtype)
            runs = {"chunkwise": partial(chunkwise, q, k, v, beta), **peers(q, k, v, beta)}
            if length <= shapes.stepped:
                runs["recurrent"] = partial(recurrent, q, k, v, beta)
            ms = {name: milliseconds(run, device) for name, run in runs.items()}
            shape = f"B {batch}, T {length}, H {heads}, D {size}"
            text = f"{shape}: " + ", ".join(f"{name} {value:.3f} ms" for name, value in ms.items())
            yield {"batch": batch, "length": length, "heads": heads, "head_size": size, "ms": ms, "text": text}


@torch.inference_mode()
def chunkwise(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, beta: torch.Tensor) -> torch.Tensor:
    """Ours; all ``[B, T, H, D]`` but ``beta [B, T, H]``."""
    q, k, v, beta = (x.transpose(1, 2) for x in (q, k, v, beta))
    return delta_rule(q, k, v, beta)[0].transpose(1, 2)


@torch.inference_mode()
def recurrent(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, beta: torch.Tensor) -> torch.Tensor:
    """Position by position in PyTorch, as generation does."""
    state = q.new_zeros(q.shape[0], q.shape[2], q.shape[3], v.shape[3], dtype=torch.float32)
    outputs = []
    for t in range(q.shape[1]):
        y, state = delta_rule_step(q[:, t], k[:, t], v[:, t], beta[:, t], state)
        outputs.append(y.to(v.dtype))
    return torch.stack(outputs, dim=1)


def peers(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, beta: torch.Tensor) -> dict[str, Callable[[], Any]]:
    """Both forms of flash-linear-attention, forward and with gradients; none without it or without a GPU."""
    if not q.is_cuda:
        return {}
    try:
        from fla.ops.delta_rule import chunk_delta_rule, fused_recurrent_delta_rule
    except ImportError:
        return {}
    leaves = [x.detach().requires_grad_() for x in (q, k, v, beta)]

    def with_gradients(op: Callable[..., Any]) -> None:
        op(*leaves, scale=1.0)[0].sum().backward()

    found: dict[str, Callable[[], Any]] = {}
    for name, op in (("FLA chunkwise", chunk_delta_rule), ("FLA recurrent", fused_recurrent_delta_rule)):
        found[name] = partial(op, q, k, v, beta, scale=1.0)
        found[f"{name}, gradients"] = partial(with_gradients, op)
    return found


def models(
    mode: str, shapes: Shapes, device: str, size: dict[str, int], *, compile: bool = False
) -> Iterator[dict[str, Any]]:
    """Whole models, each in a process of its own (`argap.models.speed`)."""
    train = mode == "training"
    cases = speed_cases(
        shapes.trained if train else shapes.generating,
        training=shapes.training if train else None,
        generation=None if train else shapes.generation,
        vocab_size=shapes.vocabulary,
        device=device,
        dtype="bfloat16" if device == "cuda" else "float32",
        compile=compile,
        **size,
    )
    for case in cases:
        try:
            row = measure_apart(case)
        except Exception as failure:  # of one case: a result, too
            row = asdict(case) | {"error": f"{type(failure).__name__}: {failure}".splitlines()[0]}
        speed, memory = in_words(row)
        yield row | {"text": f"{case.length} x {case.batch}, {case.architecture}: {speed} {memory}"}


def milliseconds(function: Callable[[], Any], device: torch.device) -> float:
    """The median of `ROUNDS` calls after one to warm up."""
    took = []
    for _ in range(ROUNDS + 1):
        started = time.perf_counter()
        function()
        if device.type == "cuda":
            torch.cuda.synchronize()
        took.append(time.perf_counter() - started)
    return 1e3 * statistics.median(took[1:])


if __name__ == "__main__":
    main()
