"""The values of past positions that a step reads, kept without copying them for every token.

Legend: B batch, H heads, P positions, K size of a head.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch

ROOM = 64
"""Positions for which new storage has room, at least."""


@dataclass
class _Storage:
    """Memory that the states of successive positions share."""

    tensor: torch.Tensor
    end: int
    """Positions written so far. A state that does not end here was continued before, and is copied."""


class Past(NamedTuple):
    """The last P positions of a sequence. It is a value: `append` leaves it as it is, and it can be continued twice."""

    values: torch.Tensor
    """``[B, H, P, K]``."""
    end: int = 0
    """Where ``values`` end in the storage."""
    storage: _Storage | None = None

    def append(self, *parts: torch.Tensor) -> "Past":
        """These positions and the next one, ``parts [B, ·, 1, K]`` of all H heads.

        One position is written, and all are copied to new storage once it is full: after `ROOM` positions or, where
        that is more, a quarter of P. Where a gradient is needed every call copies, because the backward pass reads
        what each step read.
        """
        count, dtype = self.values.shape[2], torch.result_type(self.values, parts[0])
        if torch.is_grad_enabled() and any(x.requires_grad for x in (self.values, *parts)):
            return Past(torch.cat([self.values, torch.cat(parts, dim=1)], dim=2))
        storage, end = self.storage, self.end
        if storage is None or end != storage.end or end == storage.tensor.shape[2] or not _writable(storage, dtype):
            batch, heads, _, size = self.values.shape
            capacity = count + max(ROOM, count // 4)
            storage = _Storage(self.values.new_empty(batch, heads, capacity, size, dtype=dtype), count)
            storage.tensor[:, :, :count] = self.values
            end = count
        torch.cat(parts, dim=1, out=storage.tensor[:, :, end : end + 1])
        storage.end = end + 1
        return Past(storage.tensor[:, :, end - count : end + 1], end + 1, storage)

    def last(self, count: int) -> "Past":
        """The last ``count`` positions."""
        length = self.values.shape[2]
        return self if count == length else self._replace(values=self.values[:, :, length - count :])


def _writable(storage: _Storage, dtype: torch.dtype) -> bool:
    """Whether values of this dtype can be written here: outside inference mode not to memory from inside."""
    return storage.tensor.dtype == dtype and (torch.is_inference_mode_enabled() or not storage.tensor.is_inference())
