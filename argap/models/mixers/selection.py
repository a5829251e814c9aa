"""Causal selection functions f for sparse attention: which positions of a sequence attend.

Each maps tokens ``[B, T]`` to booleans ``[B, T]``. The result at a position depends only on tokens up to it, so a
prefix gives the same selection as the whole sequence. Legend: B batch, T positions.
"""

import torch
import torch.nn.functional as F

BLOCK = 16
"""Positions per draw in `random_as_many`, whose count lags by at most one block."""
PRIME = 2**31 - 1
"""Modulus of the hash; products of two residues fit in int64."""


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
