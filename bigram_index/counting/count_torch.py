"""Count a stream of tokens on a GPU, by sorting."""

import numpy as np
import torch

from argap.bigram_index.counting.sorted_runs import MemoryRun


def count_stream(tokens: torch.Tensor, vocab_size: int, boundary: int | None = None) -> MemoryRun:
    """Count as `argap.bigram_index.counting.count_numpy.count_stream` does, on any device.

    ``tokens`` is `[N]` of any integer type. Packs each pair into one int64, sorts, and counts equal neighbours.
    """
    ids = tokens.to(torch.int64)
    first, second = ids[:-1], ids[1:]
    keys = first * (vocab_size + 1) + second
    if boundary is not None:
        keys = keys[(first != boundary) & (second != boundary)]
    keys, count = torch.unique(keys, return_counts=True)  # sorted
    first = torch.div(keys, vocab_size + 1, rounding_mode="floor")
    rows = torch.bincount(first, minlength=vocab_size)
    indptr = np.concatenate([[0], rows.cumsum(0).cpu().numpy()])
    second = (keys % (vocab_size + 1)).cpu().numpy()
    return MemoryRun(indptr, second.astype(np.uint16 if vocab_size < 2**16 else np.uint32), count.cpu().numpy())


def to_device(tokens: np.ndarray, device: str) -> torch.Tensor:
    """Copy a stream of uint16 or uint32 to ``device``, as int32."""
    signed = torch.from_numpy(tokens.view(f"i{tokens.itemsize}")).to(device, torch.int32)
    return signed & 0xFFFF if tokens.itemsize == 2 else signed
