"""Compute each answer once and keep it for other pages and repeated requests."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Any, TypeVar

Answer = TypeVar("Answer")
KEPT = 64


class Once:
    """The last `KEPT` answers. Thread-safe: while one thread computes an answer, others that need it wait."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._answers: OrderedDict[Hashable, Any] = OrderedDict()
        self._locks: dict[Hashable, Lock] = {}

    def get(self, key: Hashable, compute: Callable[[], Answer]) -> Answer:
        """Return the answer kept under ``key``, or compute it now. Errors of ``compute`` are not kept."""
        with self._lock:
            if key in self._answers:
                self._answers.move_to_end(key)
                return self._answers[key]
            own = self._locks.setdefault(key, Lock())
        with own:
            with self._lock:
                if key in self._answers:
                    return self._answers[key]
            answer = compute()
            with self._lock:
                self._answers[key] = answer
                self._locks.pop(key, None)
                if len(self._answers) > KEPT:
                    self._answers.popitem(last=False)
        return answer
