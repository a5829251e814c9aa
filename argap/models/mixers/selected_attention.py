"""Sparse attention by query selection: selected positions attend to the whole past, the others output zero.

The selection functions f map tokens ``[B, T]`` to booleans ``[B, T]``. The result at a position depends only on tokens
up to it, so a prefix gives the same selection as the whole sequence.

Legend: B batch, T positions, D width, k positions kept by a learned selection.
"""

from typing import Annotated, ClassVar, Literal

import torch
import torch.nn.functional as F
from msgspec import Meta
from torch import nn

from argap.files.configs import Positive
from argap.models.mixer import AtLeastOne, Mixer, at_least_float32
from argap.models.mixers.attention import Attention, Positions
from argap.models.mixers.attention import State as AttentionState

Select = Literal["programmatic", "random", "learned", "full"]
By = Literal["token", "bigram"]
State = tuple[AttentionState, torch.Tensor]
K, SHARE = 256, 8
"""Positions kept by a learned selection in the paper, one in ``SHARE`` of its windows' positions."""
BLOCK = 16
"""Positions per draw in `random_as_many`, whose count lags by at most one block."""
PRIME = 2**31 - 1
"""Modulus of the hash; products of two residues fit in int64."""


class SelectedAttention(Mixer):
    """y_i = f(u)_i · softmax(q_i Kᵀ / √d) V over positions up to i, with f(u)_i in {0, 1} (arXiv 2312.04927, eq. 2).

    Adds attention to a gated convolution only where recall may need it. Options:

    - ``select``: the function f. ``programmatic``: the token occurred before (eq. 3). ``random``: as many
      positions, drawn by `random_as_many`. ``learned``: the score σ(u_i W) is among the ``k`` highest of positions
      0 to i. ``full``: all positions, equivalent to `Attention`.
    - ``by``: for ``programmatic`` and ``random``, whether the ``token`` or the ``bigram`` that it ends must have
      occurred before (appendix C.2).
    - ``k``: for ``learned``; by default an eighth of ``max_positions``, as the paper's 256 are of its windows of 2,048,
      and 256 without ``max_positions``.
    - ``noise``: for ``learned``, the standard deviation of Gaussian noise added to the compared scores in training,
      so that the selection explores.
    - ``heads``, ``positions``, ``rope_theta``: as for `Attention`.

    ``learned`` ranks a position only among its past, in training too, so that it stays causal. It can therefore select
    more than k positions of a longer sequence in total; `auxiliary_loss` penalises this. W also learns from the
    language modeling loss through a straight-through estimate of f. That estimate, the default noise and the
    auxiliary loss's weight of 1 are our choices.

    All queries are computed with the dense kernel and then masked: text repeats most of its tokens, so gathering the
    selected ones would save nothing.

    Raises `ArgapError` as `Attention` does.
    """

    needs_ids: ClassVar[bool] = True
    source = "arXiv 2312.04927, eqs. 2 and 3"

    def __init__(
        self,
        width: int,
        max_positions: int | None = None,
        *,
        select: Select = "programmatic",
        by: By = "token",
        k: AtLeastOne | None = None,
        noise: Annotated[float, Meta(ge=0)] = 0.1,
        heads: int | None = None,
        positions: Positions = "rope",
        rope_theta: Positive = 10_000.0,
    ) -> None:
        super().__init__()
        if k is None:
            k = K if max_positions is None else max(1, max_positions // SHARE)
        self.select: Select = select
        self.by: By = by
        self.k, self.noise = k, noise
        self.attention = Attention(width, max_positions, heads=heads, positions=positions, rope_theta=rope_theta)
        self.score = nn.Linear(width, 1, bias=False) if select == "learned" else None

    def forward(self, x: torch.Tensor, input_ids: torch.Tensor) -> torch.Tensor:
        return self._masked(self.attention(x), x, input_ids)

    def auxiliary_loss(self, x: torch.Tensor) -> torch.Tensor | None:
        """Return max(0, Σ_i σ(u_i W) − k) / T, averaged over sequences: penalises more than k high scores.

        From the paper's section on learned selection. None for the other selections, which have no parameters.
        """
        if self.score is None:
            return None
        excess = _scores(x, self.score).sum(dim=1) - self.k
        return F.relu(excess).mean() / x.shape[1]

    def init_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> State:
        """Return attention's state and the state of the selection.

        The latter is the tokens so far ``[B, T]``; for ``learned`` the highest scores ``[B, k]``, −∞ until there are k;
        nothing for ``full``.
        """
        attention = self.attention.init_state(batch, dtype, device)
        if self.score is None:
            return attention, torch.empty(batch, 0, dtype=torch.long, device=device)
        return attention, torch.full((batch, self.k), -torch.inf, dtype=at_least_float32(dtype), device=device)

    def prefill(self, x: torch.Tensor, *input_ids: torch.Tensor) -> tuple[torch.Tensor, State]:
        (ids,) = input_ids
        y, after = self.attention.prefill(x)
        if self.score is not None:
            seen = F.pad(_scores(x, self.score), (self.k, 0), value=-torch.inf).topk(self.k, dim=1).values
        else:
            seen = ids[:, :0] if self.select == "full" else ids
        return self._masked(y, x, ids), (after, seen)

    def step(self, x: torch.Tensor, state: State, input_ids: torch.Tensor) -> tuple[torch.Tensor, State]:
        before, seen = state
        y, after = self.attention.step(x, before)
        if self.score is not None:
            score = _scores(x[:, None], self.score)
            higher = (seen >= score).sum(dim=1)
            seen = torch.cat([seen, score], dim=1).topk(self.k, dim=1).values
            return y * (higher < self.k)[:, None], (after, seen)
        if self.select == "full":
            return y, (after, seen)
        seen = torch.cat([seen, input_ids[:, None]], dim=1)
        return y * self._by_tokens(seen)[:, -1:], (after, seen)

    def state_size(self, length: int) -> int:
        """Count keys and values 2·T·D, plus T tokens; k scores instead for ``learned``, nothing for ``full``."""
        selection = {"learned": self.k, "full": 0}.get(self.select, length)
        return self.attention.state_size(length) + selection

    def mixing_flops(self, batch: int, length: int) -> int:
        """Count the operations of dense attention; comparisons of scores are not counted."""
        return self.attention.flops(batch, length)

    def _masked(self, y: torch.Tensor, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """Zero the unselected positions in attention's output ``y [B, T, D]`` for inputs ``x [B, T, D]``."""
        if self.score is None:
            return y * self._by_tokens(ids)[..., None]
        scores = _scores(x, self.score)
        compared = scores + self.noise * torch.randn_like(scores) if self.training else scores
        selected = among_highest(compared, self.k)
        mask = selected * (1 + (scores - scores.detach()))  # 0 or 1, with the gradient of the score
        return y * mask.to(y.dtype)[..., None]

    def _by_tokens(self, ids: torch.Tensor) -> torch.Tensor:
        """Select positions of ``ids [B, T]`` based on earlier tokens."""
        if self.select == "full":
            return torch.ones_like(ids, dtype=torch.bool)
        chosen = repeated_tokens(ids) if self.by == "token" else repeated_bigrams(ids)
        return random_as_many(ids, chosen) if self.select == "random" else chosen


def _scores(x: torch.Tensor, score: nn.Linear) -> torch.Tensor:
    """Compute scores σ(u W) of ``x [B, T, D]``, as ``[B, T]``, in float32 or wider.

    Lower precision, as under autocast, would create ties.
    """
    compute_dtype = at_least_float32(x.dtype)
    with torch.autocast(x.device.type, enabled=False):
        return F.linear(x.to(compute_dtype), score.weight.to(compute_dtype))[..., 0].sigmoid()


def repeated_tokens(ids: torch.Tensor) -> torch.Tensor:
    """Select positions whose token occurred before in the sequence (arXiv 2312.04927, eq. 3)."""
    ordered, order = ids.sort(dim=1, stable=True)
    repeated = F.pad(ordered[:, 1:] == ordered[:, :-1], (1, 0))
    return torch.zeros_like(repeated).scatter(1, order, repeated)


def repeated_bigrams(ids: torch.Tensor) -> torch.Tensor:
    """Select positions that end a bigram seen earlier in the sequence (arXiv 2312.04927, appendix C.2)."""
    previous = F.pad(ids, (1, 0), value=-1)[:, :-1]  # −1 matches no token: position 0 ends no bigram
    return repeated_tokens((previous.long() << 32) + ids)


def random_as_many(ids: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    """Draw as many random positions as the causal selection ``chosen [B, T]`` has.

    The count of a whole sequence is known only at its end. Each block of `BLOCK` positions therefore draws, uniformly,
    as many as ``chosen`` has in the previous block, so the total is the count of ``chosen`` without its last block.
    The draw is seeded by the tokens before the block and by the position: a given sequence always gets the same
    positions.
    """
    length = ids.shape[1]
    padding = -length % BLOCK
    quota = F.pad(_in_blocks(chosen, padding).sum(dim=2)[:, :-1], (1, 0))
    position = torch.arange(length + padding, device=ids.device)
    tokens = _mixed((F.pad(ids.long(), (0, padding)) + 1) * 50021 + position * 69997).cumsum(dim=1)
    seed = F.pad(_in_blocks(tokens, 0)[:, :-1, -1:], (0, 0, 1, 0))
    lots = _mixed(seed + _mixed(position + 1).unflatten(0, (-1, BLOCK)))
    ranks = lots.argsort(dim=2).argsort(dim=2)
    return (ranks < quota[..., None]).flatten(1)[:, :length]


def among_highest(scores: torch.Tensor, count: int) -> torch.Tensor:
    """Select the positions of ``scores [B, T]`` that are among the ``count`` highest so far; earlier ones win ties."""
    length = scores.shape[1]
    if length <= count:
        return torch.ones_like(scores, dtype=torch.bool)
    before = torch.ones(length, length, dtype=torch.bool, device=scores.device).tril(-1)
    higher = (scores[:, None, :] >= scores[:, :, None]) & before
    return higher.sum(dim=2) < count


def _in_blocks(values: torch.Tensor, padding: int) -> torch.Tensor:
    """Append ``padding`` zeros to ``[B, T]`` and reshape to ``[B, blocks, BLOCK]``."""
    return F.pad(values, (0, padding)).unflatten(1, (-1, BLOCK))


def _mixed(values: torch.Tensor) -> torch.Tensor:
    """Hash non-negative integers: x⁵ mod `PRIME`, a bijection because 5 does not divide `PRIME` − 1."""
    x = values % PRIME
    fourth = (x * x % PRIME) ** 2 % PRIME
    return fourth * x % PRIME
