"""Ctrl-C and SIGTERM as requests: the current step ends and a checkpoint is written before the process stops."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass
class Interrupt:
    """Whether this process was asked to stop."""

    requested: bool = False


@contextmanager
def listening() -> Iterator[Interrupt]:
    """Turn the first SIGINT or SIGTERM into `Interrupt.requested`; a second one stops at once.

    Outside the main thread Python allows no handlers, and nothing is caught.
    """
    interrupt = Interrupt()
    if threading.current_thread() is not threading.main_thread():
        yield interrupt
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def ask(number: int, _frame: object) -> None:
        interrupt.requested = True
        signal.signal(number, before[signal.Signals(number)])

    for number in before:
        signal.signal(number, ask)
    try:
        yield interrupt
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
