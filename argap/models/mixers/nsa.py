"""Native sparse attention: attention to compressed blocks, to the blocks that these select, and in a window.

Legend: B batch, T positions, D width, H heads in G groups, K = D / H, l block, d stride, l' selected block, n selected
blocks, w window, P positions that are seen, C queries.
"""

from typing import Annotated

import torch
import torch.nn.functional as F
from msgspec import Meta
from torch import nn

from argap.errors import ArgapError
from argap.files.configs import Positive
from argap.kernels.fused.rotary import rotate, rotation
from argap.models.mixer import AtLeastOne, Mixer, ResidualLinear, at_least_float32, split_heads
from argap.models.mixers.attention import Positions
from argap.models.past import Past

State = tuple[Past, Past, Past, Past, int]
LOCAL = 2
"""Blocks before and around a position that are always selected, beside the first (section 4.1 of the paper)."""
QUERIES = 512
"""Positions at once in the parallel form, whose masks are ``[B, G, QUERIES, T]``."""


class NSA(Mixer):
    """y = Σ_c σ(x W_c) ⊙ attention(q, K_c, V_c) over three branches, each with keys and values of its own.

    From arXiv 2502.11089, section 3.3: of the compressed branch these are an MLP φ of each l positions, one every d
    (eq. 7); of the selected branch the positions of n blocks of l', those that overlap most with the compressed blocks
    of the largest weights, summed over the query heads that share keys (eqs. 8 to 12); of the third the last w
    positions. The first block, a position's own and the one before it are always among the n. Options:

    - ``heads``: by default one per 64 of the width; ``kv_heads``: by default one for each 16 of these, as in the paper.
    - ``block`` l, ``stride`` d, ``selected_block`` l', ``selected`` n and ``window`` w: 32, 16, 64, 16 and 512.
    - ``positions`` and ``rope_theta``: as for `Attention`.

    The paper leaves open the shape of φ (`BlockMap` here), the gates' MLP (one linear map, as in
    flash-linear-attention), the rotation of compressed keys (to the first position of their block) and the output
    before the first block is complete (0). A position sees only complete blocks.

    The parallel form computes all pairs of positions and masks them, so that it takes the time and, in pieces of
    `QUERIES` positions, the memory of dense attention.

    Raises `ArgapError` if the width does not split into the heads, or sizes do not divide each other as eq. 9 asks.
    """

    source = "arXiv 2502.11089, section 3.3, eqs. 5 to 12"

    def __init__(
        self,
        width: int,
        max_positions: int | None = None,
        *,
        heads: int | None = None,
        kv_heads: AtLeastOne | None = None,
        block: AtLeastOne = 32,
        stride: AtLeastOne = 16,
        selected_block: AtLeastOne = 64,
        selected: Annotated[int, Meta(ge=1 + LOCAL)] = 16,
        window: AtLeastOne = 512,
        positions: Positions = "rope",
        rope_theta: Positive = 10_000.0,
    ) -> None:
        super().__init__()
        self.rotary, self.rope_theta = positions == "rope", rope_theta
        self.heads = split_heads("nsa", width, heads, usual=width // 64, even=self.rotary)
        self.groups = max(1, self.heads // 16) if kv_heads is None else kv_heads
        if self.heads % self.groups:
            raise ArgapError(f"nsa: kv_heads {self.groups}; expected a divisor of the {self.heads} heads")
        if block % stride or selected_block % stride or block > selected_block:
            raise ArgapError(
                f"nsa: block {block}, stride {stride}, selected_block {selected_block}; expected a stride that divides "
                "both blocks, and a selected block at least as long as the other"
            )
        self.block, self.stride = block, stride
        self.selected_block, self.selected, self.window = selected_block, selected, window
        self.size = width // self.heads
        self.query = nn.Linear(width, width, bias=False)
        self.kv = nn.Linear(width, 3 * 2 * self.groups * self.size, bias=False)
        self.key_map, self.value_map = BlockMap(block, self.size), BlockMap(block, self.size)
        self.gates = nn.Linear(width, 3 * self.heads, bias=False)
        self.out = ResidualLinear(width, width, bias=False)

    def prefill(self, x: torch.Tensor, *input_ids: torch.Tensor) -> tuple[torch.Tensor, State]:
        length = x.shape[1]
        q, blocks, chosen, recent = self._projected(x)
        compressed = self._compressed(blocks.unfold(2, self.block, self.stride).mT) if length >= self.block else None
        outputs = []
        for first in range(0, length, QUERIES):
            last, seen = min(first + QUERIES, length), max(0, first + 1 - self.window)
            y = self._attend(q[:, :, first:last], first, compressed, chosen[:, :, :last], recent[:, :, seen:last])
            outputs.append(y)
        kept = (blocks[:, :, max(0, length + 1 - self.block) :], recent[:, :, max(0, length + 1 - self.window) :])
        compressed = blocks[:, :, :0] if compressed is None else compressed
        return self._merge(torch.cat(outputs, dim=2), x), self._state(compressed, kept[0], chosen, kept[1], length)

    def init_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> State:
        """Return compressed keys and values, inputs of the next block, those of all positions, those of the window.

        Each is ``[B, 2·G, P, K]``, the keys before the values; last the number of positions so far.
        """
        empty = torch.empty(batch, 2 * self.groups, 0, self.size, dtype=dtype, device=device)
        return self._state(empty, empty, empty, empty, 0)

    def step(self, x: torch.Tensor, state: State) -> tuple[torch.Tensor, State]:
        compressed, block, chosen, recent, position = state
        q, *new = self._projected(x[:, None], position)
        block, chosen, recent = (past.append(kv) for past, kv in zip((block, chosen, recent), new, strict=True))
        if position + 1 >= self.block and (position + 1 - self.block) % self.stride == 0:
            first = position + 1 - self.block
            compressed = compressed.append(self._compressed(block.values[:, :, None], first))
        y = self._attend(q, position, compressed.values, chosen.values, recent.values)
        past = (compressed, block.seen_next(), chosen, recent.seen_next())
        return self._merge(y, x[:, None])[:, 0], (*past, position + 1)

    def state_size(self, length: int) -> int:
        """Count keys and values, 2·K·G for each position, compressed block and position of both windows."""
        kept = length + self._blocks(length) + min(length, self.block - 1) + min(length, self.window - 1)
        return 2 * self.size * self.groups * kept

    def mixing_flops(self, batch: int, length: int) -> int:
        """Count φ, 4·K·(l + 1)·K for the keys and values of a block of each group, and 4·D for each visible pair.

        That is what an implementation takes that skips the other pairs; the parallel form here does not.
        """
        maps = 4 * self.groups * self._blocks(length) * self.size**2 * (self.block + 1)
        own = [divmod(t, self.selected_block) for t in range(length)]
        chosen = sum(min(full, self.selected - 1) * self.selected_block + rest + 1 for full, rest in own)
        recent = sum(min(t + 1, self.window) for t in range(length))
        compressed = sum(self._blocks(t + 1) for t in range(length))
        return batch * (maps + 4 * self.heads * self.size * (compressed + chosen + recent))

    def _blocks(self, length: int) -> int:
        """Return the number of complete blocks in the first ``length`` positions."""
        return max(0, (length - self.block) // self.stride + 1)

    def _state(
        self, compressed: torch.Tensor, block: torch.Tensor, chosen: torch.Tensor, recent: torch.Tensor, length: int
    ) -> State:
        windows = Past(block, window=self.block), Past(chosen), Past(recent, window=self.window)
        return Past(compressed), *windows, length

    def _projected(self, x: torch.Tensor, first: int = 0) -> tuple[torch.Tensor, ...]:
        """Map ``x [B, T, D]`` at positions from ``first`` to q ``[B, H, T, K]`` and three keys with values.

        These are ``[B, 2·G, T, K]``: of the compressed branch, the selected and the window. The keys of the last two
        are rotated.
        """
        q = self.query(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        blocks, chosen, recent = self.kv(x).unflatten(-1, (3, 2 * self.groups, -1)).permute(2, 0, 3, 1, 4)
        return self._rotated(q, first), blocks, self._keys_rotated(chosen, first), self._keys_rotated(recent, first)

    def _compressed(self, blocks: torch.Tensor, first: int = 0) -> torch.Tensor:
        """Map blocks ``[B, 2·G, P, l, K]``, the first one from position ``first``, to keys and values."""
        keys, values = blocks.chunk(2, dim=1)
        kv = torch.cat([self.key_map(keys), self.value_map(values)], dim=1)
        return self._keys_rotated(kv, first, self.stride)

    def _keys_rotated(self, kv: torch.Tensor, first: int, stride: int = 1) -> torch.Tensor:
        keys, values = kv.chunk(2, dim=1)
        return torch.cat([self._rotated(keys, first, stride), values], dim=1)

    def _rotated(self, x: torch.Tensor, first: int, stride: int = 1) -> torch.Tensor:
        """Rotate ``x [B, ·, P, K]`` to every ``stride``-th position from ``first``."""
        if not self.rotary:
            return x
        dtype, length = at_least_float32(x.dtype), 1 + stride * (x.shape[2] - 1)
        cos, sin = rotation(first, length, self.size, self.rope_theta, dtype, x.device)
        return rotate(x, cos[::stride], sin[::stride])

    def _attend(
        self, q: torch.Tensor, first: int, compressed: torch.Tensor | None, chosen: torch.Tensor, recent: torch.Tensor
    ) -> torch.Tensor:
        """Return the outputs ``[B, H, C, 3, K]`` of the branches for queries ``q [B, H, C, K]`` from ``first``.

        Keys and values ``[B, 2·G, P, K]`` of the last two branches end at the last query's position.
        """
        B, H, C, K = q.shape
        position = first + torch.arange(C, device=q.device)[:, None]
        q = q.unflatten(1, (self.groups, -1))  # [B, G, H / G, C, K]
        y, weights = self._attend_compressed(q, position, compressed)
        place = torch.arange(chosen.shape[2], device=q.device)
        blocks = torch.arange(-(-len(place) // self.selected_block), device=q.device)
        seen = self._selected(weights, position, blocks)[..., place // self.selected_block] & (place <= position)
        back = position - (first + C - recent.shape[2] + torch.arange(recent.shape[2], device=q.device))
        near = (back >= 0) & (back < self.window)
        outputs = [y]
        for kv, mask in ((chosen, seen.flatten(0, 1)[:, None]), (recent, near)):
            k, v = (part.flatten(0, 1)[:, None].expand(-1, q.shape[2], -1, -1) for part in kv.chunk(2, dim=1))
            y = F.scaled_dot_product_attention(q.flatten(0, 1), k, v, attn_mask=mask)
            outputs.append(y.unflatten(0, (B, self.groups)))
        return torch.stack([y.reshape(B, H, C, K) for y in outputs], dim=3)

    def _attend_compressed(
        self, q: torch.Tensor, position: torch.Tensor, compressed: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return outputs ``[B, G, H / G, C, K]`` and the weights of P blocks (eq. 8) ``[B, G, H / G, C, P]``."""
        if compressed is None or compressed.shape[2] == 0:
            return torch.zeros_like(q), q.new_zeros(*q.shape[:-1], 0)
        k, v = (part[:, :, None] for part in compressed.chunk(2, dim=1))
        logits = (q @ k.mT).to(at_least_float32(q.dtype)) * self.size**-0.5
        seen = self.stride * torch.arange(k.shape[3], device=q.device) + self.block - 1 <= position
        weights = logits.masked_fill(~seen, torch.finfo(logits.dtype).min).softmax(dim=-1) * seen  # of none: all 0
        return weights.to(v.dtype) @ v, weights

    def _selected(self, weights: torch.Tensor, position: torch.Tensor, blocks: torch.Tensor) -> torch.Tensor:
        """Return whether each of ``blocks`` of l' is selected, bool ``[B, G, C, blocks]``, from the compressed weights.

        Of blocks of equal scores the earlier ones are. By eq. 9 a compressed block counts by its overlap with the
        selected one, in units of d.
        """
        own = position // self.selected_block
        starts = self.stride * torch.arange(weights.shape[-1], device=weights.device)[:, None]
        begins = self.selected_block * blocks
        overlap = torch.minimum(starts + self.block, begins + self.selected_block) - torch.maximum(starts, begins)
        scores = weights.detach().sum(dim=2) @ (overlap.clamp_min(0) // self.stride).to(weights.dtype)
        fixed = (blocks == 0) | (own - blocks < LOCAL)
        scores = scores.masked_fill(fixed, torch.inf).masked_fill(blocks > own, -1)
        order = scores.argsort(dim=-1, descending=True, stable=True)[..., : self.selected]
        return torch.zeros_like(scores, dtype=torch.bool).scatter_(-1, order, True) & (blocks <= own)

    def _merge(self, y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Gate and mix the outputs ``[B, H, C, 3, K]`` of the branches at inputs ``x [B, C, D]`` to ``[B, C, D]``."""
        gates = self.gates(x).sigmoid().unflatten(-1, (self.heads, 1, 3)).transpose(1, 2)
        return self.out((gates @ y)[..., 0, :].transpose(1, 2).flatten(2))


class BlockMap(nn.Module):
    """φ: the mean of a hidden layer over the l vectors of a block, with embeddings of their places, mapped to one."""

    def __init__(self, block: int, size: int) -> None:
        super().__init__()
        self.places = nn.Parameter(torch.empty(block, size))
        self.hidden = nn.Linear(size, size, bias=False)
        self.last = nn.Linear(size, size, bias=False)

    def initialize(self, std: float, residual_std: float) -> None:
        nn.init.normal_(self.places, std=std)

    def forward(self, blocks: torch.Tensor) -> torch.Tensor:
        """Map ``[..., l, K]`` to ``[..., K]``."""
        return self.last(F.silu(self.hidden(blocks + self.places)).mean(dim=-2))
