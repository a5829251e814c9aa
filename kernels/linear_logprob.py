"""Hidden states to the log-prob of each target, without the logits ever reaching memory.

The language-model head is the widest product of a scorer: ``[tokens, vocabulary]`` logits in float32
for 16,384 tokens of GPT-2 are 3.3 GB. Here a program keeps one tile of them in registers and leaves of
it, for each row, the largest logit and the sum of exponentials below it (and where asked for, which id
was the largest, and what the entropy needs). A second, small kernel joins the tiles of a row and takes
the target's own logit. No atomics and no locks: the same input gives the same bits.

Legend: N rows (tokens), D hidden size, V vocabulary, BN × BV a tile of logits.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from argap.errors import ArgapError
from argap.kernels.language import runs_kernels, triton
from argap.kernels.launch import Launch, LaunchTable, device_class
from argap.kernels.logit_tiles import join_tiles, summarize_tiles

LOWEST = -1e30
"""The logit of a column beyond the vocabulary; finite, so that 0 · `LOWEST` is 0."""

SCRATCH_BYTES = 56 * 2**20
"""What the tiles of one launch may leave behind; more rows take further launches."""

REFERENCE_ROWS, REFERENCE_IDS = 1024, 1024
"""The tile of logits that the reference holds at once: 4 MB in float32, so that the passes over it meet the cache."""

LAUNCHES = LaunchTable(
    "linear_logprob",
    {
        "hopper": {
            "16 bits": Launch({"BN": 128, "BV": 256, "BD": 64, "GROUP": 16}, warps=8, stages=4),
            "32 bits": Launch({"BN": 128, "BV": 128, "BD": 32, "GROUP": 16}, warps=8, stages=3),
        },
        "any": {
            "16 bits": Launch({"BN": 128, "BV": 128, "BD": 32, "GROUP": 16}, warps=8, stages=3),
            "32 bits": Launch({"BN": 64, "BV": 64, "BD": 32, "GROUP": 16}, warps=4, stages=2),
        },
    },
)
JOINING = LaunchTable(
    "linear_logprob: joining", {"any": {"any": Launch({"BR": 32, "BT": 32, "BD": 64}, warps=4, stages=2)}}
)


class LogProb(NamedTuple):
    """What `linear_logprob` gives, each ``[N]``; None where it was not asked for."""

    logprob: torch.Tensor
    """float32, nats."""
    top1: torch.Tensor | None = None
    """int64, the most likely id; the lowest of several."""
    entropy: torch.Tensor | None = None
    """float32, nats: −Σ p log p over the vocabulary."""


def linear_logprob(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    target: torch.Tensor,
    bias: torch.Tensor | None = None,
    softcap: float | None = None,
    *,
    scale: float = 1.0,
    top1: bool = False,
    entropy: bool = False,
) -> LogProb:
    """``log_softmax(scale · (hidden @ weight.T + bias))`` at ``target``, logits computed and kept in float32.

    ``hidden [N, D]``, ``weight [V, D]``, ``target [N]`` int64, ``bias [V]``; any floating dtypes. A target
    outside [0, V) gives NaN. ``softcap`` c replaces each scaled logit z by c·tanh(z / c) (Gemma 2,
    arXiv 2408.00118, section 2).

    On a GPU, where no gradient is asked for and ``hidden`` and ``weight`` have one dtype, float16, bfloat16
    or float32: one pass of the kernel, with less than 64 MiB beside inputs and outputs. Then the D elements
    of a row of ``weight`` must lie side by side, else `ArgapError`. Elsewhere the reference.
    """
    on_tensor_cores = (torch.float16, torch.bfloat16, torch.float32)
    if runs_kernels(hidden, weight, target, bias) and hidden.dtype == weight.dtype and hidden.dtype in on_tensor_cores:
        return _by_kernel(hidden, weight, target, bias, softcap, scale, top1, entropy)
    return linear_logprob_reference(hidden, weight, target, bias, softcap, scale=scale, top1=top1, entropy=entropy)


def linear_logprob_reference(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    target: torch.Tensor,
    bias: torch.Tensor | None = None,
    softcap: float | None = None,
    *,
    scale: float = 1.0,
    top1: bool = False,
    entropy: bool = False,
) -> LogProb:
    """`linear_logprob` in PyTorch, some rows at a time, in float32 or wider."""
    kind = torch.promote_types(torch.promote_types(hidden.dtype, weight.dtype), torch.float32)
    inside = (target >= 0) & (target < len(weight))
    wanted = target.where(inside, 0)
    parts: list[tuple[torch.Tensor, ...]] = []
    for start in range(0, max(1, len(hidden)), REFERENCE_ROWS):
        rows = slice(start, start + REFERENCE_ROWS)
        states, ids = hidden[rows].to(kind), wanted[rows]
        normalizer = states.new_full((len(states),), -math.inf)
        largest, best, picked, mean = normalizer, torch.zeros_like(ids), normalizer, torch.zeros_like(normalizer)
        for first in range(0, len(weight), REFERENCE_IDS):
            columns = slice(first, first + REFERENCE_IDS)
            logits = F.linear(states, weight[columns].to(kind), None if bias is None else bias[columns].to(kind))
            logits = logits if scale == 1 else logits * scale
            logits = logits if softcap is None else softcap * torch.tanh(logits / softcap)
            here = (ids >= first) & (ids < first + logits.shape[1])
            own = logits.gather(1, (ids - first).where(here, 0)[:, None])[:, 0]
            picked = own.where(here, picked)
            before, of_tile = normalizer, torch.logsumexp(logits, dim=1)
            normalizer = torch.logaddexp(before, of_tile)
            if top1:
                top = logits.amax(dim=1)
                ahead = (top > largest).nonzero()[:, 0]  # fewer from tile to tile, and argmax is slow
                best[ahead] = first + logits[ahead].argmax(dim=1)
                largest = torch.maximum(largest, top)
            if entropy:
                mean = mean * (before - normalizer).exp()
                mean = mean + ((logits - normalizer[:, None]).exp() * logits).sum(1)
        parts.append((picked - normalizer, best, normalizer - mean))
    logprob, best, spread = (torch.cat(column) for column in zip(*parts, strict=True))
    logprob = logprob.float().where(inside, math.nan)
    return LogProb(logprob, best if top1 else None, spread.float() if entropy else None)


def _by_kernel(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    target: torch.Tensor,
    bias: torch.Tensor | None,
    softcap: float | None,
    scale: float,
    top1: bool,
    entropy: bool,
) -> LogProb:
    rows, vocabulary = len(hidden), len(weight)
    if weight.stride(1) != 1:
        raise ArgapError(
            f"linear_logprob: weight [V, D] has strides {weight.stride()}, expected the D elements of a row side by "
            "side; pass weight.contiguous()"
        )
    hidden = hidden if hidden.stride(1) == 1 else hidden.contiguous()
    bias = None if bias is None else bias.contiguous()
    target = target.contiguous()
    launch = LAUNCHES.at(hidden.device, f"{8 * hidden.element_size()} bits")
    tiles = triton.cdiv(vocabulary, launch.blocks["BV"])
    found = LogProb(
        hidden.new_empty(rows, dtype=torch.float32),
        torch.empty_like(target) if top1 else None,
        hidden.new_empty(rows, dtype=torch.float32) if entropy else None,
    )
    at_once = max(1, SCRATCH_BYTES // (tiles * 4 * (2 + top1 + entropy)) // launch.blocks["BN"]) * launch.blocks["BN"]
    for start in range(0, rows, at_once):
        part = slice(start, start + at_once)
        _launch(hidden[part], weight, target[part], bias, softcap, scale, launch, [_rows(x, part) for x in found])
    return found


def _launch(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    target: torch.Tensor,
    bias: torch.Tensor | None,
    softcap: float | None,
    scale: float,
    launch: Launch,
    outputs: list[torch.Tensor | None],
) -> None:
    """Both kernels over rows whose tiles fit into `SCRATCH_BYTES`."""
    rows, size = hidden.shape
    vocabulary = weight.shape[0]
    blocks = launch.blocks
    tiles = triton.cdiv(vocabulary, blocks["BV"])
    logprob, top1, entropy = outputs
    largest, total = (hidden.new_empty(tiles, rows, dtype=torch.float32) for _ in range(2))
    best = None if top1 is None else torch.empty_like(largest, dtype=torch.int32)
    moment = None if entropy is None else torch.empty_like(largest)
    copied = _copied_by_hardware(hidden, weight)
    options: dict[str, Any] = {"D": size, "CAPPED": softcap is not None, "LOWEST": LOWEST}
    rate, cap = scale * math.log2(math.e), 0.0
    if softcap is not None:
        rate, cap = 2 * rate / softcap, softcap * math.log2(math.e)
    programs = min(triton.cdiv(rows, blocks["BN"]) * tiles, _processors(hidden.device))
    summarize_tiles[(programs,)](
        _blocks_of(hidden, blocks["BN"], blocks["BD"]) if copied else hidden,
        _blocks_of(weight, blocks["BV"], blocks["BD"]) if copied else weight,
        *(bias, largest, total, best, moment, rows, vocabulary, hidden.stride(0), weight.stride(0), rate, cap),
        **options,
        COPIED=copied,
        **launch.arguments(),
    )
    joining = JOINING.at(hidden.device, "any")
    join_tiles[(triton.cdiv(rows, joining.blocks["BR"]),)](
        *(hidden, weight, target, bias, largest, total, best, moment, logprob, top1, entropy),
        *(rows, vocabulary, tiles, hidden.stride(0), weight.stride(0), rate, cap),
        **options,
        LN_2=math.log(2),
        **joining.arguments(),
    )


def _rows(x: torch.Tensor | None, part: slice) -> torch.Tensor | None:
    return None if x is None else x[part]


def _processors(device: torch.device) -> int:
    """How many programs run at once: each walks over tiles until there are none."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 2


def _copied_by_hardware(*tensors: torch.Tensor) -> bool:
    """Whether Hopper's copy engine takes them: it wants rows apart, each from a multiple of 16 bytes on."""
    steps = [x.stride(0) * x.element_size() for x in tensors]
    aligned = all(x.data_ptr() % 16 == 0 and step % 16 == 0 for x, step in zip(tensors, steps, strict=True))
    apart = all(x.stride(0) >= x.shape[1] for x in tensors)
    return aligned and apart and (not tensors[0].is_cuda or device_class(tensors[0].device) == "hopper")


def _blocks_of(x: torch.Tensor, rows: int, columns: int) -> Any:
    from triton.tools.tensor_descriptor import TensorDescriptor

    return TensorDescriptor(x, list(x.shape), list(x.stride()), [rows, columns])
