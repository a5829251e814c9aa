"""Past positions that a step reads: all of them (`Past`), in fixed storage (`FixedPast`), or the latest (`Recent`).

Legend: B batch, H heads, P positions, K size of a head, C capacity, D width.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch

from argap.kernels.shared import shared

ROOM = 64
"""Minimum number of positions for which new storage has room."""


@dataclass
class _Storage:
    """Memory shared by the states of successive positions."""

    tensor: torch.Tensor
    end: int
    """Positions written so far. A state that ends earlier was already continued once, and is copied."""


class Past(NamedTuple):
    """The last P positions of a sequence, as a value: `append` does not change it, so it can be continued twice."""

    values: torch.Tensor
    """``[B, H, P, K]``."""
    end: int = 0
    """Where ``values`` end in the storage."""
    storage: _Storage | None = None
    window: int | None = None
    """The number w of positions that a position sees, itself included; None: all."""
    blocked: bool = False
    """Whether a position sees its own block of w positions instead of the w − 1 positions before it."""

    @property
    def bias(self) -> None:
        """None: the position that `append` wrote sees all of ``values``, so scores need no bias."""
        return None

    def append(self, *parts: torch.Tensor) -> "Past":
        """Return these positions and the next one, ``parts [B, ·, 1, K]`` of all H heads.

        Usually one position is written; all are copied to new storage once it is full: after `ROOM` positions or a
        quarter of P, whichever is more. If a gradient is needed every call copies, because the backward pass reads what
        each step read.
        """
        count, dtype = self.values.shape[2], torch.result_type(self.values, parts[0])
        if torch.is_grad_enabled() and any(x.requires_grad for x in (self.values, *parts)):
            return self._replace(values=torch.cat([self.values, torch.cat(parts, dim=1)], dim=2), end=0, storage=None)
        storage, end = self.storage, self.end
        if storage is None or end != storage.end or end == storage.tensor.shape[2] or not _writable(storage, dtype):
            batch, heads, _, size = self.values.shape
            capacity = count + max(ROOM, count // 4)
            storage = _Storage(self.values.new_empty(batch, heads, capacity, size, dtype=dtype), count)
            storage.tensor[:, :, :count] = self.values
            end = count
        written = storage.tensor[:, :, end : end + 1]
        if len(parts) == 1:  # torch 2.13's cat of one tensor leaves a contiguous ``out`` unwritten
            written.copy_(parts[0])
        else:
            torch.cat(parts, dim=1, out=written)
        storage.end = end + 1
        return self._replace(values=storage.tensor[:, :, end - count : end + 1], end=end + 1, storage=storage)

    def last(self, count: int) -> "Past":
        """Return the last ``count`` positions."""
        length = self.values.shape[2]
        return self if count == length else self._replace(values=self.values[:, :, length - count :])

    def seen_next(self) -> "Past":
        """Return the positions that the next one sees."""
        return self.last(seen_next(self.values.shape[2], self.window, self.blocked))

    def fixed(self, position: torch.Tensor, length: int, capacity: int) -> "FixedPast":
        """Copy to storage for ``capacity`` positions or for the window, after ``length`` positions.

        ``position [1]`` holds that length; the owner of the storage advances it.
        """
        batch, heads, count, size = self.values.shape
        values = self.values.new_zeros(batch, heads, min(self.window or capacity, capacity), size)
        slots = torch.arange(length - count, length, device=values.device) % values.shape[2]
        return FixedPast(values.index_copy_(2, slots, self.values), position, self.window, self.blocked)


class FixedPast(NamedTuple):
    """A `Past` in storage that `append` writes to, so that a CUDA graph can record it.

    Position t is in slot t mod C. If C is the window, that slot held the position that has just left it.
    """

    values: torch.Tensor
    """``[B, H, C, K]``, zero where no position was written."""
    position: torch.Tensor
    """The next position, ``[1]``."""
    window: int | None
    blocked: bool

    @property
    def bias(self) -> torch.Tensor:
        """Bias on the scores of the position that `append` wrote, ``[1, C]`` in the dtype of the values: 0 or −∞.

        It is 0 at the slots that the position sees and −∞ elsewhere.
        """
        return _slot_and_bias(self.position, self.values.shape[2], self.blocked, self.values.dtype)[1]

    def append(self, *parts: torch.Tensor) -> "FixedPast":
        """Write the position over the oldest, with the arguments of `Past.append`."""
        slot, _ = _slot_and_bias(self.position, self.values.shape[2], self.blocked, self.values.dtype)
        self.values.index_copy_(2, slot, torch.cat(parts, dim=1).to(self.values.dtype))
        return self

    def seen_next(self) -> "FixedPast":
        """Return all of the storage; `bias` masks what a position does not see."""
        return self

    def fixed(self, position: torch.Tensor, length: int, capacity: int) -> "FixedPast":
        """Copy to storage for ``capacity`` positions, or for the window.

        Every position keeps its slot: either none was overwritten yet, or the whole window was stored.
        """
        values = self.values
        larger = values.new_zeros(*values.shape[:2], min(self.window or capacity, capacity), values.shape[3])
        larger[:, :, : values.shape[2]] = values
        return self._replace(values=larger, position=position)


class Recent(NamedTuple):
    """The latest inputs of a convolution, as a value."""

    values: torch.Tensor
    """``[B, ≤ reach, D]``; a further dimension may come before D."""
    reach: int
    """How many inputs back the filter reaches."""

    @classmethod
    def of(cls, values: torch.Tensor, reach: int) -> "Recent":
        """Keep those of the inputs ``values [B, P, D]`` that the next position reaches."""
        return cls(values[:, max(0, values.shape[1] - reach) :], reach)

    def append(self, x: torch.Tensor) -> tuple[torch.Tensor, "Recent"]:
        """Return the inputs that the position of ``x [B, D]`` reaches, itself included, and those of the next one."""
        reached = torch.cat([self.values, x[:, None]], dim=1)
        return reached, Recent.of(reached, self.reach)

    def fixed(self) -> "Recent":
        """Return the same with zeros for inputs before the first, which contribute nothing."""
        count = self.reach - self.values.shape[1]
        zeros = self.values.new_zeros(len(self.values), count, *self.values.shape[2:])
        return Recent(torch.cat([zeros, self.values], dim=1), self.reach)


def seen_next(length: int, window: int | None, blocked: bool) -> int:
    """Return how many of the first ``length`` positions the next one sees."""
    if window is None:
        return length
    return length % window if blocked else min(length, window - 1)


@shared
def _slot_and_bias(
    position: torch.Tensor, capacity: int, blocked: bool, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the slot ``[1]`` of a position, and the bias ``[1, C]`` on its scores."""
    slot = position % capacity
    slots = torch.arange(capacity, device=position.device)
    unseen = slots > (slot if blocked else position)
    return slot, torch.zeros(1, capacity, dtype=dtype, device=position.device).masked_fill(unseen, -torch.inf)


def _writable(storage: _Storage, dtype: torch.dtype) -> bool:
    """Return whether values of this dtype can be written: outside inference mode, not to memory allocated inside it."""
    return storage.tensor.dtype == dtype and (torch.is_inference_mode_enabled() or not storage.tensor.is_inference())
