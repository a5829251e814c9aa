"""Produce items in threads before they are asked for, in order: read files ahead, overlap work with other work."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from typing import Any, TypeVar

Item = TypeVar("Item")
Made = TypeVar("Made")
LAST: Any = object()


class lazy(cached_property[Made]):
    """`functools.cached_property` without Python 3.11's lock, which makes threads wait even for other objects.

    Two threads that ask the same object at once may both compute the value.
    """

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        if instance is None:
            return self
        made = vars(instance)
        if self.attrname not in made:
            made[self.attrname] = self.func(instance)
        return made[self.attrname]


def gathered(items: Iterable[Item], least: int, size: Callable[[Item], int] = len) -> Iterator[list[Item]]:  # pyright: ignore[reportArgumentType]
    """Yield lists of consecutive items whose sizes add up to at least ``least``; the last list may fall short.

    >>> list(gathered(["a", "bc", "d", "e"], 3))
    [['a', 'bc'], ['d', 'e']]
    """
    waiting: list[Item] = []
    total = 0
    for item in items:
        waiting.append(item)
        total += size(item)
        if total >= least:
            yield waiting
            waiting, total = [], 0
    if waiting:
        yield waiting


def available_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def read_ahead(items: Iterable[Item], count: int = 1) -> Iterator[Item]:
    """Yield ``items``, ``count`` of them read ahead in a thread. Raises what the iterator raises."""
    iterator = iter(items)
    pool = ThreadPoolExecutor(1, thread_name_prefix="reader")
    waiting = deque(pool.submit(next, iterator, LAST) for _ in range(count))
    try:
        while (item := waiting.popleft().result()) is not LAST:
            waiting.append(pool.submit(next, iterator, LAST))
            yield item
    finally:
        pool.shutdown(cancel_futures=True)


def map_ahead(function: Callable[[Item], Made], items: Iterable[Item], threads: int) -> Iterator[Made]:
    """Yield ``function`` of each item, in order, ``threads`` at a time. Raises the first exception.

    An item is taken only when a thread is free for it, so few are in memory.
    """
    pool = ThreadPoolExecutor(threads, thread_name_prefix="worker")
    waiting: deque[Future[Made]] = deque()
    try:
        for item in items:
            waiting.append(pool.submit(function, item))
            if len(waiting) > threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
