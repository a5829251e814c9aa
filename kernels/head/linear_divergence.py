"""KL divergence between two output heads, from hidden states; the logits never reach memory.

llama.cpp's ``--kl-divergence`` needs the logits of one model on disk: 2 bytes for each token and vocabulary entry. Here
both models' hidden states of the same tokens are at hand, and tiles of both logits are made and reduced together.

With logits z, a maximum m and S = Σ exp(z − m) for each model, p being the reference and q the model,

    KL(p ‖ q) = Σ p·((z_p − m_p) − (z_q − m_q)) − log S_p + log S_q,

so that logits of any offset cancel before they are added up.

Legend: N rows (tokens), D and E the hidden sizes of the two models, V vocabulary.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from argap.errors import ArgapError
from argap.kernels.head.linear_logprob import LOWEST, REFERENCE_IDS, REFERENCE_ROWS, Logits


def linear_divergence(reference: Logits, model: Logits) -> torch.Tensor:
    """Return KL(reference ‖ model) of each row, float32 ``[N]``, in nats.

    Hidden sizes, dtypes, biases, scales and soft caps may differ. Of heads with different numbers of rows, the longer
    one has padding at its end: both distributions are taken over the ids that the two have.

    Raises `ArgapError` for different numbers of rows (tokens).
    """
    if len(reference.hidden) != len(model.hidden):
        raise ArgapError(
            f"linear_divergence: {len(reference.hidden)} rows of the reference and {len(model.hidden)} of the model; "
            "expected hidden states of the same tokens"
        )
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
    # An id that the reference rules out counts 0, also where the model does.
    cross = torch.where(weight > 0, weight * (p - q), 0.0)
    return _Sums(max_p, weight.sum(1), cross.sum(1), max_q, q.exp().sum(1))


def _joined(left: _Sums, right: _Sums) -> _Sums:
    """Return the sums over the ids of both, relative to the larger maxima."""
    max_p, max_q = torch.maximum(left.max_p, right.max_p), torch.maximum(left.max_q, right.max_q)
    total = [torch.zeros_like(max_p) for _ in range(3)]
    for each in (left, right):
        shift_p, shift_q = each.max_p - max_p, each.max_q - max_q
        factor = shift_p.exp()
        cross = each.cross + each.sum_p * (shift_p - shift_q)
        parts = factor * each.sum_p, torch.where(factor > 0, factor * cross, 0.0), shift_q.exp() * each.sum_q
        total = [whole + part for whole, part in zip(total, parts, strict=True)]
    sum_p, cross, sum_q = total
    return _Sums(max_p, sum_p, cross, max_q, sum_q)
