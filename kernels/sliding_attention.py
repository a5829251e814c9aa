"""Sliding-window attention: each position sees itself and the w − 1 before.

On a GPU the flash kernel of torch takes the window, in float16 and bfloat16; elsewhere, and for gradients,
blocks of queries meet the keys of their block and of the one before.

Legend: B batch, H heads, T positions, K key and value size, w window.
"""

import torch
import torch.nn.functional as F
from torch.nn.attention.varlen import varlen_attn

from argap.kernels.chunks import in_chunks
from argap.kernels.language import runs_kernels

LARGEST_KEY, AMPERE = 256, (8, 0)
"""What the flash kernel takes, and where it runs."""


def sliding_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, window: int) -> torch.Tensor:
    """``q``, ``k``, ``v`` ``[B, H, T, K]`` to the same shape: softmax attention over the last ``window``
    positions. A view of ``[B, T, H, K]`` costs no copy."""
    flash = q.dtype in (torch.float16, torch.bfloat16) and q.shape[-1] % 8 == 0 and q.shape[-1] <= LARGEST_KEY
    if flash and runs_kernels(q, k, v) and torch.cuda.get_device_capability(q.device) >= AMPERE:
        return _by_flash(q, k, v, window)
    return sliding_attention_reference(q, k, v, window)


def sliding_attention_reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, window: int) -> torch.Tensor:
    """`sliding_attention` by blocks of ``window`` queries, so that work and memory grow as T·w."""
    heads, length = q.shape[1:3]
    q, k, v = (in_chunks(x, window) for x in (q, k, v))
    k, v = (torch.cat([F.pad(x, (0, 0, 0, 0, 1, 0))[:, :, :-1], x], dim=-2) for x in (k, v))
    query = torch.arange(window, device=q.device)[:, None]
    key = torch.arange(2 * window, device=q.device)  # the block itself from ``window`` on
    seen = ((key > query) & (key <= query + window)).repeat(q.shape[2], 1, 1)
    seen[0, :, :window] = False  # nothing is before the first block
    q, k, v = (x.flatten(1, 2) for x in (q, k, v))
    y = F.scaled_dot_product_attention(q, k, v, attn_mask=seen.repeat(heads, 1, 1))
    return y.unflatten(1, (heads, -1)).flatten(2, 3)[:, :, :length]


def _by_flash(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, window: int) -> torch.Tensor:
    """All sequences of the batch as one row of sequences."""
    batch, _, length, _ = q.shape
    ends = torch.arange(batch + 1, device=q.device, dtype=torch.int32) * length
    q, k, v = (x.transpose(1, 2).flatten(0, 1) for x in (q, k, v))
    y = varlen_attn(q, k, v, ends, ends, length, length, window_size=(window - 1, 0))
    assert isinstance(y, torch.Tensor)  # without log-sum-exp there is nothing beside it
    return y.unflatten(0, (batch, length)).transpose(1, 2)
