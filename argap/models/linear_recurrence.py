"""A step of linear attention with decay, and the operations of its chunks.

S_t = a_t ⊙ S_{t−1} + k_tᵀ v_t and y_t = q_t S_t; over many positions: `argap.kernels.linear_attention` and
`argap.kernels.gla`.

Legend: B batch, H heads, T positions, C positions of a chunk, K key size, V value size, G the size of a
decay: 1 or K.
"""

import torch


def recurrence_step(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, state: torch.Tensor, log_decay: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """One position: ``q``, ``k`` ``[B, H, K]``, ``v [B, H, V]``, ``state [B, H, K, V]`` and
    ``log_decay [B or 1, H, G]`` to ``y [B, H, V]`` and the state after it, in the state's type."""
    q, k, v = q.to(state.dtype), k.to(state.dtype), v.to(state.dtype)
    if log_decay is not None:
        state = state * log_decay.to(state.dtype).exp()[..., None]
    state = state + k[..., :, None] * v[..., None, :]
    return (q[..., None, :] @ state)[..., 0, :], state


def recurrence_flops(batch: int, heads: int, length: int, key: int, value: int, chunk: int | None) -> int:
    """The matrix products of the chunked form: in each chunk, filled up to C positions, C² scores and their
    use, 2·C²·(K + V), and 4·C·K·V to read and to write S. The decays, O(C²·G), are left out."""
    size = length if chunk is None else min(chunk, length)
    chunks = -(-length // size)
    return batch * heads * chunks * (2 * size**2 * (key + value) + 4 * size * key * value)
