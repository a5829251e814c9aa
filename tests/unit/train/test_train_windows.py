"""Window order: a worked example, one permutation per epoch, independence of the number of processes."""

import numpy as np
import pytest

from argap.errors import ArgapError
from argap.train.windows import Windows, epoch_order


def test_windows_match_a_worked_example() -> None:
    # 10 tokens, seq_len 3: windows 0-3, 3-6, 6-9; one more would need token 12.
    windows = Windows(np.arange(10, 20, dtype=np.uint16), seq_len=3, seed=0)
    assert windows.count == 3
    assert windows.numbered([0, 2]).tolist() == [[10, 11, 12, 13], [16, 17, 18, 19]]
    assert windows.numbered([0]).dtype == np.int64


def test_every_target_is_seen_once_per_epoch() -> None:
    windows = Windows(np.arange(31), seq_len=3, seed=5)
    targets = windows.in_training_order(0, 10)[:, 1:]
    assert sorted(targets.ravel().tolist()) == list(range(1, 31))


def test_each_epoch_has_another_order() -> None:
    windows = Windows(np.arange(31), seq_len=3, seed=5)
    first, second = epoch_order(10, 5, 0), epoch_order(10, 5, 1)
    assert sorted(first.tolist()) == sorted(second.tolist()) == list(range(10))
    assert first.tolist() != second.tolist()
    assert epoch_order(10, 6, 0).tolist() != first.tolist()
    across = windows.in_training_order(7, 6)[:, 0] // 3
    assert across.tolist() == [*first[7:].tolist(), *second[:3].tolist()]


def test_order_is_the_same_on_every_machine() -> None:
    # Sorted Philox output, written down once: a change here changes every published run.
    assert epoch_order(8, 0, 0).tolist() == [0, 2, 1, 5, 4, 3, 6, 7]
    assert epoch_order(8, 1, 2).tolist() == [4, 2, 0, 6, 1, 5, 7, 3]


def test_processes_split_a_step() -> None:
    windows = Windows(np.arange(1000), seq_len=7, seed=1)
    whole = windows.in_training_order(24, 8)
    parts = [windows.in_training_order(24 + 2 * rank, 2) for rank in range(4)]
    assert np.array_equal(np.concatenate(parts), whole)


def test_data_shorter_than_a_window_are_refused() -> None:
    with pytest.raises(ArgapError, match="have 16 tokens; expected more than `seq_len`, 16"):
        Windows(np.arange(16), seq_len=16, seed=0)
