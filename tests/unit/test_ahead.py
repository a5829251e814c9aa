"""Work done ahead in threads: in order, bounded, and what it raises."""

import threading
import time

import pytest

from argap.runtime.threads import lazy, map_ahead, read_ahead


def test_items_come_in_order_and_few_are_made_ahead():
    made = []

    def items():
        for k in range(20):
            made.append(k)
            yield k

    reader = read_ahead(items(), 2)
    assert next(reader) == 0
    time.sleep(0.05)
    assert len(made) <= 4
    assert [0, *reader] == list(range(20))
    assert list(read_ahead(iter(()))) == []


def test_what_an_item_raises_comes_after_those_before_it():
    def items():
        yield from (1, 2)
        raise OSError("broken")

    seen = []
    with pytest.raises(OSError, match="broken"):
        seen.extend(read_ahead(items(), 3))
    reader = read_ahead(items())
    assert [next(reader), next(reader)] == [1, 2]


def test_functions_run_at_once_and_their_results_keep_the_order():
    barrier = threading.Barrier(2, timeout=60)

    def slow_first(k: int) -> int:
        if k < 2:
            barrier.wait()  # only two at once get past it
        time.sleep(0.02 * (k == 0))
        return k * k

    assert list(map_ahead(slow_first, range(7), 2)) == [k * k for k in range(7)]


def test_the_first_error_in_order_is_raised_and_few_items_are_taken():
    taken = []

    def items():
        for k in range(100):
            taken.append(k)
            yield k

    def fail(k: int) -> None:
        if k in (1, 2):
            raise ValueError(k)

    with pytest.raises(ValueError, match="1"):
        list(map_ahead(fail, items(), 2))
    assert len(taken) <= 4


def test_threads_make_attributes_of_two_objects_at_once():
    meeting = threading.Barrier(2, timeout=60)
    made = []

    class Waits:
        @lazy
        def value(self) -> int:
            made.append(meeting.wait())
            return 7

    waiting = [Waits(), Waits()]
    assert list(map_ahead(lambda each: each.value, waiting, 2)) == [7, 7]
    assert [each.value for each in waiting] == [7, 7]
    assert sorted(made) == [0, 1]
