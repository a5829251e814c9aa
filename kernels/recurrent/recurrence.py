"""Linear recurrences in PyTorch, differentiable: in chunks for matrix states, by a parallel scan for any state.

Legend: B batch, H heads, T positions, C positions per chunk, N = ⌈T / C⌉ chunks, K key size, V value size.
"""

import torch
import torch.nn.functional as F


def in_chunks(x: torch.Tensor, size: int) -> torch.Tensor:
    """Reshape ``[B, H, T, X]`` to ``[B, H, ⌈T / size⌉, size, X]``, padding the last chunk with zeros."""
    return F.pad(x, (0, 0, 0, -x.shape[2] % size)).unflatten(2, (-1, size))


def for_each_head(x: torch.Tensor, heads: int) -> torch.Tensor:
    """Return ``x [B, G, ...]`` with each of its G rows repeated for ``heads`` / G neighbouring heads."""
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], dim=1)


def chunked_recurrence(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    chunk: int | None,
    log_decay: torch.Tensor | None = None,
    state: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute S_t = a_t ⊙ S_{t−1} + k_tᵀ v_t and y_t = q_t S_t, where a_t scales the rows of S.

    a_t is 1 in linear attention (arXiv 2006.16236, eqs. 18 to 20), one number per head in retention (arXiv 2307.08621,
    eq. 6), and one input-dependent number per row in gated linear attention (arXiv 2312.06635, eq. 3).

    Args:
        q, k: ``[B, H, T, K]``.
        v: ``[B, H, T, V]``.
        chunk: C; all pairs within a chunk are compared, S is carried between chunks. None: one chunk, the parallel
            form.
        log_decay: log a_t ≤ 0, ``[B or 1, H, T, 1 or K]``; None: no decay.
        state: S before the first position, ``[B, H, K, V]``; None: 0.

    Returns:
        y ``[B, H, T, V]`` and S after the last position ``[B, H, K, V]``, in float32 or wider. No exponent is ever
        positive, so no decay is too strong.
    """
    dtype = torch.promote_types(q.dtype, torch.float32)
    length = q.shape[2]
    size = length if chunk is None else min(chunk, length)
    with torch.autocast(q.device.type, enabled=False):
        # The zeros that pad the last chunk add nothing to S, and their decay is 1.
        q, k, v = (in_chunks(x.to(dtype), size) for x in (q, k, v))
        decay = None if log_decay is None else in_chunks(log_decay.to(dtype), size).cumsum(dim=-2)
        # 1. Scores of the pairs in a chunk; queries decayed from its start, keys to its end.
        scores = decayed_scores(q, k, decay)
        if decay is None:
            q_decayed, k_decayed, chunk_decay = q, k, None
        else:
            total = decay[..., -1:, :]
            q_decayed, k_decayed, chunk_decay = q * decay.exp(), k * (total - decay).exp(), total.exp().mT
        # 2. The state before each chunk.
        updates = k_decayed.mT @ v
        state = torch.zeros_like(updates[:, :, 0]) if state is None else state.to(dtype)
        states = []
        for n in range(updates.shape[2]):
            states.append(state)
            state = (state if chunk_decay is None else chunk_decay[:, :, n] * state) + updates[:, :, n]
        # 3. Contributions of the chunk itself and of the state before it.
        y = scores @ v + q_decayed @ torch.stack(states, dim=2)
        return y.flatten(2, 3)[:, :, :length], state


LEAST = -80.0
"""The log decay of a chunk whose halves, as factors in float32, are far from its largest and smallest numbers."""


def decayed_scores(
    q: torch.Tensor, k: torch.Tensor, decay: torch.Tensor | None, least: float = float("-inf")
) -> torch.Tensor:
    """Compute Σ_c q_ic k_jc exp(G_ic − G_jc) for j ≤ i, and 0 for j > i.

    ``q``, ``k`` are ``[..., C, K]``; ``decay``, G, is the running sum of the log decays, ``[..., C, 1 or K]``, or None:
    0. Returns ``[..., C, C]``. No exponent is positive, unless no G is below ``least`` and that is at least `LEAST`:
    then both factors are decayed to the middle, which takes one product of matrices and no exponential for each pair.
    """
    causal = torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool, device=q.device).tril()
    if decay is None:
        return (q @ k.mT).masked_fill(~causal, 0)
    if decay.shape[-1] > 1 and least >= LEAST:
        from_middle = decay - decay[..., -1:, :] / 2
        return ((q * from_middle.exp()) @ (k * (-from_middle).exp()).mT).masked_fill(~causal, 0)
    between = decay[..., :, None, :] - decay[..., None, :, :]  # [..., C, C, 1 or K]
    weights = between.masked_fill(~causal[..., None], -torch.inf).exp()
    if decay.shape[-1] == 1:
        return (q @ k.mT) * weights[..., 0]
    return (q[..., :, None, :] * k[..., None, :, :] * weights).sum(dim=-1)


def linear_scan(decay: torch.Tensor, value: torch.Tensor, state: torch.Tensor | None = None) -> torch.Tensor:
    """Compute h_t = a_t ⊙ h_{t−1} + b_t for all t at once.

    ``decay`` a ``[B, T, ...]`` (broadcasts to b's shape) and ``value`` b ``[B, T, ...]`` give h ``[B, T, ...]``;
    ``state [B, ...]`` is h before the first position, None: 0.

    Two consecutive steps compose into one (Blelloch, CMU-CS-90-190, section 1.4): the recurrence over every second
    position is half as long, and the other positions follow from it. O(T) operations in O(log T) rounds, without
    division, so decays down to 0 are exact.
    """
    if state is not None:
        value = torch.cat([value[:, :1] + decay[:, :1] * state[:, None], value[:, 1:]], dim=1)
    length = value.shape[1]
    if length == 1:
        return value
    pairs = length // 2
    first_decay, first = decay[:, : 2 * pairs : 2], value[:, : 2 * pairs : 2]
    second_decay, second = decay[:, 1::2], value[:, 1::2]
    odd = linear_scan(second_decay * first_decay, second + second_decay * first)
    later = value[:, 2::2] + decay[:, 2::2] * odd[:, : (length - 1) // 2]
    even = torch.cat([value[:, :1], later], dim=1)
    return torch.cat([torch.stack([even[:, :pairs], odd], dim=2).flatten(1, 2), even[:, pairs:]], dim=1)
