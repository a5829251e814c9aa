"""Stop gracefully: on Ctrl-C or SIGTERM, finish the current step and write a checkpoint first."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass
class StopRequest:
    """Whether a stop was requested."""

    requested: bool = False


class Stopped(KeyboardInterrupt):
    """Training stopped as requested, after a checkpoint."""


@contextmanager
def listening() -> Iterator[StopRequest]:
    """Set `StopRequest.requested` on the first SIGINT or SIGTERM; a second signal stops at once.

    Python allows signal handlers in the main thread only; elsewhere this does nothing.
    """
    interrupt = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield interrupt
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def request(number: int, _frame: object) -> None:
        interrupt.requested = True
        signal.signal(number, before[signal.Signals(number)])

    for number in before:
        signal.signal(number, request)
    try:
        yield interrupt
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
