"""Mixers whose family writes out a loop over positions or chunks: lightning attention, RWKV-4, RG-LRU and others.

Each function takes the family's own function or method first, then, for a method, the module.

Legend: B batch, T positions, D width, H heads, K key size, V value size.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from argap.kernels.fused.gated_product import gated_product
from argap.kernels.recurrent.delta_rule import delta_rule
from argap.kernels.recurrent.linear_attention import linear_attention
from argap.kernels.recurrent.wkv import wkv
from argap.kernels.scan.diagonal_scan import diagonal_scan
from argap.scoring.operators.mamba import handed_on

Plain = Callable[..., Any]
IN_CACHE = 64
"""Positions of RWKV-4 at once on a CPU, whose sums fit its cache."""
LARGEST_GATE = 20.0
"""Input gates capped at this keep e^gate, and sums of it over any length, far below float32's largest number."""


def lightning_attention(
    plain: Plain,
    module: Any,
    hidden_states: torch.Tensor,
    position_embeddings: Any = None,
    attention_mask: torch.Tensor | None = None,
    past_key_values: Any = None,
    **options: Any,
) -> Any:
    """Run MiniMax's lightning attention, which is linear attention with one decay e^{−slope} per head.

    (arXiv 2401.04658, section 3; arXiv 2501.08313, section 2.2.)
    """
    if past_key_values is not None:
        return plain(hidden_states, position_embeddings, attention_mask, past_key_values, **options)
    B, T, _ = hidden_states.shape
    projected = module.act_fn(module.qkv_proj(hidden_states))
    if attention_mask is not None:
        projected = (projected * attention_mask[:, :, None]).to(projected.dtype)
    heads = projected.view(B, T, module.num_attention_heads, 3 * module.head_dim).transpose(1, 2)
    y, state = linear_attention(*heads.chunk(3, dim=-1), log_decay=-module.slope_rate.flatten().float())
    y = module.norm(y.transpose(1, 2).reshape(B, T, -1))
    y = gated_product(module.output_gate(hidden_states), y, "sigmoid")
    return module.out_proj(y), state


def mlstm(
    plain: Plain,
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    igate: torch.Tensor,
    fgate: torch.Tensor,
    c_initial: torch.Tensor | None = None,
    n_initial: torch.Tensor | None = None,
    m_initial: torch.Tensor | None = None,
    **options: Any,
) -> Any:
    """Run xLSTM's matrix memory in inference mode: y_t = q_t C_t / (max(|q_t n_t|, 1) + ε e^{m_t}).

    C_t = σ(f_t) C_{t−1} + e^{i_t} k_tᵀ v_t, and n_t is the same sum of keys (arXiv 2405.04517, eqs. 19 to 27). The
    paper divides both by e^{m_t}, the largest weight so far, so that nothing overflows; a soft cap of the gates does
    that as well, and leaves linear attention. Queries and keys are ``[B, H, T, K]``, values ``[B, H, T, V]``, gates
    ``[B, H, T]``; states are divided by e^m, as the family's are.
    """
    cap = module.config.gate_soft_cap
    if options or "inference" not in module.config.mode or cap is None or cap > LARGEST_GATE:
        given = {"c_initial": c_initial, "n_initial": n_initial, "m_initial": m_initial}
        return plain(query=query, key=key, value=value, igate=igate, fgate=fgate, **given, **options)
    igate, log_decay = igate.float(), F.logsigmoid(fgate.float())
    m = igate.new_zeros(*igate.shape[:2], 1) if m_initial is None else m_initial.float()
    decayed = log_decay.cumsum(dim=-1)
    largest = decayed + torch.maximum((igate - decayed).cummax(dim=-1).values, m)
    written = igate.exp()
    query = query * query.shape[-1] ** -0.5
    c = None if c_initial is None else c_initial * m[..., None].exp()
    n = None if n_initial is None else (n_initial * m.exp())[..., None]
    y, c = linear_attention(query, key, value, log_decay=log_decay, step=written, state=c)
    ones = value.new_ones(1, 1, 1, 1).expand(*written.shape, 1)
    sums, n = linear_attention(query, key, ones, log_decay=log_decay, step=written, state=n)
    y /= sums.float().abs().clamp_min(1.0) + module.config.eps * largest[..., None].exp()
    assert c is not None
    assert n is not None
    last = largest[..., -1:]
    return y, (c / last[..., None].exp(), n[..., 0] / last.exp(), last)


def mlstm_in_float32(plain: Plain, module: Any, *, query: torch.Tensor, **options: Any) -> Any:
    """Run the family's own form, which in inference mode mixes dtypes unless all are float32."""
    options = {name: x.float() if isinstance(x, torch.Tensor) else x for name, x in options.items()}
    y, states = plain(query=query.float(), **options)
    return y.to(query.dtype), states


def rwkv4(
    plain: Plain,
    time_decay: torch.Tensor,
    time_first: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    state: Any = None,
    return_state: bool = False,
) -> Any:
    """Run RWKV-4's average (`argap.kernels.recurrent.wkv`) of ``key`` and ``value`` ``[B, T, D]``."""
    if state is not None or return_state:
        return plain(time_decay, time_first, key, value, state=state, return_state=return_state)
    size = key.shape[1] if key.is_cuda else IN_CACHE
    outputs, sums = [], None
    for k, v in zip(key.split(size, dim=1), value.split(size, dim=1), strict=True):
        y, sums = wkv(k, v, time_decay.float().exp(), time_first, state=sums)
        outputs.append(y)
    return torch.cat(outputs, dim=1).to(key.dtype), None


def rg_lru(
    plain: Plain,
    module: Any,
    hidden_states: torch.Tensor,
    recurrent_gate: torch.Tensor,
    reset: torch.Tensor,
    recurrent_states: torch.Tensor | None,
    **options: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Run RG-LRU's recurrence h_t = a_t ⊙ h_{t−1} + x_t (arXiv 2402.19427, eq. 4) in float32.

    ``hidden_states`` x and ``recurrent_gate`` a ``[B, T, D]``; ``reset [B or 1, T, 1]`` sets a to 0.
    """
    if options or hidden_states.shape[1] == 1:
        given = {"hidden_states": hidden_states, "recurrent_gate": recurrent_gate, "reset": reset}
        return plain(**given, recurrent_states=recurrent_states, **options)
    starts = reset[..., 0].expand(hidden_states.shape[:2])
    return diagonal_scan(recurrent_gate, hidden_states, starts=starts, state=recurrent_states)


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
