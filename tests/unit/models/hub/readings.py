"""Forward passes in plain PyTorch, for float64: Mamba, Mamba-2 and RWKV-4, and the recurrences of linear attention.

Legend: B batch, T positions, H heads, K and V sizes of a head's keys and values.
"""

from collections.abc import Mapping

import torch
import torch.nn.functional as F

Weights = Mapping[str, torch.Tensor]


def rms(x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-5) -> torch.Tensor:
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight


def mamba(w: Weights, ids: torch.Tensor, *, embedding: str, eps: float = 1e-5) -> torch.Tensor:
    """Logits of a Mamba in the names of ``backbone.layers.N.mixer``; sizes are those of the tensors."""
    x, layer = w[embedding][ids], 0
    while f"backbone.layers.{layer}.norm.weight" in w:
        at = f"backbone.layers.{layer}.mixer."
        inner, states = w[f"{at}A_log"].shape
        rank, kernel = w[f"{at}dt_proj.weight"].shape[1], w[f"{at}conv1d.weight"].shape[2]
        u, z = (rms(x, w[f"backbone.layers.{layer}.norm.weight"], eps) @ w[f"{at}in_proj.weight"].T).chunk(2, dim=-1)
        padded = F.pad(u.transpose(1, 2), (kernel - 1, 0))
        u = F.silu(F.conv1d(padded, w[f"{at}conv1d.weight"], w[f"{at}conv1d.bias"], groups=inner)).transpose(1, 2)
        low, b, c = (u @ w[f"{at}x_proj.weight"].T).split([rank, states, states], dim=-1)
        step = F.softplus(low @ w[f"{at}dt_proj.weight"].T + w[f"{at}dt_proj.bias"])
        a, state, y = -w[f"{at}A_log"].exp(), torch.zeros(len(x), inner, states, dtype=x.dtype), []
        for t in range(x.shape[1]):
            state = (step[:, t, :, None] * a).exp() * state + (step[:, t] * u[:, t])[..., None] * b[:, t, None]
            y.append((state * c[:, t, None]).sum(-1))
        out = (torch.stack(y, dim=1) + u * w[f"{at}D"]) * F.silu(z)
        x, layer = x + out @ w[f"{at}out_proj.weight"].T, layer + 1
    head = w.get("lm_head.weight", w[embedding])
    return rms(x, w["backbone.norm_f.weight"], eps) @ head.T


def mamba2(w: Weights, ids: torch.Tensor, *, groups: int = 2, eps: float = 1e-5) -> torch.Tensor:
    """Logits of a Mamba-2 in mamba_ssm's names (arXiv 2405.21060, section 7); its norm is over each group of heads."""
    x, layer = w["backbone.embedding.weight"][ids], 0
    while f"backbone.layers.{layer}.norm.weight" in w:
        at = f"backbone.layers.{layer}.mixer."
        heads, inner = len(w[f"{at}D"]), len(w[f"{at}norm.weight"])
        mixed, _, kernel = w[f"{at}conv1d.weight"].shape
        states = (mixed - inner) // (2 * groups)
        projected = rms(x, w[f"backbone.layers.{layer}.norm.weight"], eps) @ w[f"{at}in_proj.weight"].T
        z, u, step = projected.split([inner, mixed, heads], dim=-1)
        padded = F.pad(u.transpose(1, 2), (kernel - 1, 0))
        u = F.silu(F.conv1d(padded, w[f"{at}conv1d.weight"], w[f"{at}conv1d.bias"], groups=mixed)).transpose(1, 2)
        u, b, c = u.split([inner, groups * states, groups * states], dim=-1)
        u = u.unflatten(-1, (heads, -1))
        b, c = (part.unflatten(-1, (groups, -1)).repeat_interleave(heads // groups, 2) for part in (b, c))
        step = F.softplus(step + w[f"{at}dt_bias"])
        a, state, y = -w[f"{at}A_log"].exp(), torch.zeros(len(x), heads, u.shape[-1], states, dtype=x.dtype), []
        for t in range(x.shape[1]):
            write = (step[:, t, :, None] * u[:, t])[..., None] * b[:, t, :, None]
            state = (step[:, t] * a).exp()[..., None, None] * state + write
            y.append((state * c[:, t, :, None]).sum(-1))
        out = (torch.stack(y, dim=1) + u * w[f"{at}D"][:, None]).flatten(2) * F.silu(z)
        out = rms(out.unflatten(-1, (groups, -1)), torch.ones((), dtype=x.dtype), eps).flatten(2)
        x, layer = x + (out * w[f"{at}norm.weight"]) @ w[f"{at}out_proj.weight"].T, layer + 1
    return rms(x, w["backbone.norm_f.weight"], eps) @ w["backbone.embedding.weight"].T


def rwkv4(w: Weights, ids: torch.Tensor) -> torch.Tensor:
    """Logits of an RWKV-4 in the names of transformers (arXiv 2305.13048, section 3), without its rescaling."""

    def norm(x: torch.Tensor, at: str) -> torch.Tensor:
        return F.layer_norm(x, x.shape[-1:], w[f"{at}.weight"], w[f"{at}.bias"], 1e-5)

    def mixed(x: torch.Tensor, at: str, name: str) -> torch.Tensor:
        """The present and the one before, a channel each in its proportion, through the map."""
        share = w[f"{at}.time_mix_{name}"]
        return (x * share + F.pad(x, (0, 0, 1, -1)) * (1 - share)) @ w[f"{at}.{name}.weight"].T

    x, block = norm(w["rwkv.embeddings.weight"][ids], "rwkv.blocks.0.pre_ln"), 0
    while f"rwkv.blocks.{block}.ln1.weight" in w:
        at = f"rwkv.blocks.{block}.attention"
        h = norm(x, f"rwkv.blocks.{block}.ln1")
        r, k, v = (mixed(h, at, name) for name in ("receptance", "key", "value"))
        decay, bonus = -w[f"{at}.time_decay"].exp(), w[f"{at}.time_first"]
        above, below, y = torch.zeros_like(k[:, 0]), torch.zeros_like(k[:, 0]), []
        for t in range(x.shape[1]):
            now = (bonus + k[:, t]).exp()
            y.append((above + now * v[:, t]) / (below + now))
            above = decay.exp() * above + k[:, t].exp() * v[:, t]
            below = decay.exp() * below + k[:, t].exp()
        x = x + (r.sigmoid() * torch.stack(y, dim=1)) @ w[f"{at}.output.weight"].T
        at, h = f"rwkv.blocks.{block}.feed_forward", norm(x, f"rwkv.blocks.{block}.ln2")
        k = mixed(h, at, "key").relu().square()
        x, block = x + mixed(h, at, "receptance").sigmoid() * (k @ w[f"{at}.value.weight"].T), block + 1
    return norm(x, "rwkv.ln_out") @ w.get("head.weight", w["rwkv.embeddings.weight"]).T


def recurrence(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    log_decay: torch.Tensor | None = None,
    beta: torch.Tensor | None = None,
) -> torch.Tensor:
    """``[B, T, H, V]``: y_t = S_tᵀ q_t / √K with S_t = diag(e^g) S_{t−1} + k (v)ᵀ, or by the delta rule k β(v − Sᵀk)ᵀ.

    ``q``, ``k``, ``log_decay [B, T, H, K]`` (or ``[H, 1]``), ``v [B, T, H, V]``, ``beta [B, T, H]``.
    """
    state, y = torch.zeros(*q.shape[:1], *q.shape[2:], v.shape[-1], dtype=q.dtype), []
    for t in range(q.shape[1]):
        if log_decay is not None:
            state = (log_decay if log_decay.ndim == 2 else log_decay[:, t]).exp()[..., None] * state
        write = v[:, t]
        if beta is not None:
            write = beta[:, t, :, None] * (write - (state * k[:, t, ..., None]).sum(-2))
        state = state + k[:, t, ..., None] * write[..., None, :]
        y.append((state * q[:, t, ..., None]).sum(-2))
    return torch.stack(y, dim=1) / q.shape[-1] ** 0.5
