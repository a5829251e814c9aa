"""Sliding-window attention by a kernel that skips what lies outside the window.

transformers gives PyTorch's attention a mask of T × T, and all of its products are computed. Without padding the mask
is one for the whole batch, which `torch.Tensor.expand` shows by a stride of 0; only such a mask is left out.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from argap.checkpoints.rebinding import rebind
from argap.kernels.attention.sliding_attention import sliding_attention

INTERFACES = "ALL_ATTENTION_FUNCTIONS"
"""The global by which attention layers look up a function by the name of their implementation."""
OTHERS = ("softcap", "s_aux", "position_bias", "cu_seq_lens_q", "cu_seq_lens_k")
"""Options that change a result."""


def skip_outside_windows(model: nn.Module) -> None:
    """Let the attention layers of ``model`` run `sliding_attention` where their window is shorter than the text."""
    rebind(model, {INTERFACES: _with_windows})


def _with_windows(interfaces: Any) -> Any:
    """Return the functions of ``interfaces`` with another one in the place of PyTorch's."""
    own = type(interfaces)()
    for name in interfaces:
        own[name] = interfaces[name]
    own["sdpa"] = partial(_attend, interfaces["sdpa"])
    return own


def _attend(
    plain: Callable[..., Any],
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Attend with ``query [B, H, T, K]`` and ``key`` and ``value [B, G, T, K]``; return ``[B, T, H, K]``."""
    (B, _, T, K), G = query.shape, key.shape[1]
    fits = key.shape == value.shape == (B, G, T, K) and not any(options.get(name) is not None for name in OTHERS)
    if not (sliding_window and sliding_window < T and fits and _of_all(attention_mask)):
        given = {"scaling": scaling, "sliding_window": sliding_window, **options}
        return plain(module, query, key, value, attention_mask, **given)
    return sliding_attention(query, key, value, sliding_window, scale=scaling).transpose(1, 2), None


def _of_all(mask: torch.Tensor | None) -> bool:
    """Return whether ``mask [B, 1, T, T]`` is one for all B > 1 sequences."""
    return mask is not None and mask.dim() == 4 and len(mask) > 1 == mask.shape[1] and mask.stride(0) == 0
