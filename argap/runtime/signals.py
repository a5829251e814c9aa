"""What Ctrl-C and SIGTERM do: stop gracefully, leave worker processes to their parent, and never get lost."""

import os
import signal
import sys
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
    stop = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def request(number: int, _frame: object) -> None:
        stop.requested = True
        signal.signal(number, before[signal.Signals(number)])

    for number in before:
        signal.signal(number, request)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def interrupts_blocked() -> Iterator[None]:
    """Let processes started inside the block ignore Ctrl-C, which a terminal sends to all: this process stops them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def exit_with_parent() -> None:
    """End this worker process at once when its parent ends. Its files must be complete or absent."""
    threading.Thread(target=_exit_after_parent, daemon=True).start()


def _exit_after_parent() -> None:
    import multiprocessing

    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)  # nothing can assign jobs or stop this process any more


@contextmanager
def keeping_interrupts() -> Iterator[None]:
    """Raise an interrupt again that arrives in a destructor or a weak reference's callback inside the block.

    Python cannot raise there: it prints the interrupt's traceback and continues.
    """
    print_it = sys.unraisablehook

    def raise_later(raised: "sys.UnraisableHookArgs") -> None:
        if issubclass(raised.exc_type, KeyboardInterrupt):
            again = threading.Timer(0.01, os.kill, (os.getpid(), signal.SIGINT))
            again.daemon = True
            again.start()
        else:
            print_it(raised)

    sys.unraisablehook = raise_later
    try:
        yield
    finally:
        sys.unraisablehook = print_it
