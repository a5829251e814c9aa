"""The gated delta rule of Qwen3-Next, Qwen3.5 and OLMo-Hybrid, and Kimi delta attention."""

from collections.abc import Callable
from typing import Any

import torch

from argap.kernels.recurrent.delta_rule import delta_rule
from argap.scoring.operators.mamba import handed_on

SMALLEST_SQUARE = 1e-6
"""Added to the squared norm of queries and keys."""


def gated_delta_rule(
    plain: Callable[..., Any],
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    chunk_size: int = 64,
    initial_state: torch.Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    **options: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Run `argap.kernels.recurrent.delta_rule` with the arguments of flash-linear-attention's functions.

    B sequences, T positions, H heads: ``query`` and ``key [B, T, G, K]``, each group for H / G heads, ``value
    [B, T, H, V]``, log decays ``g [B, T, H]``, or ``[B, T, H, K]`` for Kimi delta attention, ``beta [B, T, H]``.
    Returns ``[B, T, H, V]`` and the last state ``[B, H, K, V]``.
    """
    if handed_on(options):
        given = {"chunk_size": chunk_size, "initial_state": initial_state, "output_final_state": output_final_state}
        given["use_qk_l2norm_in_kernel"] = use_qk_l2norm_in_kernel
        return plain(query, key, value, g=g, beta=beta, **given, **options)
    y, state = delta_rule(
        *(part.transpose(1, 2) for part in (query, key, value, beta)),
        log_decay=g.transpose(1, 2),
        normalize=use_qk_l2norm_in_kernel,
        norm_eps=SMALLEST_SQUARE,
        scale=query.shape[-1] ** -0.5,
        state=initial_state,
    )
    return y.transpose(1, 2).contiguous(), state if output_final_state else None
