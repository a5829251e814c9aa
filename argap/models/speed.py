"""Training and generation speed and peak memory of a model, by length and batch size.

Follows the papers' protocols: training throughput at a constant number of tokens per step (DeltaNet, arXiv 2406.06484,
figure 4), and generation throughput by batch size (second blog post on the Zoology paper, section 3).
"""

import resource
import statistics
import time
from collections.abc import Callable, Sequence
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from msgspec.structs import asdict

from argap.errors import ArgapError
from argap.files.configs import whole_number
from argap.models.block import compile_layers
from argap.models.fla.operators import choose_backend, use_fla
from argap.models.modeling import ArgapForCausalLM
from argap.models.presets import ARCHITECTURES, build_config
from argap.models.steps import Steps
from argap.records import Record
from argap.runtime.device import use_device
from argap.runtime.progress import say
from argap.runtime.signals import exit_with_parent, interrupts_blocked
from argap.runtime.streams import guard_streams

if TYPE_CHECKING:
    from multiprocessing.connection import Connection


Mode = Literal["training", "generation"]
TRAINING = ("512x8", "1024x4", "2048x2", "4096x1")
GENERATION = ("256x1", "256x4", "256x16", "256x64")
"""Shapes measured by default, as length x batch."""
WARM_UP, STEPS = 2, 5
"""Training steps for warm-up, and measured ones."""
WARM_TOKENS = 8
"""Tokens generated for warm-up."""


class SpeedCase(Record, frozen=True, omit_defaults=False):
    """One measurement to make: a model, a mode and shape, and a device."""

    architecture: str
    mode: Mode
    length: int
    """Tokens of a training window, or tokens to generate."""
    batch: int
    """Windows in a training step, or sequences generated in parallel."""
    hidden_size: int
    num_hidden_layers: int
    vocab_size: int
    device: str
    dtype: str
    """``float32`` or ``bfloat16``. In training this is the autocast dtype over float32 weights, as in the trainer; in
    generation the weights have it too."""
    compile: bool = False
    """Whether to compile the layers with `torch.compile`, as the trainer does on CUDA."""
    backend: Literal["auto", "fla", "native"] = "native"
    """Operators of a training step, as for the trainer: `argap.models.fla.operators.choose_backend`."""

    @property
    def in_words(self) -> str:
        """Model, mode and shape."""
        return f"{self.architecture}, {self.mode}, {self.length} x {self.batch}"


class Speed(SpeedCase, frozen=True, kw_only=True):
    """The measurement of one case; without figures if memory ran out."""

    parameters: int | None = None
    operators: str | None = None
    """``native``, or ``fla`` if the step ran flash-linear-attention's operators."""
    graph: bool | None = None
    """Whether a generation replayed a CUDA graph after its first few steps; None in training."""
    seconds: float | None = None
    """Time of one training step (forward, backward, AdamW; median of `STEPS`), or of the whole generation."""
    tokens_per_s: float | None = None
    peak_bytes: int = 0
    """Peak memory of model, optimizer and activations. On CUDA the memory allocated by torch; on a CPU the growth of
    the process, which includes a few MiB of lazily loaded libraries."""

    @property
    def case(self) -> SpeedCase:
        """The case that was measured."""
        return SpeedCase(*(getattr(self, name) for name in SpeedCase.__struct_fields__))

    @property
    def figures(self) -> tuple[str, str]:
        """Speed and peak memory; if there are none, the reason and an empty string."""
        if self.tokens_per_s is None:
            return "out of memory", ""
        return f"{self.tokens_per_s:,.0f} tokens/s", f"{self.peak_bytes / 2**20:,.0f} MiB"


def speed_cases(
    architectures: Sequence[str],
    *,
    training: Sequence[str] | None,
    generation: Sequence[str] | None,
    **options: Any,
) -> list[SpeedCase]:
    """List all combinations of architectures and shapes (``LENGTHxBATCH``), in order. ``options``: the other fields.

    If only one of ``training`` and ``generation`` is given, only that mode is measured; with neither, `TRAINING` and
    `GENERATION`. Raises `ArgapError` for an unknown architecture or an invalid shape.
    """
    if unknown := [name for name in architectures if name not in ARCHITECTURES]:
        raise ArgapError(f"architecture {unknown[0]!r}: unknown; known are {', '.join(ARCHITECTURES)}")
    if training is None and generation is None:
        training, generation = TRAINING, GENERATION
    by_mode: dict[Mode, Sequence[str]] = {"training": training or (), "generation": generation or ()}
    shapes: list[tuple[Mode, int, int]] = [(mode, *_shape(text)) for mode, texts in by_mode.items() for text in texts]
    return [
        SpeedCase(architecture=name, mode=mode, length=length, batch=batch, **options)
        for mode, length, batch in shapes
        for name in architectures
    ]


def _shape(text: str) -> tuple[int, int]:
    length, times, batch = text.lower().partition("x")
    numbers = whole_number(length), whole_number(batch)
    if not (times and numbers[0] and numbers[1]):
        raise ArgapError(f"{text}: expected LENGTHxBATCH, two positive integers, such as 1024x4")
    return numbers[0], numbers[1]


def measure_all(
    cases: Sequence[SpeedCase], finished: Sequence[Speed], keep: Callable[[list[Speed]], object]
) -> list[Speed]:
    """Measure each case in its own process, except those with figures in ``finished``.

    After each one, passes the rows so far, in the order of ``cases``, to ``keep`` and writes a line of progress to
    stderr.
    """
    rows = {row.case: row for row in finished if row.tokens_per_s is not None and row.case in cases}
    missing = [case for case in dict.fromkeys(cases) if case not in rows]
    if rows:
        say(f"{len(rows)} of {len(cases)} cases were measured before; their figures are kept")
    try:
        for number, case in enumerate(missing, start=len(rows) + 1):
            rows[case] = measure_apart(case)
            keep([rows[case] for case in cases if case in rows])
            say(f"{number} of {len(cases)}: {case.in_words}: {', '.join(filter(None, rows[case].figures))}")
    except KeyboardInterrupt:
        say("interrupted; finished cases are kept, the same command measures the others")
        raise
    return [rows[case] for case in cases]


def measure(case: SpeedCase, *, graphs: bool | None = None) -> Speed:
    """Measure in this process. On a CPU, peak memory is correct only in a fresh process: see `measure_apart`.

    ``graphs``: whether to generate with CUDA graphs, by default on a GPU (`Steps`); for comparisons.

    Raises `ArgapError` for an unknown architecture and a backend that cannot run, and `torch.OutOfMemoryError` as torch
    does.
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
    backend, dtype = "native", getattr(torch, case.dtype)
    if case.mode == "training":
        backend = choose_backend(case.backend, model, device, dtype)
    else:
        model.to(dtype)
    if backend == "fla":
        use_fla(model)
    graph = None
    if case.mode == "training":
        seconds = _train(model, case, device)
    else:
        seconds, graph = _generate(model, case, device, graphs)
    return Speed(
        **asdict(case),
        parameters=sum(p.numel() for p in model.parameters()),
        operators=backend,
        graph=graph,
        seconds=seconds,
        tokens_per_s=case.length * case.batch / seconds,
        peak_bytes=memory(),
    )


def measure_apart(case: SpeedCase) -> Speed:
    """Run `measure` in a separate process; the result has no figures if memory runs out.

    A separate process because peak memory never falls and one case can slow down the next. Raises `ArgapError` as
    `measure` does, and if the process dies.
    """
    context = get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_measure_in_worker, args=(case, sender), daemon=True)
    with interrupts_blocked():
        process.start()
    sender.close()  # the other end closes with the process
    try:
        row = receiver.recv()
    except EOFError:
        raise ArgapError(
            f"{case.in_words}: the measuring process died "
            "(usually killed by the system for lack of memory); choose smaller lengths or batches"
        ) from None
    finally:
        process.kill()
        process.join()
    if isinstance(row, Exception):
        raise row
    return row


def _measure_in_worker(case: SpeedCase, sender: "Connection[Speed | Exception, Any]") -> None:
    """Send the row of the case, or the error that prevented it."""
    guard_streams()
    exit_with_parent()
    try:
        sender.send(measure(case))
    except Exception as error:  # on a CPU torch raises a plain RuntimeError where memory runs out
        out_of_memory = isinstance(error, torch.OutOfMemoryError) or "allocate memory" in str(error)
        sender.send(Speed(**asdict(case)) if out_of_memory else error)


def _train(model: ArgapForCausalLM, case: SpeedCase, device: torch.device) -> float:
    """Return the median seconds per training step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=device.type == "cuda")
    if case.compile:
        compile_layers(model)
    dtype = getattr(torch, case.dtype)
    ids = torch.randint(case.vocab_size, (case.batch, case.length), device=device)
    model.train()
    took = []
    for _ in range(WARM_UP + STEPS):
        started = _now(device)
        with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
            loss = model(ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        took.append(_now(device) - started)
    return statistics.median(took[WARM_UP:])


@torch.inference_mode()
def _generate(
    model: ArgapForCausalLM, case: SpeedCase, device: torch.device, graphs: bool | None
) -> tuple[float, bool]:
    """Return the seconds to generate ``length`` greedy tokens per sequence, and whether the last were graph replays.

    Generates in the recurrent form from an empty state; the seconds include recording the CUDA graph.
    """
    model.eval()
    took, recorded = 0.0, False
    for tokens in (min(WARM_TOKENS, case.length), case.length):
        ids = torch.randint(case.vocab_size, (case.batch,), device=device)
        steps = Steps(model, model.init_state(case.batch), graphs=graphs)
        started = _now(device)
        for _ in range(tokens):
            ids = steps(ids).argmax(dim=-1)
        took, recorded = _now(device) - started, steps.recorded
    return took, recorded


def _now(device: torch.device) -> float:
    """Return the time after the device has finished all queued work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def _memory(device: torch.device) -> Callable[[], int]:
    """Start tracking memory. Returns a function that gives the peak since then, in bytes."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        return lambda: torch.cuda.max_memory_allocated(device) - before
    before = _peak_rss()
    return lambda: _peak_rss() - before


def _peak_rss() -> int:
    """Return the peak memory of this process in bytes.

    On Linux it is read from /proc, because getrusage includes the parent's memory at the time of the fork.
    """
    status = Path("/proc/self/status")
    if status.exists():
        (line,) = [line for line in status.read_text().splitlines() if line.startswith("VmHWM:")]
        return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # macOS counts bytes
