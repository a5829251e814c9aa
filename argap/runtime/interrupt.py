"""Stop a query over tokens from another thread, once its answer is no longer wanted."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Lock
from typing import TYPE_CHECKING

from argap.errors import Interrupted

if TYPE_CHECKING:
    import duckdb


PRESSED = re.compile(
    r"^Query interrupted$"
    r"|reading (the schema of )?the object registered as '\w+' (as Arrow data )?failed: KeyboardInterrupt"
)
"""DuckDB's error for Ctrl-C during a query, and for one while it asks Python for rows."""


class Interrupt:
    """Stops, from any thread, the queries that run inside `interruptible`."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._running: set[duckdb.DuckDBPyConnection] = set()
        self.asked = False

    def set(self) -> None:
        """Make the running queries, and any later ones, raise `Interrupted`."""
        with self._lock:
            self.asked = True
            for connection in self._running:
                connection.interrupt()

    def check(self) -> None:
        """Raise `Interrupted` if `set` was called."""
        if self.asked:
            raise Interrupted("the query was interrupted")

    @contextmanager
    def watching(self, connection: "duckdb.DuckDBPyConnection") -> Iterator[None]:
        """Let `set` interrupt ``connection`` inside the block."""
        with self._lock:
            self._running.add(connection)
        try:
            self.check()
            yield
        finally:
            with self._lock:
                self._running.discard(connection)


@contextmanager
def raising_interrupts() -> Iterator[None]:
    """Raise `KeyboardInterrupt` for Ctrl-C during a query inside the block, of which DuckDB makes an error."""
    try:
        yield
    except Exception as error:
        if not PRESSED.search(str(error)):
            raise
        raise KeyboardInterrupt from None


_interrupt: ContextVar[Interrupt | None] = ContextVar("argap_interrupt", default=None)


@contextmanager
def interruptible(interrupt: Interrupt) -> Iterator[None]:
    """Let ``interrupt`` stop the queries over tokens that this thread runs inside the block."""
    token = _interrupt.set(interrupt)
    try:
        yield
    finally:
        _interrupt.reset(token)


def current() -> Interrupt:
    """Return the interrupt of this thread's `interruptible` block; outside a block, one that is never set."""
    return _interrupt.get() or Interrupt()
