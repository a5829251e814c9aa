"""Sliding-window attention: each position sees itself and the w − 1 before.

On a GPU, float16 and bfloat16 go through PyTorch's flash kernel, which supports a window. Otherwise, and for gradients,
each block of queries attends to the keys of its own block and of the previous one.

Legend: B batch, H heads, T positions, K key and value size, w window.
"""

import torch
import torch.nn.functional as F
from torch.nn.attention.varlen import varlen_attn

from argap.kernels.launch import runs_kernels
from argap.kernels.recurrent.recurrence import in_chunks

LARGEST_KEY, AMPERE = 256, (8, 0)
"""The flash kernel's largest head size, and the compute capability it requires."""


def sliding_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, window: int) -> torch.Tensor:
    """Compute softmax attention over the last ``window`` positions.

    ``q``, ``k``, ``v`` and the result are ``[B, H, T, K]``; views of ``[B, T, H, K]`` are not copied.
    """
    flash = q.dtype in (torch.float16, torch.bfloat16) and q.shape[-1] % 8 == 0 and q.shape[-1] <= LARGEST_KEY
    if flash and runs_kernels(q, k, v) and torch.cuda.get_device_capability(q.device) >= AMPERE:
        return _by_flash(q, k, v, window)
    return sliding_attention_reference(q, k, v, window)


def sliding_attention_reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, window: int) -> torch.Tensor:
    """Compute `sliding_attention` in blocks of ``window`` queries: time and memory grow as T·w."""
    heads, length = q.shape[1:3]
    q, k, v = (in_chunks(x, window) for x in (q, k, v))
    k, v = (torch.cat([F.pad(x, (0, 0, 0, 0, 1, 0))[:, :, :-1], x], dim=-2) for x in (k, v))
    query = torch.arange(window, device=q.device)[:, None]
    key = torch.arange(2 * window, device=q.device)  # the previous block, then the block itself
    mask = ((key > query) & (key <= query + window)).repeat(q.shape[2], 1, 1)
    mask[0, :, :window] = False  # nothing precedes the first block
    q, k, v = (x.flatten(1, 2) for x in (q, k, v))
    y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask.repeat(heads, 1, 1))
    return y.unflatten(1, (heads, -1)).flatten(2, 3)[:, :, :length]


def _by_flash(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, window: int) -> torch.Tensor:
    """Run `sliding_attention` through PyTorch's kernel for packed sequences of any length."""
    batch, _, length, _ = q.shape
    ends = torch.arange(batch + 1, device=q.device, dtype=torch.int32) * length
    q, k, v = (x.transpose(1, 2).flatten(0, 1) for x in (q, k, v))
    y = varlen_attn(q, k, v, ends, ends, length, length, window_size=(window - 1, 0))
    assert isinstance(y, torch.Tensor)  # a tuple only if the log-sum-exp is requested
    return y.unflatten(0, (batch, length)).transpose(1, 2)
