"""DeltaNet: linear attention whose state corrects the value stored for a key instead of adding to it.

`DeltaRuleMixer` is what DeltaNet shares with Gated DeltaNet and Kimi delta attention.

Legend: B batch, T positions, D width, H heads, K key size, V value size of a head.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import nn

from argap.errors import ArgapError
from argap.files.configs import Positive
from argap.kernels.recurrent.delta_rule import SMALLEST_NORM, delta_rule
from argap.models.mixer import AtLeastOne, Mixer, ResidualLinear, State, at_least_float32, split_heads
from argap.models.mixers.convolution import NoConvolution, ShortConvolution
from argap.models.mixers.feature_maps import ACTIVATIONS
from argap.models.recurrence import EPSILON, HeadNorm, delta_rule_flops, delta_rule_step

Activation = Literal["silu", "elu", "relu", "identity"]
KeyNorm = Literal["l2", "l1"]


class DeltaRuleMixer(Mixer):
    """The delta rule between a short convolution over q, k and v and a map of the heads' normed outputs.

    q and k have unit norm after SiLU, and β = σ(x W_β). A subclass adds the ``norm`` of the outputs and defines
    `_merge`; it may add a decay (`_log_decay`) and other maps of q and k (`_heads`, with `fused` False).
    """

    operator = staticmethod(delta_rule)
    fused = True
    """Whether q and k are what the kernels compute: SiLU, then the Euclidean norm."""
    largest_rate = 1
    """Upper limit of β. With 2, a transition may flip a key's direction: its eigenvalue 1 − β is negative."""

    def __init__(
        self, name: str, width: int, heads: int, keys: int, values: int, conv_size: int | None, chunk_size: int | None
    ) -> None:
        """Build the maps for ``keys`` = H·K and ``values`` = H·V. Raises `ArgapError` if they do not split."""
        super().__init__()
        if keys < 1 or values < 1 or keys % heads or values % heads:
            raise ArgapError(f"{name}: keys of {keys} and values of {values} do not split into {heads} heads")
        self.width, self.heads, self.keys, self.values = width, heads, keys, values
        self.chunk_size = chunk_size
        self.qkv = nn.Linear(width, 2 * keys + values, bias=False)
        self.conv = NoConvolution() if conv_size is None else ShortConvolution(2 * keys + values, conv_size)
        self.beta = nn.Linear(width, heads, bias=False)
        self.out = ResidualLinear(values, width, bias=False)

    def prefill(self, x: torch.Tensor, *input_ids: torch.Tensor) -> tuple[torch.Tensor, State]:
        mapped = self.qkv(x)
        convolved = self.fused and isinstance(self.conv, ShortConvolution) and self.conv.norms_heads(mapped)
        if convolved:  # norms in the convolution, which has q and k in registers
            qkv = self.conv(mapped, silu=True, unit_heads=(2 * self.heads, self.keys // self.heads))
        else:
            qkv = self.conv(mapped, silu=self.fused)
        heads = self._split(qkv) if self.fused else self._heads(qkv)
        q, k, v = (part.transpose(1, 2) for part in heads)
        rate, log_decay = self._rate(x).transpose(1, 2), self._log_decay(x)
        if log_decay is not None:
            log_decay = log_decay.transpose(1, 2)
            log_decay = log_decay[..., 0] if log_decay.shape[-1] == 1 else log_decay
        normalize = self.fused and not convolved
        y, memory = self.operator(q, k, v, rate, log_decay=log_decay, normalize=normalize, chunk=self.chunk_size)
        return self._merge(y.transpose(1, 2), x), (memory, self.conv.state_after(mapped))

    def init_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> State:
        """Return S ``[B, H, K, V]`` in float32 or wider, and the short convolution's last inputs."""
        sizes = self.keys // self.heads, self.values // self.heads
        memory = torch.zeros(batch, self.heads, *sizes, dtype=at_least_float32(dtype), device=device)
        return memory, self.conv.init_state(batch, dtype, device)

    def step(self, x: torch.Tensor, state: State) -> tuple[torch.Tensor, State]:
        memory, past = state
        qkv, past = self.conv.step(self.qkv(x), past)
        q, k, v = self._heads(qkv)
        y, memory = delta_rule_step(q, k, v, self._rate(x), memory, self._log_decay(x))
        return self._merge(y, x), (memory, past)

    def state_size(self, length: int) -> int:
        """Return H·K·V plus the short convolution's state."""
        return super().state_size(length) + self.conv.state_size(length)

    def mixing_flops(self, batch: int, length: int) -> int:
        """Count the short convolution and `delta_rule_flops`; what takes O(B·T·D) is not counted."""
        sizes = self.keys // self.heads, self.values // self.heads
        return self.conv.flops(batch, length) + delta_rule_flops(batch, self.heads, length, *sizes, self.chunk_size)

    def _split(self, qkv: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Split ``[..., 2·H·K + H·V]`` to q, k ``[..., H, K]`` and v ``[..., H, V]``."""
        parts = qkv.split((self.keys, self.keys, self.values), dim=-1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)) for part in parts)
        return q, k, v

    def _heads(self, qkv: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return q and k, of unit norm, and v, as `_split` does, in float32 or wider."""
        q, k, v = self._split(F.silu(qkv.to(at_least_float32(qkv.dtype))))
        q, k = (F.normalize(part, dim=-1, eps=SMALLEST_NORM) for part in (q, k))
        return q, k, v

    def _rate(self, x: torch.Tensor) -> torch.Tensor:
        """Return β ``[..., H]`` in (0, `largest_rate`): the share of the value stored for a key that is replaced."""
        rate = self.beta(x).to(at_least_float32(x.dtype)).sigmoid()
        return rate if self.largest_rate == 1 else self.largest_rate * rate

    def _log_decay(self, x: torch.Tensor) -> torch.Tensor | None:
        """Return the log decay of S before it is corrected, ``[..., H, 1 or K]``; None: no decay."""
        return None

    def _merge(self, y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Norm, perhaps gate, and mix the heads' outputs ``[..., H, V]`` at inputs ``x [..., D]`` to ``[..., D]``."""
        raise NotImplementedError


class DeltaNet(DeltaRuleMixer):
    """S_t = S_{t−1} + β_t k_tᵀ (v_t − k_t S_{t−1}), o_t = q_t S_t, y = norm(o) W_O with β = σ(x W_β).

    From arXiv 2406.06484, sections 2.2 and 3.3; q and k = norm(silu(conv(x W))), v = silu(conv(x W)).

    Options, the first value being the paper's:

    - ``heads``: by default one for each 128 of the width.
    - ``activation``: of q and k, ``silu``; ``elu`` (1 + elu), ``relu``, ``identity``.
    - ``key_norm``: divide q and k by their ``l2`` or ``l1`` norm.
    - ``negative_eigenvalues``: β in (0, 2), with which the layer can track a state (arXiv 2411.12537).
    - ``conv_size``: taps of the short convolution over q, k and v, 4; None: no convolution.
    - ``chunk_size``: positions that one triangular system solves, 64; None: all.
    - ``norm_eps``: epsilon of the output's norm, 10⁻⁵.

    The output's norm is RMSNorm over a head's values. Raises `ArgapError` for a width that does not split into the
    heads.
    """

    source = "arXiv 2406.06484, sections 2.2, 3.2 (chunks) and 3.3 (the layer)"

    def __init__(
        self,
        width: int,
        max_positions: int | None = None,
        *,
        heads: int | None = None,
        activation: Activation = "silu",
        key_norm: KeyNorm = "l2",
        negative_eigenvalues: bool = False,
        conv_size: AtLeastOne | None = 4,
        chunk_size: AtLeastOne | None = 64,
        norm_eps: Positive = EPSILON,
    ) -> None:
        heads = split_heads("delta_net", width, heads, usual=width // 128)
        super().__init__("delta_net", width, heads, width, width, conv_size, chunk_size)
        self.largest_rate = 2 if negative_eigenvalues else 1
        self.activation: Activation = activation
        self.key_norm: KeyNorm = key_norm
        self.fused = activation == "silu" and key_norm == "l2"
        self.norm = HeadNorm(width // heads, width, norm_eps)

    def _heads(self, qkv: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        q, k, v = self._split(qkv.to(at_least_float32(qkv.dtype)))
        order = 2 if self.key_norm == "l2" else 1
        q, k = (F.normalize(ACTIVATIONS[self.activation](part), p=order, dim=-1, eps=SMALLEST_NORM) for part in (q, k))
        return q, k, F.silu(v)

    def _merge(self, y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.norm(y).flatten(-2).to(x.dtype))
