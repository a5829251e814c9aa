"""Log-probs of targets from hidden states; the logits never reach memory.

The language-model head is the widest product in scoring: for 16,384 tokens of GPT-2 the ``[tokens, vocabulary]`` logits
take 3.3 GB in float32. Here a program keeps one tile of them in registers and stores, for each row of the tile, only
the largest logit and the sum of exponentials relative to it (on request also the id of the largest). A second, small
kernel joins the tiles of a row and computes the target's logit. No atomics and no locks: the same input gives the same
bits.

Legend: N rows (tokens), D hidden size, V vocabulary, BN × BV a tile of logits.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from argap.errors import ArgapError
from argap.kernels.head.logit_tiles import row_kernel, tile_kernel
from argap.kernels.launch import (
    Launch,
    LaunchTable,
    device_class,
    multiprocessors,
    runs_kernels,
    triton,
    unit_stride,
)

LOWEST = -1e30
"""The logit of ids beyond the vocabulary; finite, so that 0 · `LOWEST` is 0."""

SCRATCH_BYTES = 56 * 2**20
"""Upper bound on one launch's per-tile results, in bytes; more rows take more launches."""

REFERENCE_ROWS, REFERENCE_IDS = 1024, 1024
"""The reference's tile of logits: 4 MB in float32, small enough that the passes over it hit the cache."""

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
ROW_LAUNCHES = LaunchTable(
    "linear_logprob: joining tiles", {"any": {"any": Launch({"BR": 32, "BT": 32, "BD": 64}, warps=4, stages=2)}}
)


class LogProb(NamedTuple):
    """The result of `linear_logprob`, each ``[N]``; None if not requested."""

    logprob: torch.Tensor
    """float32, nats."""
    top1: torch.Tensor | None = None
    """int64, the most likely id; the lowest in a tie."""
    entropy: torch.Tensor | None = None
    """float32, nats: −Σ p log p over the vocabulary."""


class Logits(NamedTuple):
    """Logits ``[N, V]``, computed tile by tile: ``scale · (hidden @ weight.T + bias)``, then capped at ±``softcap``."""

    hidden: torch.Tensor
    """``[N, D]``; the logits themselves, ``[N, V]``, if ``weight`` is None."""
    weight: torch.Tensor | None = None
    """``[V, D]``."""
    bias: torch.Tensor | None = None
    softcap: float | None = None
    scale: float = 1.0

    @property
    def vocabulary(self) -> int:
        """Return V."""
        return self.hidden.shape[1] if self.weight is None else len(self.weight)

    @property
    def dtype(self) -> torch.dtype:
        """Return the dtype that tiles are computed in: float32, or wider where an input is."""
        own = self.hidden.dtype if self.weight is None else self.weight.dtype
        return torch.promote_types(torch.promote_types(self.hidden.dtype, own), torch.float32)

    def tile(self, hidden: torch.Tensor, ids: slice) -> torch.Tensor:
        """Return the logits of some rows, ``hidden [n, D]`` in `dtype`, for consecutive ``ids``."""
        if self.weight is None:
            logits = hidden[:, ids]
        else:
            bias = None if self.bias is None else self.bias[ids].to(hidden.dtype)
            logits = F.linear(hidden, self.weight[ids].to(hidden.dtype), bias)
        logits = logits if self.scale == 1 else logits * self.scale
        return logits if self.softcap is None else self.softcap * torch.tanh(logits / self.softcap)


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
    """Compute ``log_softmax(scale · (hidden @ weight.T + bias))`` at ``target``, with logits in float32.

    Args:
        hidden: ``[N, D]``, any floating dtype.
        weight: ``[V, D]``, any floating dtype.
        target: ids ``[N]``, int64; ids outside [0, V) give NaN.
        bias: ``[V]``; None: 0.
        softcap: c; replaces each scaled logit z by c·tanh(z / c) (Gemma 2, arXiv 2408.00118, section 2).
        scale: factor of the logits.
        top1: also return the most likely id.
        entropy: also return the entropy of the distribution.

    Raises:
        ArgapError: the kernels would run, but ``weight`` has no unit stride along D.

    Runs kernels on a GPU if no gradient is needed and ``hidden`` and ``weight`` share one of the dtypes float16,
    bfloat16 and float32. They take less than 64 MiB besides inputs and outputs. Otherwise runs the reference.
    """
    on_tensor_cores = (torch.float16, torch.bfloat16, torch.float32)
    if runs_kernels(hidden, weight, target, bias) and hidden.dtype == weight.dtype and hidden.dtype in on_tensor_cores:
        return _forward(hidden, weight, target, bias, softcap, scale, top1, entropy)
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
    """Compute `linear_logprob` in PyTorch, one tile of logits at a time, in float32 or wider."""
    made = Logits(hidden, weight, bias, softcap, scale)
    in_vocabulary = (target >= 0) & (target < len(weight))
    ids = target.where(in_vocabulary, 0)
    parts: list[tuple[torch.Tensor, ...]] = []
    for start in range(0, max(1, len(hidden)), REFERENCE_ROWS):
        rows = slice(start, start + REFERENCE_ROWS)
        h, row_ids = hidden[rows].to(made.dtype), ids[rows]
        lse = h.new_full((len(h),), -math.inf)
        max_logit, top_id, target_logit, mean_logit = lse, torch.zeros_like(row_ids), lse, torch.zeros_like(lse)
        for first in range(0, len(weight), REFERENCE_IDS):
            logits = made.tile(h, slice(first, first + REFERENCE_IDS))
            in_tile = (row_ids >= first) & (row_ids < first + logits.shape[1])
            own_logit = logits.gather(1, (row_ids - first).where(in_tile, 0)[:, None])[:, 0]
            target_logit = own_logit.where(in_tile, target_logit)
            before, tile_lse = lse, torch.logsumexp(logits, dim=1)
            lse = torch.logaddexp(lse, tile_lse)
            if entropy:  # Σ p·z over the ids so far; an id of probability 0 counts 0
                tile_mean = _weighted((logits - tile_lse[:, None]).exp(), logits).sum(1)
                mean_logit = _weighted((before - lse).exp(), mean_logit) + _weighted((tile_lse - lse).exp(), tile_mean)
            if top1:
                tile_max = logits.amax(dim=1)
                larger = (tile_max > max_logit).nonzero()[:, 0]  # argmax is slow, and fewer rows need it with each tile
                top_id[larger] = first + logits[larger].argmax(dim=1)
                max_logit = torch.maximum(max_logit, tile_max)
        parts.append((target_logit - lse, top_id, lse - mean_logit))
    logprob, top_id, entropies = (torch.cat(column) for column in zip(*parts, strict=True))
    logprob = logprob.float().where(in_vocabulary, math.nan)
    return LogProb(logprob, top_id if top1 else None, entropies.float() if entropy else None)


def _weighted(weight: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Return ``weight`` · ``values``, 0 where the weight is 0, whatever the value (−∞, NaN)."""
    return torch.where(weight > 0, weight * values, 0.0)


def _forward(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    target: torch.Tensor,
    bias: torch.Tensor | None,
    softcap: float | None,
    scale: float,
    top1: bool,
    entropy: bool,
) -> LogProb:
    """Run the kernels of `linear_logprob`."""
    if weight.stride(1) != 1:
        raise ArgapError(
            f"linear_logprob: weight [V, D] has strides {weight.stride()}, expected unit stride along D; "
            "pass weight.contiguous()"
        )
    N, V = len(hidden), len(weight)
    hidden, target, bias = unit_stride(hidden), unit_stride(target), unit_stride(bias)
    launch = LAUNCHES.at(hidden.device, f"{8 * hidden.element_size()} bits")
    logprob = hidden.new_empty(N, dtype=torch.float32)
    result = LogProb(
        logprob, torch.empty_like(target) if top1 else None, torch.empty_like(logprob) if entropy else None
    )
    BN, NV = launch.blocks["BN"], triton.cdiv(V, launch.blocks["BV"])
    rows_at_once = max(1, SCRATCH_BYTES // (NV * 4 * (2 + top1 + entropy)) // BN) * BN
    for start in range(0, N, rows_at_once):
        rows = slice(start, start + rows_at_once)
        outputs = [None if x is None else x[rows] for x in result]
        _launch(hidden[rows], weight, target[rows], bias, softcap, scale, launch, outputs)
    return result


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
    """Launch both kernels, over as many rows at a time as `SCRATCH_BYTES` allows."""
    (N, D), V = hidden.shape, len(weight)
    BN, BV, BD = (launch.blocks[name] for name in ("BN", "BV", "BD"))
    NV = triton.cdiv(V, BV)
    logprob, top1, entropy = outputs
    # 1. Scratch for the results of every tile and row.
    max_z, sum_exp = (hidden.new_empty(NV, N, dtype=torch.float32) for _ in range(2))
    argmax = None if top1 is None else torch.empty_like(max_z, dtype=torch.int32)
    moment = None if entropy is None else torch.empty_like(max_z)
    # 2. Arguments of both kernels.
    constants: dict[str, float] = {"D": D, "CAPPED": softcap is not None, "LOWEST": LOWEST}
    rate, cap = rate_and_cap(scale, softcap)
    # 3. The tiles, then the rows.
    by_copy_engine = copy_engine_takes(hidden, weight)
    programs = min(triton.cdiv(N, BN) * NV, multiprocessors(hidden.device))
    tile_kernel[(programs,)](
        descriptor(hidden, BN, BD) if by_copy_engine else hidden,
        descriptor(weight, BV, BD) if by_copy_engine else weight,
        *(bias, max_z, sum_exp, argmax, moment, N, V, hidden.stride(0), weight.stride(0), rate, cap),
        **constants,
        COPY_ENGINE=by_copy_engine,
        **launch.arguments(),
    )
    row_launch = ROW_LAUNCHES.at(hidden.device, "any")
    row_kernel[(triton.cdiv(N, row_launch.blocks["BR"]),)](
        *(hidden, weight, target, bias, max_z, sum_exp, argmax, moment, logprob, top1, entropy),
        *(N, V, NV, hidden.stride(0), weight.stride(0), rate, cap),
        **constants,
        LN_2=math.log(2),
        **row_launch.arguments(),
    )


def rate_and_cap(scale: float, softcap: float | None) -> tuple[float, float]:
    """Return the arguments of `argap.kernels.head.logit_tiles.to_bits`."""
    rate = scale * math.log2(math.e)
    return (rate, 0.0) if softcap is None else (2 * rate / softcap, softcap * math.log2(math.e))


def copy_engine_takes(*tensors: torch.Tensor) -> bool:
    """Return whether Hopper's copy engine can load ``tensors``: disjoint rows that start at multiples of 16 bytes."""
    aligned = all(x.data_ptr() % 16 == 0 and x.stride(0) * x.element_size() % 16 == 0 for x in tensors)
    apart = all(x.stride(0) >= x.shape[1] for x in tensors)
    return aligned and apart and (not tensors[0].is_cuda or device_class(tensors[0].device) == "hopper")


def descriptor(x: torch.Tensor, rows: int, columns: int) -> Any:
    """Return a copy-engine descriptor that loads ``x`` in blocks of ``rows`` × ``columns``."""
    from triton.tools.tensor_descriptor import TensorDescriptor

    return TensorDescriptor(x, list(x.shape), list(x.stride()), [rows, columns])
