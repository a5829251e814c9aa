"""Show progress on stderr: a bar on a terminal; elsewhere a line after two seconds, then every twenty."""

import multiprocessing
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import IO, cast

from argap.runtime.streams import OwnSequences, Shown, on_one_line

SECONDS_TO_FIRST_LINE = 2.0
SECONDS_BETWEEN_LINES = 20.0
LEAST = 0.01
"""Share of the work from which the time left can be told."""


def say(message: str) -> None:
    """Print one line to stderr, with everything in it visible."""
    print(on_one_line(message), file=sys.stderr, flush=True)


@contextmanager
def progress(
    label: str, total: int | None, unit: str = "tokens", *, fraction: Callable[[], float | None] = lambda: None
) -> Iterator[Callable[[int], None]]:
    """Show rate and remaining time; yield a function to call with the amount of work done since the last call.

    ``fraction``: the share of the work that is done (0 to 1), if ``total`` is not known in advance.
    """
    if sys.stderr.isatty() and multiprocessing.parent_process() is None:
        yield from _bar(label, total, unit, fraction)
    else:
        yield from _lines(label, total, unit, fraction)


def time_left(seconds: float, fraction: float) -> str:
    """Return the remaining time if ``fraction`` (0 to 1) took ``seconds``: ``42 s``, ``3:05 min``, ``2:10 h``."""
    left = round(seconds * (1 - fraction) / fraction)
    if left < 60:
        return f"{left} s"
    return f"{left // 60}:{left % 60:02} min" if left < 3600 else f"{left // 3600}:{left % 3600 // 60:02} h"


def _bar(
    label: str, total: int | None, unit: str, fraction: Callable[[], float | None]
) -> Iterator[Callable[[int], None]]:
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
    drawn = cast("IO[str]", OwnSequences(sys.stderr))
    with Progress(*columns, console=Console(file=drawn), transient=True) as bar, _shown():
        task = bar.add_task(on_one_line(label), total=total or 1, rate="")
        started = time.monotonic()
        done = 0

        def advance(amount: int) -> None:
            nonlocal done
            done += amount
            speed = done / max(time.monotonic() - started, 1e-9)
            bar.update(task, completed=done if total else fraction() or 0, rate=f"{speed:,.0f} {unit}/s")

        yield advance


@contextmanager
def _shown() -> Iterator[None]:
    """Show control characters in what is printed inside the block, which a bar draws above itself."""
    before = sys.stdout, sys.stderr
    for name, stream in (("stdout", sys.stdout), ("stderr", sys.stderr)):
        setattr(sys, name, Shown(stream))
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def _lines(
    label: str, total: int | None, unit: str, fraction: Callable[[], float | None]
) -> Iterator[Callable[[int], None]]:
    """Print lines from a thread, by the clock, so that they appear even while the first step takes minutes."""
    started = time.monotonic()
    done = 0
    ended = threading.Event()

    def advance(amount: int) -> None:
        nonlocal done
        done += amount

    def report() -> None:
        wait = min(SECONDS_TO_FIRST_LINE, SECONDS_BETWEEN_LINES)
        while not ended.wait(wait):
            wait = SECONDS_BETWEEN_LINES
            share = done / total if total else fraction()
            with suppress(OSError):  # stderr is closed
                say(f"{label}: {_line(done, total, unit, time.monotonic() - started, share)}")

    threading.Thread(target=report, name="progress", daemon=True).start()
    try:
        yield advance
    finally:
        ended.set()


def _line(done: int, total: int | None, unit: str, seconds: float, share: float | None) -> str:
    of = f" of {total:,}" if total else ""
    left = f", {share:.0%} done, {time_left(seconds, share)} left" if share and LEAST <= share < 1 else ""
    rate = f", {done / seconds:,.0f} {unit}/s" if done else ""
    return f"{done:,}{of} {unit}{rate}{left}"
