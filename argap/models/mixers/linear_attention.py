"""Linear attention: the weights φ(q)·φ(k) factor, so that the state has a fixed size at any length.

Legend: B batch, T positions, D width, H heads, K key size, F feature size, V = D / H.
"""

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import nn

from argap.errors import ArgapError
from argap.files.configs import Positive
from argap.kernels.recurrent.linear_attention import SMALLEST_SUM, linear_attention
from argap.kernels.recurrent.taylor_attention import taylor_attention
from argap.models.mixer import AtLeastOne, Mixer, ResidualLinear, at_least_float32, split_heads
from argap.models.mixers.feature_maps import FEATURE_MAPS, Taylor
from argap.models.recurrence import EPSILON, HeadNorm, log_decays, recurrence_flops, recurrence_step

Normalization = Literal["sum", "rms"]
State = tuple[torch.Tensor, int | torch.Tensor]


class LinearAttention(Mixer):
    """y_t = Σ_{s≤t} φ(q_t)·φ(k_s) v_s / Σ_{s≤t} φ(q_t)·φ(k_s) (arXiv 2006.16236, eqs. 9 to 12).

    Options:

    - ``heads``: by default D / 64.
    - ``feature_map``: ``elu`` (1 + elu, the paper's), ``identity``, ``relu``, ``performer`` (arXiv
      2009.14794), ``cosformer`` (arXiv 2202.08791), ``taylor`` (order 2, arXiv 2402.18668).
    - ``feature_dim``: K; by default V, but 16 for ``taylor``, where F = 1 + K + K².
    - ``random_features``: F of ``performer``.
    - ``normalization``: ``sum``, as above; ``rms``, RMSNorm of each head's unnormalised output (arXiv 2210.10340,
      section 4.1), the default for ``identity``, whose sum may vanish.
    - ``norm_eps``: epsilon of the RMSNorm.
    - ``decay``: with c < 0 head h weights the values, and not the sum that divides them, by γ^(t−s), γ = 1 − 2^(c−h)
      (github.com/HazyResearch/based, models/mixers/linear_attn.py and ``DecayClass`` in models/gpt.py).
    - ``decay_scale``: with ``decay``, also divide y_t by (Σ_{s≤t} γ^(t−s))^½, as there.
    - ``chunk_size``: positions per chunk; None: all of them, the parallel form.

    Raises `ArgapError` for an invalid option.
    """

    source = "arXiv 2006.16236, eqs. 9 to 12 and, step by step, 16 to 20"

    def __init__(
        self,
        width: int,
        max_positions: int | None = None,
        *,
        heads: int | None = None,
        feature_map: str = "elu",
        feature_dim: AtLeastOne | None = None,
        random_features: AtLeastOne = 256,
        normalization: Normalization | None = None,
        norm_eps: Positive = EPSILON,
        decay: float | None = None,
        decay_scale: bool = True,
        chunk_size: AtLeastOne | None = 64,
    ) -> None:
        super().__init__()
        self.heads = split_heads("linear_attention", width, heads, usual=width // 64)
        if feature_map not in FEATURE_MAPS:
            raise ArgapError(
                f"linear_attention: feature_map {feature_map!r}; expected one of {', '.join(FEATURE_MAPS)}"
            )
        self.key_size = feature_dim or (16 if feature_map == "taylor" else width // self.heads)
        self.features = FEATURE_MAPS[feature_map](self.key_size, max_positions, random_features)
        if normalization is None:
            normalization = "sum" if self.features.positive else "rms"
        if normalization == "sum" and not self.features.positive:
            raise ArgapError(f"linear_attention: normalization 'sum' with {feature_map!r}, whose sum may be 0; use rms")
        if decay is not None and (decay >= 0 or normalization != "sum"):
            raise ArgapError(
                f"linear_attention: decay {decay} with normalization {normalization!r}; expected a negative number "
                "and 'sum'"
            )
        taylor = isinstance(self.features, Taylor)
        self.operator = taylor_attention if taylor and decay is None else linear_attention
        self.decay, self.decay_scale = decay, decay_scale
        self.chunk_size = chunk_size
        self.qk = nn.Linear(width, 2 * self.heads * self.key_size, bias=False)
        self.v = nn.Linear(width, width, bias=False)
        self.norm = HeadNorm(width // self.heads, width, norm_eps) if normalization == "rms" else None
        self.out = ResidualLinear(width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.prefill(x, keep_state=False)[0]

    def prefill(self, x: torch.Tensor, *input_ids: torch.Tensor, keep_state: bool = True) -> tuple[torch.Tensor, State]:
        """Return `Mixer.prefill`'s results; the sums are computed only if ``keep_state``."""
        qk, v = self._heads(x)
        if self.decay is not None:
            y, memory = self._decayed(qk, v, keep_state)
        else:
            # Taylor's operator computes the features.
            q, k = qk if isinstance(self.features, Taylor) else self._features(qk).to(qk.dtype)
            y, memory = self.operator(
                q, k, v, normalize=self.norm is None, keep_state=keep_state, chunk=self.chunk_size
            )
        return self._merge(y.transpose(1, 2)), (memory, x.shape[1])

    def init_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> State:
        """Return Σ φ(k_s)ᵀ v_s ``[B, H, F, V]`` in float32 or wider, and the number of positions so far.

        With ``sum`` normalization an extra column accumulates Σ φ(k_s).
        """
        sizes = self.features.size, self._columns
        return torch.zeros(batch, self.heads, *sizes, dtype=at_least_float32(dtype), device=device), 0

    def step(self, x: torch.Tensor, state: State) -> tuple[torch.Tensor, State]:
        memory, position = state
        qk, v = self._heads(x[:, None])
        q, k = self._features(qk, position)
        if self.norm is None:
            v = F.pad(v, (0, 1), value=1.0)
        if self.decay is not None:
            kept = self._log_decay(x.device).exp().to(memory.dtype)[:, None, None]
            memory = torch.cat([memory[..., :-1] * kept, memory[..., -1:]], dim=-1)
        y, memory = recurrence_step(q[:, :, 0], k[:, :, 0], v[:, :, 0], memory, position=position)
        if self.norm is None:
            y = y[..., :-1] / y[..., -1:].clamp_min(SMALLEST_SUM)
        if self.decay is not None:
            y = y * self._scale(position + torch.zeros(1, dtype=torch.long, device=x.device)).to(y.dtype)
        return self._merge(y.to(x.dtype)), (memory, position + 1)

    def mixing_flops(self, batch: int, length: int) -> int:
        """Count `recurrence_flops` and, of the feature maps, only Performer's projection: 2·F·K per query and key."""
        random = 2 * self.heads * 2 * batch * length * sum(buffer.numel() for buffer in self.features.buffers())
        sizes = (self.heads, length, self.features.size, self._columns)
        return random + recurrence_flops(batch, *sizes, self.chunk_size)

    @property
    def _columns(self) -> int:
        """Columns of the state: the values of a head, plus one for the normalising sum."""
        return self.out.in_features // self.heads + (self.norm is None)

    def _heads(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Project ``x [B, T, D]`` to q and k ``[2, B, H, T, K]``, and v ``[B, H, T, V]``."""
        qk = self.qk(x).unflatten(-1, (2, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return qk, self.v(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def _features(self, qk: torch.Tensor, first: int | torch.Tensor = 0) -> torch.Tensor:
        """Apply φ to q and k ``[2, B, H, T, K]`` at positions from ``first``: ``[2, B, H, T, F]``, at least float32."""
        qk = qk.to(at_least_float32(qk.dtype))
        with torch.autocast(qk.device.type, enabled=False):
            if self.features.alike:
                return self.features(qk, first, query=False)
            return torch.stack([self.features(x, first, query) for x, query in zip(qk, (True, False), strict=True)])

    def _decayed(self, qk: torch.Tensor, v: torch.Tensor, keep_state: bool) -> tuple[torch.Tensor, Any]:
        """Divide decayed values by undecayed sums; also return the state of both."""
        positions = torch.arange(qk.shape[3], device=qk.device)
        q, k = self._features(qk).to(qk.dtype)
        y, memory = self.operator(
            q, k, v, log_decay=self._log_decay(q.device), keep_state=keep_state, chunk=self.chunk_size
        )
        wide = at_least_float32(q.dtype)
        sums = k.to(wide).cumsum(2)
        total = (q.to(wide) * sums).sum(-1, keepdim=True).clamp_min(SMALLEST_SUM)
        y = (y.to(wide) / total * self._scale(positions)[:, :, None].to(wide)).to(v.dtype)
        if memory is not None:
            memory = torch.cat([memory, sums[:, :, -1, :, None].to(memory.dtype)], dim=-1)
        return y, memory

    def _log_decay(self, device: torch.device) -> torch.Tensor:
        """Return log γ of each head, float32 ``[H]``."""
        assert self.decay is not None
        return log_decays(self.decay, self.heads, device).float()

    def _scale(self, positions: torch.Tensor) -> torch.Tensor:
        """Return (Σ_{s≤t} γ^(t−s))^−½ by head at ``positions [T]``, float64 ``[H, T]``; 1 without ``decay_scale``."""
        log_decay = self._log_decay(positions.device).double()[:, None]
        sums = torch.expm1(log_decay * (positions + 1)) / torch.expm1(log_decay)
        return sums.rsqrt() if self.decay_scale else torch.ones_like(sums)

    def _merge(self, y: torch.Tensor) -> torch.Tensor:
        """Combine the heads' outputs ``[..., H, V]`` into ``[..., D]``."""
        return self.out((y if self.norm is None else self.norm(y)).flatten(-2))
