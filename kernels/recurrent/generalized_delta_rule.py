"""The generalized delta rule: a state that decays by channel and is corrected along keys of its own, as in RWKV-7.

Legend: B batch, H heads, T positions, C positions per chunk, K key size, V value size.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from argap.kernels.recurrent.recurrence import decayed_scores, in_chunks


def generalized_delta_rule(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    log_decay: torch.Tensor,
    state: torch.Tensor | None = None,
    chunk: int | None = 16,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute S_t = diag(w_t) S_{t−1} + b_tᵀ (a_t S_{t−1}) + k_tᵀ v_t and y_t = q_t S_t (arXiv 2503.14456, section 4).

    The paper's state is the transpose. With w_t = 1, a_t = k_t, b_t = −β_t k_t and values β_t v_t this is the delta
    rule.

    Args:
        q, k, a, b: ``[B, H, T, K]``.
        v: ``[B, H, T, V]``.
        log_decay: log w ≤ 0, ``[B, H, T, K]``.
        state: S before the first position, ``[B, H, K, V]``; None: 0.
        chunk: C, positions solved for at once, with K decays for each pair; None: all.

    Returns:
        y ``[B, H, T, V]`` in the dtype of ``v``, and S after the last position ``[B, H, K, V]`` in float32 or wider.

    Runs in PyTorch, in float32 or wider; differentiable. In a chunk after the state S the read values p_t = a_t S_{t−1}
    are W S + U with (I − A_ab) [W, U] = [ȧ, A_ak V], where A_xy are the decayed products of the x of a position with
    the y of earlier ones and ȧ is a decayed from the chunk's start: one triangular solve for all chunks. No exponent is
    positive.
    """
    dtype = torch.promote_types(q.dtype, torch.float32)
    length = q.shape[2]
    size = length if chunk is None else min(chunk, length)
    out_dtype = v.dtype
    with torch.autocast(q.device.type, enabled=False):
        q, k, v, a, b, decay = (in_chunks(x.to(dtype), size) for x in (q, k, v, a, b, log_decay))
        decay = decay.cumsum(dim=-2)
        # 1. Products of the pairs in a chunk. a reads the state before its position: its row is the next one's.
        later = F.pad(a[..., 1:, :], (0, 0, 0, 1))
        lower, from_k = (F.pad(decayed_scores(later, x, decay)[..., :-1, :], (0, 0, 1, 0)) for x in (b, k))
        on_b, on_k = decayed_scores(q, b, decay), decayed_scores(q, k, decay)
        # 2. Queries and a decayed from the chunk's start, k and b to its end.
        total = decay[..., -1:, :]
        q_decayed, a_decayed = q * decay.exp(), a * F.pad(decay[..., :-1, :], (0, 0, 1, 0)).exp()
        k_left, b_left = (x * (total - decay).exp() for x in (k, b))
        # 3. W and U of every chunk; the solver takes the diagonal to be 1.
        right = torch.cat([a_decayed, from_k @ v], dim=-1)
        solved = torch.linalg.solve_triangular(-lower, right, upper=False, unitriangular=True)
        w, u = solved.split((k.shape[-1], v.shape[-1]), dim=-1)
        # 4. Chunk by chunk: the read values, the output, the state.
        h = q.new_zeros(*q.shape[:2], k.shape[-1], v.shape[-1]) if state is None else state.to(dtype)
        kept, outputs = total.exp().mT, []
        for n in range(q.shape[2]):
            read = u[:, :, n] + w[:, :, n] @ h
            outputs.append(q_decayed[:, :, n] @ h + on_b[:, :, n] @ read + on_k[:, :, n] @ v[:, :, n])
            h = kept[:, :, n] * h + b_left[:, :, n].mT @ read + k_left[:, :, n].mT @ v[:, :, n]
        return torch.stack(outputs, dim=2).flatten(2, 3)[:, :, :length].to(out_dtype), h
