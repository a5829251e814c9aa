"""Progress on stderr: a bar on a terminal; elsewhere, and in worker processes, a plain line now and then."""

import multiprocessing
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

SECONDS_BETWEEN_LINES = 20.0


def say(message: str) -> None:
    """Print one line to stderr."""
    print(message, file=sys.stderr, flush=True)


@contextmanager
def progress(label: str, total: int | None, unit: str = "tokens") -> Iterator[Callable[[int], None]]:
    """Show rate and remaining time. Yields a function to call with the amount of work done since the last call."""
    if sys.stderr.isatty() and multiprocessing.parent_process() is None:
        yield from _bar(label, total, unit)
    else:
        yield from _lines(label, total, unit)


def _bar(label: str, total: int | None, unit: str) -> Iterator[Callable[[int], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    rate = TextColumn("{task.fields[rate]}")
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        rate,
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=total, rate="")
        started = time.monotonic()
        done = 0

        def advance(amount: int) -> None:
            nonlocal done
            done += amount
            speed = done / max(time.monotonic() - started, 1e-9)
            bar.update(task, advance=amount, rate=f"{speed:,.0f} {unit}/s")

        yield advance


def _lines(label: str, total: int | None, unit: str) -> Iterator[Callable[[int], None]]:
    """Lines come by the clock, from a thread: also while the first step takes minutes."""
    started = time.monotonic()
    done = 0
    ended = threading.Event()

    def advance(amount: int) -> None:
        nonlocal done
        done += amount

    def report() -> None:
        of = f" of {total:,}" if total else ""
        while not ended.wait(SECONDS_BETWEEN_LINES):
            with suppress(OSError):  # nobody reads it any more
                say(f"{label}: {done:,}{of} {unit}, {done / (time.monotonic() - started):,.0f} {unit}/s")

    threading.Thread(target=report, name="progress", daemon=True).start()
    try:
        yield advance
    finally:
        ended.set()
