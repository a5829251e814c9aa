"""The functions of Mamba's and Mamba-2's mixers: the short convolution, the selective scan and Mamba-2's SSD.

Each takes the arguments of transformers' function of that name, which are those of the packages ``causal-conv1d`` and
``mamba-ssm``, and the family's own function first, which it calls for what argap's operator does not do.

Legend: B batch, T positions, D width, W taps, H heads of P channels, G groups of heads with one key, N states, E
channels.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F

from argap.kernels.convolution.short_convolution import short_convolution
from argap.kernels.fused.residual_norm import residual_norm
from argap.kernels.fused.step_decay import step_and_decay
from argap.kernels.recurrent.linear_attention import linear_attention
from argap.kernels.scan.selective_scan import selective_scan

Plain = Callable[..., Any]
SILU = ("silu", "swish")
CHANNELS, POSITIONS = 128, 128
"""Of a block of the selective scan on a CPU."""
OTHERS = frozenset(
    (
        *("seq_idx", "cu_seqlens", "cu_seq_lens_q", "cu_seq_lens_k", "initial_states", "initial_state", "z"),
        *("return_final_states", "final_states_out", "return_varlen_states", "state_batch_indices", "head_first"),
        *("scale", "A_log", "dt_bias", "lower_bound", "use_gate_in_kernel", "use_beta_sigmoid_in_kernel"),
        *("allow_neg_eigval", "transpose_state_layout", "cp_context"),
    )
)
"""Options of the packages' functions that change a result; those that an operator does not take go to the family's own
function."""


def handed_on(options: Mapping[str, object]) -> bool:
    """Return whether ``options`` ask for something that only the family's own function does."""
    return any(value is not None and value is not False for name, value in options.items() if name in OTHERS)


def causal_conv1d(
    plain: Plain,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    activation: str | None = None,
    **options: Any,
) -> torch.Tensor:
    """Convolve ``x [B, D, T]`` with ``weight [D, W]``, whose last tap is the current position's; return ``[B, D, T]``.

    In memory the result is ``[B, T, D]``, as the projections before and after it are.
    """
    if handed_on(options) or not (activation is None or activation in SILU):
        return plain(x, weight, bias, activation=activation, **options)
    taps = torch.stack(weight.unbind(-1)[::-1])  # one copy, by rows
    return short_convolution(x.transpose(1, 2), taps, bias, silu=activation is not None)[0].transpose(1, 2)


def mamba2_scan(
    plain: Plain,
    x: torch.Tensor,
    dt: torch.Tensor,
    A: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    chunk_size: int,
    D: torch.Tensor | None = None,
    dt_bias: torch.Tensor | None = None,
    initial_states: torch.Tensor | None = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, float("inf")),
    return_final_states: bool = False,
    **options: Any,
) -> Any:
    """Compute Mamba-2's SSD of ``x [B, T, H, P]`` as linear attention with one decay per head and position.

    S_t = e^{A Δ_t} S_{t−1} + B_tᵀ Δ_t x_t and y_t = C_t S_t + D ⊙ x_t (arXiv 2405.21060, eq. 2 and section 7), with
    ``dt [B, T, H]``, ``A [H]``, ``B`` and ``C`` ``[B, T, G, N]``, ``D [H]`` or ``[H, P]`` and states ``[B, H, P, N]``.
    Δ is kept in float32, and ``y [B, T, H, P]`` has the dtype of ``x``.
    """
    if handed_on(options):
        given = {"D": D, "dt_bias": dt_bias, "initial_states": initial_states, "dt_softplus": dt_softplus}
        given |= {"dt_limit": dt_limit, "return_final_states": return_final_states}
        return plain(x, dt, A, B, C, chunk_size, **given, **options)
    if dt_softplus and dt_bias is not None:
        step, log_decay = step_and_decay(dt, dt_bias, A, *dt_limit)
    else:
        step = dt.float() if dt_bias is None else dt.float() + dt_bias.float()
        step = (F.softplus(step) if dt_softplus else step).clamp(*dt_limit)
        log_decay = step * A.float()
    y, state = linear_attention(
        *(part.transpose(1, 2) for part in (C, B, x)),
        log_decay=log_decay.transpose(1, 2),
        step=step.transpose(1, 2),
        skip=D if D is None or D.dim() == 1 else None,
        state=None if initial_states is None else initial_states.mT,
        keep_state=return_final_states,
    )
    y = y.transpose(1, 2).contiguous()  # of the kernel it is, and families take views of it
    if D is not None and D.dim() == 2:
        y = y.addcmul_(x, D.to(y.dtype))
    return (y, state.mT) if state is not None else y


def mamba_scan(
    plain: Plain,
    x: torch.Tensor,
    dt: torch.Tensor,
    A: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    D: torch.Tensor | None = None,
    z: torch.Tensor | None = None,
    delta_bias: torch.Tensor | None = None,
    delta_softplus: bool = False,
    return_last_state: bool = False,
    **options: Any,
) -> Any:
    """Run Mamba's selective scan of ``x [B, E, T]`` (`argap.kernels.scan.selective_scan`).

    ``dt`` and ``z`` are like ``x``, ``A [E, N]``, ``B`` and ``C`` ``[B, N, T]``, ``D`` and ``delta_bias`` ``[E]``, the
    last state ``[B, E, N]``.
    """
    if not delta_softplus or B.dim() != 3 or handed_on(options):
        given = {"D": D, "z": z, "delta_bias": delta_bias, "delta_softplus": delta_softplus}
        return plain(x, dt, A, B, C, **given, return_last_state=return_last_state, **options)
    step = dt.transpose(1, 2)
    if delta_bias is not None:  # one pass turns the positions to the front and adds the bias
        if torch.is_grad_enabled():
            step = (step + delta_bias).contiguous()
        else:
            step = torch.add(step, delta_bias, out=torch.empty(step.shape, dtype=step.dtype, device=step.device))
    gate = None if z is None else z.transpose(1, 2)
    scan = selective_scan if x.is_cuda else _scan_in_blocks
    y, state = scan(x.transpose(1, 2), step, A, B.transpose(1, 2), C.transpose(1, 2), skip=D, gate=gate)
    y = y.transpose(1, 2)
    return (y, state) if return_last_state else y


def mamba_block(plain: Plain, module: Any, x: torch.Tensor, **options: Any) -> torch.Tensor:
    """Add a mixer's output to its input ``x [B, T, D]``, normed from float32 without a copy in the weights' dtype.

    It stands for the ``forward`` of transformers' Mamba blocks. In the first layer and where the residual stream is not
    in float32, the family's own runs.
    """
    norm = module.norm
    if not module.residual_in_fp32 or x.dtype != torch.float32 or norm.weight.dtype == torch.float32:
        return plain(x, **options)
    normed, x = residual_norm(x, norm.weight, norm.variance_epsilon, dtype=norm.weight.dtype)
    return x + module.mixer(normed, **options)


def falcon_h1_layer(
    plain: Plain,
    module: Any,
    x: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    mamba_attention_mask: torch.Tensor | None = None,
    position_ids: torch.Tensor | None = None,
    past_key_values: Any = None,
    use_cache: bool | None = False,
    position_embeddings: Any = None,
    **options: Any,
) -> tuple[torch.Tensor]:
    """Run Falcon-H1's layer on ``x [B, T, D]``, scaling attention and Mamba-2 as they are added to the stream.

    The family's own passes over memory once for each factor and once for each sum.
    """
    normed = module.input_layernorm(x)
    mixed = module.mamba(
        hidden_states=normed, cache_params=past_key_values, attention_mask=mamba_attention_mask, **options
    )
    attended, _ = module.self_attn(
        hidden_states=normed * module.attention_in_multiplier,
        attention_mask=attention_mask,
        position_ids=position_ids,
        past_key_values=past_key_values,
        use_cache=use_cache,
        position_embeddings=position_embeddings,
        **options,
    )
    x = x.add(mixed, alpha=module.ssm_out_multiplier).add_(attended, alpha=module.attn_out_multiplier)
    return (x + module.feed_forward(module.pre_ff_layernorm(x)),)


def _scan_in_blocks(
    u: torch.Tensor,
    step: torch.Tensor,
    A: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    *,
    skip: torch.Tensor | None,
    gate: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Run `selective_scan` in blocks of channels and positions whose states fit a processor's cache.

    All at once it would take twice the time of the family's loop over positions; in blocks it takes half.
    """
    T, E = u.shape[1:]
    blocks = [slice(at, at + CHANNELS) for at in range(0, E, CHANNELS)]
    outputs, states = [], []
    for e in blocks:
        parts, state = [], None
        options = {} if skip is None else {"skip": skip[e]}
        for t in (slice(at, at + POSITIONS) for at in range(0, T, POSITIONS)):
            gated = None if gate is None else gate[:, t, e]
            part, state = selective_scan(
                u[:, t, e], step[:, t, e], A[e], B[:, t], C[:, t], gate=gated, state=state, **options
            )
            parts.append(part)
        outputs.append(torch.cat(parts, dim=1))
        states.append(state)
    return torch.cat(outputs, dim=2), torch.cat(states, dim=1)
