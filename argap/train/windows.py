"""The order of training windows: a pure function of (data, seq_len, seed).

Window ``w`` has tokens ``w · seq_len … (w + 1) · seq_len``, one more than ``seq_len``: the last is only a target, and
the first input of the next window. Each epoch is a permutation of all windows. Step ``s`` takes positions ``s · B … (s
+ 1) · B − 1`` of the concatenated epochs, whatever the architecture and the number of devices.
"""

from functools import lru_cache

import numpy as np

from argap.errors import ArgapError


class Windows:
    """Windows of a token array in training order. Legend: B windows, T = ``seq_len``."""

    def __init__(self, ids: np.ndarray, seq_len: int, seed: int) -> None:
        """Divide ``ids [N]`` into windows. Raises `ArgapError` if they are shorter than one window."""
        self.ids = ids
        self.seq_len = seq_len
        self.seed = seed
        self.count = (len(ids) - 1) // seq_len
        if self.count < 1:
            raise ArgapError(
                f"the data have {len(ids)} tokens; expected more than `seq_len`, {seq_len}: "
                "use more data or a smaller `seq_len`"
            )

    def in_training_order(self, start: int, count: int) -> np.ndarray:
        """Return positions ``start … start + count − 1`` of the endless order: int64 ``[B, T + 1]``."""
        positions = range(start, start + count)
        numbers = [epoch_order(self.count, self.seed, p // self.count)[p % self.count] for p in positions]
        return self.numbered(numbers)

    def numbered(self, numbers: list[int]) -> np.ndarray:
        """Return the windows with these numbers, in file order: int64 ``[B, T + 1]``."""
        batch = np.empty((len(numbers), self.seq_len + 1), dtype=np.int64)
        for row, number in enumerate(numbers):
            batch[row] = self.ids[number * self.seq_len : (number + 1) * self.seq_len + 1]
        return batch


@lru_cache(maxsize=2)  # a batch may span two epochs
def epoch_order(windows: int, seed: int, epoch: int) -> np.ndarray:
    """Return the permutation of ``range(windows)`` for one epoch, int64 ``[windows]``.

    Sorts the raw output of the counter-based generator Philox, whose stream NumPy guarantees never to change;
    `numpy.random.Generator.permutation` gives no such guarantee.
    """
    keys = np.random.Philox(key=np.array([seed, epoch], dtype=np.uint64)).random_raw(windows)
    return np.argsort(keys, kind="stable")
