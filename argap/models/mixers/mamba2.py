"""Mamba-2: a state space model with one decay per head, which makes it linear attention with a decay.

Legend: B batch, T positions, D width, E inner width, H heads, P = E / H channels of a head, N states per channel,
G groups of heads that share B and C.
"""

import torch
import torch.nn.functional as F
from torch import nn

from argap.errors import ArgapError
from argap.files.configs import Positive
from argap.kernels.fused.gated_product import gated_product
from argap.kernels.recurrent.linear_attention import linear_attention
from argap.models.mixer import AtLeastOne, Mixer, ResidualLinear, at_least_float32, split_heads
from argap.models.mixers.convolution import ShortConvolution
from argap.models.mixers.step_decay import StepDecay
from argap.models.past import Recent
from argap.models.recurrence import EPSILON, HeadNorm, recurrence_flops, recurrence_step

State = tuple[torch.Tensor, Recent]


class Mamba2(Mixer):
    """h_t = e^{Δ_t A} h_{t−1} + Δ_t B_tᵀ u_t and y_t = C_t h_t + D ⊙ u_t with a number A and D per head.

    From arXiv 2405.21060, eq. 2 (selective SSM), section 5 (a number A; its duality) and section 7.1 (the block). Here
    u, B, C = SiLU(conv(x W)), Δ = softplus(x W_Δ + b), and the output is norm(y ⊙ SiLU(x W_z)) W_O. By the duality this
    is linear attention with queries C, keys B, values Δ u and the log decay Δ A. Options:

    - ``states``: N, 128.
    - ``expand``: E / D, 2.
    - ``heads``: by default one for each 64 of E.
    - ``groups``: G, 1.
    - ``short_kernel``: taps of the convolution, 4.
    - ``chunk_size``: positions compared at once; None: all, the parallel form.
    - ``norm_eps``: epsilon of the norm, RMSNorm over the channels of a group.

    Raises `ArgapError` if E does not split into the heads, or the heads into the groups.
    """

    source = "arXiv 2405.21060, eq. 2, sections 5 and 7.1"
    operator = staticmethod(linear_attention)

    def __init__(
        self,
        width: int,
        max_positions: int | None = None,
        *,
        states: AtLeastOne = 128,
        expand: AtLeastOne = 2,
        heads: int | None = None,
        groups: AtLeastOne = 1,
        short_kernel: AtLeastOne = 4,
        chunk_size: AtLeastOne | None = 64,
        norm_eps: Positive = EPSILON,
    ) -> None:
        super().__init__()
        inner = expand * width
        self.heads = split_heads("mamba2", inner, heads, usual=inner // 64)
        if self.heads % groups:
            raise ArgapError(f"mamba2: groups {groups}; expected a divisor of the {self.heads} heads")
        self.states, self.inner, self.groups = states, inner, groups
        self.chunk_size, self.norm_eps = chunk_size, norm_eps
        convolved = inner + 2 * groups * states
        self.projection = nn.Linear(width, inner + convolved + self.heads, bias=False)
        self.short = ShortConvolution(convolved, short_kernel, bias=True)
        self.decay = StepDecay(self.heads)
        self.skip = nn.Parameter(torch.empty(self.heads))
        self.norm = HeadNorm(inner, width, norm_eps)
        self.out = ResidualLinear(inner, width, bias=False)

    def initialize(self, std: float, residual_std: float) -> None:
        """Start the skip at 1, as the authors' code does."""
        nn.init.ones_(self.skip)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.prefill(x, keep_state=False)[0]

    def prefill(self, x: torch.Tensor, *input_ids: torch.Tensor, keep_state: bool = True) -> tuple[torch.Tensor, State]:
        """Return `Mixer.prefill`'s results; h is computed only if ``keep_state``."""
        gate, mapped, logits = self._projected(x)
        u, b, c = self._heads(self.short(mapped, silu=True))
        step, log_decay = self.decay(logits)
        q, k, v = (part.transpose(1, 2) for part in (c, b, u))
        gates = {"log_decay": log_decay[..., 0].mT, "step": step[..., 0].mT, "skip": self.skip}
        y, memory = self.operator(q, k, v, **gates, keep_state=keep_state, chunk=self.chunk_size)
        return self._merge(y.transpose(1, 2), gate), (memory, self.short.state_after(mapped))

    def init_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> State:
        """Return h ``[B, H, N, P]`` in float32 or wider, and the short convolution's last inputs."""
        sizes = self.states, self.inner // self.heads
        memory = torch.zeros(batch, self.heads, *sizes, dtype=at_least_float32(dtype), device=device)
        return memory, self.short.init_state(batch, dtype, device)

    def step(self, x: torch.Tensor, state: State) -> tuple[torch.Tensor, State]:
        memory, past = state
        gate, mapped, logits = self._projected(x)
        convolved, past = self.short.step(mapped, past)
        u, b, c = self._heads(F.silu(convolved))
        step, log_decay = self.decay(logits)
        b, c = (part.repeat_interleave(self.heads // self.groups, dim=-2) for part in (b, c))
        y, memory = recurrence_step(c, b, u * step.to(u.dtype), memory, log_decay)
        return self._merge(torch.addcmul(y.to(u.dtype), u, self.skip[:, None].to(u.dtype)), gate), (memory, past)

    def state_size(self, length: int) -> int:
        """Return E·N plus the short convolution's state."""
        return super().state_size(length) + self.short.state_size(length)

    def mixing_flops(self, batch: int, length: int) -> int:
        """Count the short convolution and `recurrence_flops`; gate, norm and skip, O(B·T·E), are not counted."""
        sizes = self.states, self.inner // self.heads
        return self.short.flops(batch, length) + recurrence_flops(batch, self.heads, length, *sizes, self.chunk_size)

    def _projected(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Map ``x [..., D]`` to the gate (E), the convolution's input (E + 2·G·N) and the logits of Δ (H)."""
        return self.projection(x).split([self.inner, self.short.weight.shape[1], self.heads], dim=-1)

    def _heads(self, mixed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return u ``[..., H, P]``, and B and C ``[..., G, N]``, each shared by the heads of a group."""
        u, *shared = mixed.split([self.inner, self.groups * self.states, self.groups * self.states], dim=-1)
        b, c = (part.unflatten(-1, (self.groups, -1)) for part in shared)
        return u.unflatten(-1, (self.heads, -1)), b, c

    def _merge(self, y: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        """Gate the heads' outputs ``[..., H, P]``, norm them by group and mix them to ``[..., D]``."""
        gated = gated_product(gate, y.flatten(-2), "silu").unflatten(-1, (self.groups, -1))
        normed = F.rms_norm(gated.to(self.norm.weight.dtype), gated.shape[-1:], eps=self.norm_eps).flatten(-2)
        return self.out((normed * self.norm.weight).to(gate.dtype))
