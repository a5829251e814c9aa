"""What Ctrl-C and SIGTERM do: stop gracefully, leave worker processes to their parent, and never get lost."""

import functools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from importlib.machinery import ExtensionFileLoader, SourceFileLoader
from queue import SimpleQueue
from types import FrameType
from typing import Any

INTERRUPTED = 130
"""The exit code after an interrupt."""


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
    # What is answered here must not reach `ending_on_interrupt`, whose thread may be late to hear of it.
    told = signal.set_wakeup_fd(-1)

    def request(number: int, _frame: object) -> None:
        stop.requested = True
        signal.signal(number, before[signal.Signals(number)])

    for number in before:
        signal.signal(number, request)
    try:
        yield stop
    finally:
        signal.set_wakeup_fd(told, warn_on_full_buffer=False)
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def ending_as_interrupted() -> Iterator[None]:
    """Answer SIGTERM, and the SIGHUP of a closed terminal, as Ctrl-C; one that is ignored, as under nohup, stays so.

    Python allows signal handlers in the main thread only; elsewhere this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ending = [n for n in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) is signal.SIG_DFL]
    for number in ending:
        signal.signal(number, lambda _number, _frame: signal.raise_signal(signal.SIGINT))
    try:
        yield
    finally:
        for number in ending:
            signal.signal(number, signal.SIG_DFL)


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


GRACE = 15.0
"""Seconds that a command has to end after Ctrl-C; a second Ctrl-C ends it at once."""
AGAIN = 0.5
"""Seconds after which a Ctrl-C is a second one, not the same, sent to a group of processes and to each."""


@contextmanager
def ending_on_interrupt() -> Iterator[None]:
    """End the process after Ctrl-C even if a library never returns from its work.

    Python handles a signal between two of its own instructions; a query, a tokenizer or a kernel may not come back to
    one. So a thread learns of each SIGINT from the system, and ends the process `GRACE` seconds later wherever it then
    is, also while threads are joined at exit. Files stay whole or absent, as after any kill. Inside `listening`, which
    answers Ctrl-C itself, this does nothing. `was_interrupted` then says whether one came.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    _arrived.clear()
    hearing = threading.Thread(target=_end_after, args=(reader,), name="interrupts", daemon=True)
    hearing.start()
    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    os.register_at_fork(after_in_child=_forget)
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        os.write(writer, END)  # a process that was forked meanwhile may keep the pipe open
        os.close(writer)
        hearing.join(GRACE)


_arrived = threading.Event()
END = b"\0"
"""In place of the number of a signal: no more are to be heard."""


def was_interrupted() -> bool:
    """Return whether Ctrl-C arrived in the last `ending_on_interrupt` of this process.

    A library may take the interrupt for a failure of its own: torch, asked for a tensor, says that the storage has no
    shape.
    """
    return _arrived.is_set()


def _forget() -> None:
    """Let a forked child keep its signals to itself."""
    if threading.current_thread() is threading.main_thread():
        signal.set_wakeup_fd(-1)


def _end_after(reader: int) -> None:
    first: float | None = None
    got = b""
    while END not in got and (got := os.read(reader, 64)):
        if signal.SIGINT not in got:
            continue
        if first is None:
            first = time.monotonic()
            _arrived.set()
            ending = threading.Timer(GRACE, os._exit, (INTERRUPTED,))
            ending.daemon = True
            ending.start()
        elif time.monotonic() - first > AGAIN:
            os._exit(INTERRUPTED)
    os.close(reader)


@contextmanager
def keeping_interrupts() -> Iterator[None]:
    """Raise an interrupt again that arrives in a destructor or a weak reference's callback inside the block.

    Python cannot raise there: it hands the interrupt to a hook, which prints its traceback, and continues. A second
    interrupt inside a hook written in Python would be printed as well, so the hook is a method in C, and a thread does
    the rest.
    """
    print_it = sys.unraisablehook
    waiting: SimpleQueue[sys.UnraisableHookArgs | None] = SimpleQueue()
    threading.Thread(target=_raise_again, args=(waiting, print_it), daemon=True).start()
    sys.unraisablehook = waiting.put
    try:
        yield
    finally:
        sys.unraisablehook = print_it
        waiting.put(None)


def quiet_if_interrupted(code: object) -> None:
    """Let Python end silently: it closes what an interrupt left half-done, such as a suspended generator of a library.

    Their modules may have lost their names by then, and Python would print a traceback of each.
    """
    if code == INTERRUPTED:
        sys.unraisablehook = id  # written in C: Python's functions lose their names, too


@contextmanager
def importing_whole() -> Iterator[None]:
    """Inside the block, answer an interrupt that arrives while another package is imported once it is.

    C++ calls Python code when an extension is loaded, and when torch initialises its parts. Python answers signals
    there, and for the exception nanobind (in DuckDB's module), pybind11 and torch abort the process.

    What packages print while they are imported goes to stderr: under ``python -OO`` transformers prints a line for each
    parameter whose description is gone with the docstrings.
    """
    loaders = [(ExtensionFileLoader, "create_module"), (ExtensionFileLoader, "exec_module")]
    loaders += [(SourceFileLoader, "exec_module")]
    before = [(loader, name, getattr(loader, name)) for loader, name in loaders]
    for loader, name, load in before:
        setattr(loader, name, _apart(load))
    try:
        yield
    finally:
        for loader, name, load in before:
            setattr(loader, name, load)


_importing = False
"""Whether the main thread is inside such an import."""


def _apart(load: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(load)
    def loaded(loader: Any, of: Any) -> Any:
        global _importing
        own = getattr(loader, "name", "").partition(".")[0] == "argap"  # what it imports waits by itself
        if own or _importing or threading.current_thread() is not threading.main_thread():
            return load(loader, of)
        try:
            _importing = True
            with _answering_later(), redirect_stdout(sys.stderr):
                return load(loader, of)
        finally:
            _importing = False

    return loaded


@contextmanager
def _answering_later() -> Iterator[None]:
    """Answer an interrupt that arrives inside the block at its end."""
    answers = signal.getsignal(signal.SIGINT)
    if not callable(answers):
        yield
        return
    arrived: list[FrameType | None] = []
    signal.signal(signal.SIGINT, lambda _number, frame: arrived.append(frame))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, answers)
        if arrived:
            answers(signal.SIGINT, arrived[0])


def _raise_again(
    waiting: "SimpleQueue[sys.UnraisableHookArgs | None]", print_it: Callable[["sys.UnraisableHookArgs"], object]
) -> None:
    while raised := waiting.get():
        if issubclass(raised.exc_type, KeyboardInterrupt):
            time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGINT)
        else:
            print_it(raised)
        del raised
