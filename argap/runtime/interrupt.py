"""Stop a query over tokens from another thread, once its answer is no longer wanted."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Lock
from typing import TYPE_CHECKING

from argap.errors import Interrupted

if TYPE_CHECKING:
    import duckdb


class Interrupt:
    """Stops, from any thread, the queries that run inside `interruptible`."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._running: set[duckdb.DuckDBPyConnection] = set()
        self.asked = False

    def set(self) -> None:
        """The running queries and those that follow raise `Interrupted`."""
        with self._lock:
            self.asked = True
            for connection in self._running:
                connection.interrupt()

    def check(self) -> None:
        """Raise `Interrupted` if it was asked for."""
        if self.asked:
            raise Interrupted("the query was interrupted")

    @contextmanager
    def watching(self, connection: "duckdb.DuckDBPyConnection") -> Iterator[None]:
        """Inside, `set` interrupts ``connection``."""
        with self._lock:
            self._running.add(connection)
        try:
            self.check()
            yield
        finally:
            with self._lock:
                self._running.discard(connection)


_interrupt: ContextVar[Interrupt | None] = ContextVar("argap_interrupt", default=None)


@contextmanager
def interruptible(interrupt: Interrupt) -> Iterator[None]:
    """Queries over tokens inside the block, in this thread, stop when ``interrupt`` is set."""
    token = _interrupt.set(interrupt)
    try:
        yield
    finally:
        _interrupt.reset(token)


def current() -> Interrupt:
    """The interrupt of this thread's `interruptible` block; outside a block, one that is never set."""
    return _interrupt.get() or Interrupt()
