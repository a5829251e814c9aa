"""KL divergence between two output heads, from hidden states; the logits never reach memory.

llama.cpp's ``--kl-divergence`` needs the logits of one model on disk: 2 bytes for each token and vocabulary entry. Here
both models' hidden states of the same tokens are at hand, and tiles of both logits are made and reduced together.

With logits z, a maximum m and S = Σ exp(z − m) for each model, p being the reference and q the model,

    KL(p ‖ q) = Σ p·((z_p − m_p) − (z_q − m_q)) − log S_p + log S_q,

so that logits of any offset cancel before they are added up.

On a GPU a program holds one tile of both models' logits in registers and stores five numbers for each of its rows; a
second, small kernel joins the tiles of a row (`argap.kernels.head.divergence_tiles`).

Legend: N rows (tokens), V vocabulary.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch

from argap.errors import ArgapError
from argap.kernels.head.divergence_tiles import divergence_row_kernel, divergence_tile_kernel
from argap.kernels.head.linear_logprob import (
    LOWEST,
    REFERENCE_IDS,
    REFERENCE_ROWS,
    SCRATCH_BYTES,
    Logits,
    copy_engine_takes,
    descriptor,
    rate_and_cap,
)
from argap.kernels.launch import Launch, LaunchTable, multiprocessors, runs_kernels, triton, unit_stride

LAUNCHES = LaunchTable(
    "linear_divergence",
    {
        "hopper": {
            "16 bits": Launch({"BN": 128, "BV": 128, "BD": 64, "GROUP": 16}, warps=8, stages=3),
            "32 bits": Launch({"BN": 64, "BV": 128, "BD": 32, "GROUP": 16}, warps=8, stages=3),
        },
        "any": {
            "16 bits": Launch({"BN": 64, "BV": 128, "BD": 32, "GROUP": 16}, warps=8, stages=3),
            "32 bits": Launch({"BN": 64, "BV": 64, "BD": 32, "GROUP": 16}, warps=4, stages=2),
        },
    },
)
ROW_LAUNCHES = LaunchTable("linear_divergence: joining tiles", {"any": {"any": Launch({"BR": 32, "BT": 32}, warps=4)}})
ON_TENSOR_CORES = (torch.float16, torch.bfloat16, torch.float32)


def linear_divergence(reference: Logits, model: Logits) -> torch.Tensor:
    """Return KL(reference ‖ model) of each row, float32 ``[N]``, in nats.

    Hidden sizes, dtypes, biases, scales and soft caps may differ. Of heads with different numbers of rows, the longer
    one has padding at its end: both distributions are taken over the ids that the two have.

    Raises `ArgapError` for different numbers of rows (tokens), and if the kernels would run but a weight has no unit
    stride along the hidden size.

    Runs kernels on a GPU if no gradient is needed, neither model gives its logits themselves, and hidden states and
    weight of each share one of the dtypes float16, bfloat16 and float32; otherwise the reference.
    """
    if len(reference.hidden) != len(model.hidden):
        raise ArgapError(
            f"linear_divergence: {len(reference.hidden)} rows of the reference and {len(model.hidden)} of the model; "
            "expected hidden states of the same tokens"
        )
    both = (reference, model)
    tensors = [x for each in both for x in (each.hidden, each.weight, each.bias)]
    alike = all(each.weight is not None and each.weight.dtype == each.hidden.dtype for each in both)
    if alike and all(each.hidden.dtype in ON_TENSOR_CORES for each in both) and runs_kernels(*tensors):
        return _forward(reference, model)
    return linear_divergence_reference(reference, model)


def linear_divergence_reference(reference: Logits, model: Logits) -> torch.Tensor:
    """Compute `linear_divergence` in PyTorch, one tile of both logits at a time, in float32 or wider."""
    vocabulary = min(reference.vocabulary, model.vocabulary)
    dtype = torch.promote_types(reference.dtype, model.dtype)
    parts: list[torch.Tensor] = []
    for start in range(0, max(1, len(model.hidden)), REFERENCE_ROWS):
        rows = slice(start, start + REFERENCE_ROWS)
        p, q = reference.hidden[rows].to(dtype), model.hidden[rows].to(dtype)
        lowest, zero = p.new_full((len(p),), LOWEST), p.new_zeros(len(p))
        whole = _Sums(lowest, zero, zero, lowest, zero)
        for first in range(0, vocabulary, REFERENCE_IDS):
            ids = slice(first, min(first + REFERENCE_IDS, vocabulary))
            whole = _joined(whole, _of_tile(reference.tile(p, ids), model.tile(q, ids)))
        parts.append(whole.cross / whole.sum_p - whole.sum_p.log() + whole.sum_q.log())
    return torch.cat(parts).clamp(min=0).float()


class _Sums(NamedTuple):
    """What is known of both distributions after some ids, each ``[n]``."""

    max_p: torch.Tensor
    sum_p: torch.Tensor
    """Σ exp(z_p − max_p)."""
    cross: torch.Tensor
    """Σ exp(z_p − max_p) · ((z_p − max_p) − (z_q − max_q))."""
    max_q: torch.Tensor
    sum_q: torch.Tensor


def _of_tile(p: torch.Tensor, q: torch.Tensor) -> _Sums:
    """Return the sums of one tile of logits, each ``[n, ids]``."""
    max_p, max_q = (z.amax(dim=1).clamp(min=LOWEST) for z in (p, q))
    p, q = p - max_p[:, None], q - max_q[:, None]
    weight = p.exp()
    # An id that the reference rules out counts 0, also where the model does; a NaN is kept.
    cross = torch.where(weight == 0, 0.0, weight * (p - q))
    return _Sums(max_p, weight.sum(1), cross.sum(1), max_q, q.exp().sum(1))


def _joined(left: _Sums, right: _Sums) -> _Sums:
    """Return the sums over the ids of both, relative to the larger maxima."""
    max_p, max_q = torch.maximum(left.max_p, right.max_p), torch.maximum(left.max_q, right.max_q)
    total = [torch.zeros_like(max_p) for _ in range(3)]
    for each in (left, right):
        shift_p, shift_q = each.max_p - max_p, each.max_q - max_q
        factor = shift_p.exp()
        cross = each.cross + each.sum_p * (shift_p - shift_q)
        parts = factor * each.sum_p, torch.where(factor == 0, 0.0, factor * cross), shift_q.exp() * each.sum_q
        total = [whole + part for whole, part in zip(total, parts, strict=True)]
    sum_p, cross, sum_q = total
    return _Sums(max_p, sum_p, cross, max_q, sum_q)


def _forward(reference: Logits, model: Logits) -> torch.Tensor:
    """Run the kernels of `linear_divergence`, over as many rows at a time as `SCRATCH_BYTES` allows."""
    both = [each._replace(hidden=unit_stride(each.hidden), bias=unit_stride(each.bias)) for each in (reference, model)]
    for each in both:
        if each.weight is None or each.weight.stride(1) != 1:
            strides = None if each.weight is None else each.weight.stride()
            raise ArgapError(
                f"linear_divergence: weight [V, D] has strides {strides}, expected unit stride along D; "
                "pass weight.contiguous()"
            )
    device, N = model.hidden.device, len(model.hidden)
    bits = 8 * max(each.hidden.element_size() for each in both)
    launch = LAUNCHES.at(device, f"{bits} bits")
    BN, V = launch.blocks["BN"], min(each.vocabulary for each in both)
    NV = triton.cdiv(V, launch.blocks["BV"])
    kl = model.hidden.new_empty(N, dtype=torch.float32)
    rows_at_once = max(1, SCRATCH_BYTES // (NV * 4 * 5) // BN) * BN
    for start in range(0, N, rows_at_once):
        rows = slice(start, start + rows_at_once)
        _launch([each._replace(hidden=each.hidden[rows]) for each in both], V, launch, kl[rows])
    return kl


def _launch(both: list[Logits], V: int, launch: Launch, kl: torch.Tensor) -> None:
    """Launch both kernels on some rows: the tiles, then the rows."""
    N, device = len(kl), kl.device
    BN, BV, BD = (launch.blocks[name] for name in ("BN", "BV", "BD"))
    NV = triton.cdiv(V, BV)
    scratch = kl.new_empty(5, NV, N)
    heads: list[Any] = []
    constants: dict[str, float] = {"LOWEST": LOWEST}
    for name, each in zip("PQ", both, strict=True):
        hidden, weight = each.hidden, each.weight
        assert weight is not None
        by_copy_engine = copy_engine_takes(hidden, weight)
        constants |= {f"D_{name}": hidden.shape[1], f"CAPPED_{name}": each.softcap is not None}
        constants[f"COPY_ENGINE_{name}"] = by_copy_engine
        tensors = (descriptor(hidden, BN, BD), descriptor(weight, BV, BD)) if by_copy_engine else (hidden, weight)
        numbers = hidden.stride(0), weight.stride(0), *rate_and_cap(each.scale, each.softcap)
        heads += [*tensors, each.bias, numbers]
    programs = min(triton.cdiv(N, BN) * NV, multiprocessors(device))
    divergence_tile_kernel[(programs,)](*heads, *scratch.unbind(), N, V, **constants, **launch.arguments())
    row_launch = ROW_LAUNCHES.at(device, "any")
    divergence_row_kernel[(triton.cdiv(N, row_launch.blocks["BR"]),)](
        *(*scratch.unbind(), kl, N, NV), LOWEST=LOWEST, LN_2=math.log(2), **row_launch.arguments()
    )
