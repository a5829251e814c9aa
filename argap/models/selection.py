"""Which positions of a sequence attend: selection functions f of sparse attention, each seeing the past alone.

A function maps the tokens ``[B, T]`` to booleans ``[B, T]``, and what it says of a position depends on the
tokens up to that position: of a prefix it says the same. Legend: B batch, T positions.
"""

import torch
import torch.nn.functional as F

BLOCK = 16
"""Positions among which `random_as_many` draws at once: its count is at most so many behind."""
PRIME = 2**31 - 1
"""Modulus of the hash: products of two residues fit in int64."""


def repeated_tokens(ids: torch.Tensor) -> torch.Tensor:
    """Positions whose token occurred before in the sequence (arXiv 2312.04927, eq. 3)."""
    ordered, order = ids.sort(dim=1, stable=True)
    repeated = F.pad(ordered[:, 1:] == ordered[:, :-1], (1, 0))
    return torch.zeros_like(repeated).scatter(1, order, repeated)


def repeated_bigrams(ids: torch.Tensor) -> torch.Tensor:
    """Positions whose token and the one before it occurred before as neighbours (arXiv 2312.04927,
    appendix C.2)."""
    previous = F.pad(ids, (1, 0), value=-1)[:, :-1]  # −1, no token: position 0 ends no bigram
    return repeated_tokens((previous.long() << 32) + ids)


def random_as_many(ids: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    """Positions drawn at random, as many as the booleans ``chosen [B, T]`` of a function of the past.

    How many a whole sequence has is known only at its end. So each block of `BLOCK` positions draws, all
    equally likely, as many as ``chosen`` has in the block before; the count of a sequence is what ``chosen``
    has in all blocks but the last. The draw is seeded by the tokens before the block and the position:
    a sequence is drawn alike whenever and wherever it is seen.
    """
    length = ids.shape[1]
    filling = -length % BLOCK
    quota = F.pad(_in_blocks(chosen, filling).sum(dim=2)[:, :-1], (1, 0))
    position = torch.arange(length + filling, device=ids.device)
    tokens = _mixed((F.pad(ids.long(), (0, filling)) + 1) * 50021 + position * 69997).cumsum(dim=1)
    seed = F.pad(_in_blocks(tokens, 0)[:, :-1, -1:], (0, 0, 1, 0))
    lots = _mixed(seed + _mixed(position + 1).unflatten(0, (-1, BLOCK)))
    ranks = lots.argsort(dim=2).argsort(dim=2)
    return (ranks < quota[..., None]).flatten(1)[:, :length]


def among_highest(scores: torch.Tensor, count: int) -> torch.Tensor:
    """Positions whose score is among the ``count`` highest of all up to them, of ``scores [B, T]``; of equal
    scores the earlier one is the higher."""
    length = scores.shape[1]
    if length <= count:
        return torch.ones_like(scores, dtype=torch.bool)
    before = torch.ones(length, length, dtype=torch.bool, device=scores.device).tril(-1)
    higher = (scores[:, None, :] >= scores[:, :, None]) & before
    return higher.sum(dim=2) < count


def _in_blocks(values: torch.Tensor, filling: int) -> torch.Tensor:
    """``[B, T]`` with ``filling`` zeros to ``[B, blocks, BLOCK]``."""
    return F.pad(values, (0, filling)).unflatten(1, (-1, BLOCK))


def _mixed(values: torch.Tensor) -> torch.Tensor:
    """A hash of whole numbers from 0: x⁵ modulo `PRIME`, which is one to one because 5 does not divide
    `PRIME` − 1; nothing overflows int64."""
    x = values % PRIME
    fourth = (x * x % PRIME) ** 2 % PRIME
    return fourth * x % PRIME
