"""How fast a model trains and generates, and the memory that it takes, at one length and one batch.

As the papers measure their mixers: training throughput at equal tokens a step (DeltaNet, arXiv 2406.06484,
figure 4), generation throughput by batch (second blog post on the Zoology paper, section 3).
"""

import resource
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Literal

import torch

from argap.device import use_device
from argap.errors import ArgapError
from argap.models.modeling import ArgapForCausalLM
from argap.models.presets import build_config

Mode = Literal["training", "generation"]
WARM_UP, STEPS = 2, 5
"""Training steps before the measured ones, and measured."""
WARM_TOKENS = 8
"""Tokens generated before the measured ones."""


@dataclass(frozen=True)
class SpeedCase:
    """One model and what it does."""

    architecture: str
    mode: Mode
    length: int
    """Tokens of a window; or tokens generated, from the first."""
    batch: int
    """Windows in a step; or sequences generated side by side."""
    hidden_size: int
    num_hidden_layers: int
    vocab_size: int
    device: str
    dtype: str
    """``float32`` or ``bfloat16``: of the arithmetic in training (its weights are float32, as the trainer has
    them), of everything in generation."""
    compile: bool = False
    """Whether `torch.compile` prepares the training step, as the trainer does on CUDA."""


@dataclass(frozen=True)
class Speed:
    """What was measured."""

    parameters: int
    seconds: float
    """Of one training step (forward, backward, AdamW; the median of `STEPS`), or of the whole generation."""
    tokens_per_s: float
    peak_bytes: int
    """The most memory that model, optimizer and activations took together: on CUDA what torch had allocated,
    on a CPU by how much the process grew (some MiB are libraries that load late)."""


def measure(case: SpeedCase) -> Speed:
    """Measure in this process. On a CPU the memory is right in a fresh process only: see `measure_apart`.

    Raises `ArgapError` for an unknown architecture, and `torch.OutOfMemoryError` as torch does.
    """
    device = use_device(case.device)
    memory = _memory(device)
    torch.manual_seed(0)
    config = build_config(
        case.architecture,
        hidden_size=case.hidden_size,
        num_hidden_layers=case.num_hidden_layers,
        vocab_size=case.vocab_size,
        seq_len=case.length,
    )
    with device:
        model = ArgapForCausalLM(config)
    seconds = (_train if case.mode == "training" else _generate)(model, case, device)
    return Speed(
        parameters=sum(p.numel() for p in model.parameters()),
        seconds=seconds,
        tokens_per_s=case.length * case.batch / seconds,
        peak_bytes=memory(),
    )


def measure_apart(case: SpeedCase) -> dict[str, Any]:
    """The case and its `Speed` as one row, from a process of its own; in place of the speed an ``error`` where
    there is not enough memory. (A process's peak never falls, and what one case leaves behind slows another.)

    Raises `ArgapError` as `measure` does, and where the process dies.
    """
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        try:
            return asdict(case) | asdict(pool.submit(measure, case).result())
        except BrokenProcessPool:
            raise ArgapError(
                f"{case.architecture}, {case.mode}, {case.length} x {case.batch}: the process that measured it died "
                "(most often the system ended it for want of memory); choose smaller lengths or batches"
            ) from None
        except RuntimeError as error:  # on a CPU torch has no class for it
            if isinstance(error, torch.OutOfMemoryError) or "allocate memory" in str(error):
                return asdict(case) | {"error": "out of memory"}
            raise


def _train(model: ArgapForCausalLM, case: SpeedCase, device: torch.device) -> float:
    """Seconds of the median step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=device.type == "cuda")
    forward: Callable[..., Any] = torch.compile(model) if case.compile else model
    dtype = getattr(torch, case.dtype)
    ids = torch.randint(case.vocab_size, (case.batch, case.length), device=device)
    model.train()
    took = []
    for _ in range(WARM_UP + STEPS):
        started = _now(device)
        with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
            loss = forward(ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        took.append(_now(device) - started)
    return statistics.median(took[WARM_UP:])


@torch.inference_mode()
def _generate(model: ArgapForCausalLM, case: SpeedCase, device: torch.device) -> float:
    """Seconds of ``length`` greedy tokens for each sequence, in the recurrent form, from an empty state."""
    model = model.to(getattr(torch, case.dtype)).eval()
    took = 0.0
    for tokens in (min(WARM_TOKENS, case.length), case.length):
        ids = torch.randint(case.vocab_size, (case.batch,), device=device)
        state = model.init_state(case.batch)
        started = _now(device)
        for _ in range(tokens):
            logits, state = model.step(ids, state)
            ids = logits.argmax(dim=-1)
        took = _now(device) - started
    return took


def _now(device: torch.device) -> float:
    """The time when all that was asked of the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def _memory(device: torch.device) -> Callable[[], int]:
    """Start to watch; the result tells the peak since, in bytes."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        return lambda: torch.cuda.max_memory_allocated(device) - before
    before = _peak_rss()
    return lambda: _peak_rss() - before


def _peak_rss() -> int:
    """Bytes that this process held at most.

    On Linux from /proc, because getrusage counts what the parent held when it started this process.
    """
    status = Path("/proc/self/status")
    if status.exists():
        (line,) = [line for line in status.read_text().splitlines() if line.startswith("VmHWM:")]
        return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # macOS counts bytes
