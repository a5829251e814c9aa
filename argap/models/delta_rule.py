"""The delta rule's recurrence step by step, and what it costs in chunks (`argap.kernels.delta_rule`).

S_t = S_{t−1} + β_t k_tᵀ (v_t − k_t S_{t−1}) and y_t = q_t S_t (arXiv 2406.06484, section 2.2, transposed):
what S holds for a key is moved towards its new value by β, not added to.

Legend: B batch, H heads, T positions, C positions of a chunk, N = ⌈T / C⌉ chunks, K key size, V value size.
"""

import torch


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
    """The matrix products of `argap.kernels.delta_rule`: in each chunk, filled up to C positions, 4·C²·K for
    K Kᵀ and Q Kᵀ, C²·(K + V) for the triangular solve, 2·C²·V for the scores' use, 6·C·K·V for S."""
    size = length if chunk is None else min(chunk, length)
    chunks = -(-length // size)
    a_chunk = size**2 * (4 * key + (key + value) + 2 * value) + 6 * size * key * value
    return batch * heads * chunks * a_chunk
