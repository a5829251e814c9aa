"""The reference of linear attention with decay, in chunks.

S_t = a_t ⊙ S_{t−1} + k_tᵀ v_t and y_t = q_t S_t, where a_t weighs the rows of S: 1 in linear attention
(arXiv 2006.16236, eqs. 18 to 20), one number a head in retention (arXiv 2307.08621, eq. 6), one number
a row that the input sets in gated linear attention (arXiv 2312.06635, eq. 3).

Legend: B batch, H heads, T positions, C positions of a chunk, N = ⌈T / C⌉ chunks, K key size, V value
size, G the size of a decay: 1 or K.
"""

import torch

from argap.kernels.chunks import in_chunks


def chunked_recurrence(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    chunk: int | None,
    log_decay: torch.Tensor | None = None,
    state: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``q``, ``k`` ``[B, H, T, K]`` and ``v [B, H, T, V]`` to ``y [B, H, T, V]`` and S after them ``[B, H, K, V]``.

    ``log_decay [B or 1, H, T, G]`` is log a_t ≤ 0; None: no decay. ``state`` is S before them; None: 0.
    Within a chunk all pairs are compared, between chunks S is carried; ``chunk`` None is the parallel
    form, one chunk. No exponent is ever positive, so that no decay is too strong. In float32 or wider.
    """
    kind = torch.promote_types(q.dtype, torch.float32)
    length = q.shape[2]
    size = length if chunk is None else min(chunk, length)
    with torch.autocast(q.device.type, enabled=False):
        # What fills up the last chunk is 0: it adds nothing to S, and its decay is 1.
        q, k, v = (in_chunks(x.to(kind), size) for x in (q, k, v))
        decay = None if log_decay is None else in_chunks(log_decay.to(kind), size).cumsum(dim=-2)
        seen = torch.ones(size, size, dtype=torch.bool, device=q.device).tril()
        if decay is None:
            scores = (q @ k.mT).masked_fill(~seen, 0)
            read, written, kept = q, k, None
        else:
            whole = decay[..., -1:, :]  # over the chunk
            between = decay[..., :, None, :] - decay[..., None, :, :]  # [B, H, N, C, C, G]
            weights = between.masked_fill(~seen[..., None], -torch.inf).exp()
            if decay.shape[-1] == 1:
                scores = (q @ k.mT) * weights[..., 0]
            else:
                scores = (q[..., :, None, :] * k[..., None, :, :] * weights).sum(dim=-1)
            read, written, kept = q * decay.exp(), k * (whole - decay).exp(), whole.exp().mT
        added = written.mT @ v
        now = torch.zeros_like(added[:, :, 0]) if state is None else state.to(kind)
        before = []
        for n in range(added.shape[2]):
            before.append(now)
            now = (now if kept is None else kept[:, :, n] * now) + added[:, :, n]
        y = scores @ v + read @ torch.stack(before, dim=2)
        return y.flatten(2, 3)[:, :, :length], now
