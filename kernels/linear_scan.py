"""The linear recurrence h_t = a_t ⊙ h_{t−1} + b_t over all positions at once.

Legend: B batch, T positions; further dimensions are whatever the mixer has.
"""

import torch


def linear_scan(decay: torch.Tensor, value: torch.Tensor, state: torch.Tensor | None = None) -> torch.Tensor:
    """Every h_t ``[B, T, ...]`` from a ``[B, T, ...]`` (which may be 1 where b is wider) and b ``[B, T, ...]``;
    ``state [B, ...]`` is h before them, None: 0.

    Two steps in a row are one such step (Blelloch, CMU-CS-90-190, section 1.4): the recurrence of every
    second position has half the length, and the others follow from it. O(T) operations in O(log T) rounds,
    without a division, so that decays as small as 0 are exact.
    """
    if state is not None:
        value = torch.cat([value[:, :1] + decay[:, :1] * state[:, None], value[:, 1:]], dim=1)
    length = value.shape[1]
    if length == 1:
        return value
    pairs = length // 2
    first_decay, first = decay[:, : 2 * pairs : 2], value[:, : 2 * pairs : 2]
    second_decay, second = decay[:, 1::2], value[:, 1::2]
    odd = linear_scan(second_decay * first_decay, second + second_decay * first)
    later = value[:, 2::2] + decay[:, 2::2] * odd[:, : (length - 1) // 2]
    even = torch.cat([value[:, :1], later], dim=1)
    return torch.cat([torch.stack([even[:, :pairs], odd], dim=2).flatten(1, 2), even[:, pairs:]], dim=1)
