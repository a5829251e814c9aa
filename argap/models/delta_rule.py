"""The delta rule's recurrence, in chunks and step by step.

S_t = S_{t−1} + β_t k_tᵀ (v_t − k_t S_{t−1}) and y_t = q_t S_t (arXiv 2406.06484, eqs. 4 and 5, transposed):
what S holds for a key is moved towards its new value by β, not added to.

Legend: B batch, H heads, T positions, C positions of a chunk, N = ⌈T / C⌉ chunks, K key size, V value size.
"""

import torch

from argap.models.chunks import in_chunks


def chunked_delta_rule(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    beta: torch.Tensor,
    chunk: int | None,
    state: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``q``, ``k`` ``[B, H, T, K]``, ``v [B, H, T, V]`` and ``beta [B, H, T]`` to ``y [B, H, T, V]`` and S
    after them ``[B, H, K, V]``; ``state`` is S before them, None: 0.

    The WY representation (the paper's eqs. 7 to 11): with L the part below the diagonal of diag(β) K Kᵀ,
    the pseudo-values that a chunk adds to S are U − W S with (I + L) [W, U] = diag(β) [K, V], one
    triangular solve for all chunks. ``chunk`` None is the parallel form, one chunk. In float32 or wider.
    """
    kind = torch.promote_types(q.dtype, torch.float32)
    length = q.shape[2]
    size = length if chunk is None else min(chunk, length)
    with torch.autocast(q.device.type, enabled=False):
        q, k, v, beta = (in_chunks(x.to(kind), size) for x in (q, k, v, beta[..., None]))
        weighted = beta * k
        lower = (weighted @ k.mT).tril(-1)
        solved = torch.linalg.solve_triangular(  # it takes the diagonal for 1
            lower, torch.cat([weighted, beta * v], dim=-1), upper=False, unitriangular=True
        )
        w, u = solved.split((k.shape[-1], v.shape[-1]), dim=-1)
        scores = (q @ k.mT).tril()
        now = q.new_zeros(*q.shape[:2], k.shape[-1], v.shape[-1]) if state is None else state.to(kind)
        outputs = []
        for n in range(q.shape[2]):
            added = u[:, :, n] - w[:, :, n] @ now
            outputs.append(q[:, :, n] @ now + scores[:, :, n] @ added)
            now = now + k[:, :, n].mT @ added
        return torch.stack(outputs, dim=2).flatten(2, 3)[:, :, :length], now


def delta_rule_step(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, beta: torch.Tensor, state: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """One position: ``q``, ``k`` ``[B, H, K]``, ``v [B, H, V]``, ``beta [B, H]`` and ``state [B, H, K, V]``
    to ``y [B, H, V]`` and the state after it, in the state's type."""
    q, k, v, beta = (x.to(state.dtype) for x in (q, k, v, beta[..., None]))
    held = (k[..., None, :] @ state)[..., 0, :]
    state = state + k[..., :, None] * (beta * (v - held))[..., None, :]
    return (q[..., None, :] @ state)[..., 0, :], state


def delta_rule_flops(batch: int, heads: int, length: int, key: int, value: int, chunk: int | None) -> int:
    """The matrix products of `chunked_delta_rule`: in each chunk, filled up to C positions, 4·C²·K for
    K Kᵀ and Q Kᵀ, C²·(K + V) for the triangular solve, 2·C²·V for the scores' use, 6·C·K·V for S."""
    size = length if chunk is None else min(chunk, length)
    chunks = -(-length // size)
    a_chunk = size**2 * (4 * key + (key + value) + 2 * value) + 6 * size * key * value
    return batch * heads * chunks * a_chunk
