"""Parts of a sweep on this machine: in this process on one device, a process each on several."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing.queues import SimpleQueue
from multiprocessing.synchronize import Event

import torch

from argap.device import use_device
from argap.errors import ArgapError
from argap.synthetics.parts import Part
from argap.trust import call_with_trust, is_trusted

SECONDS_BETWEEN_LOOKS = 0.2
"""By so many the processes are waited for before ``stop`` is asked again."""


def devices_of(name: str) -> list[torch.device]:
    """``auto``: every GPU, or the CPU where there is none; else the device of that name.

    Raises `ArgapError` where there is no such device.
    """
    if name == "auto" and torch.cuda.device_count() > 1:
        return [torch.device("cuda", index) for index in range(torch.cuda.device_count())]
    return [use_device(name)]


def train_on(devices: Sequence[torch.device], parts: Sequence[Part], stop: Callable[[], bool]) -> Iterator[Part]:
    """Train the parts in their order, each on the first device that is free, and yield each when it has ended.

    Raises what training raises, and `ArgapError` where a process is lost.
    """
    if min(len(devices), len(parts)) > 1:
        yield from _in_processes(devices[: len(parts)], parts, stop)
        return
    for part in parts:
        if stop():
            return
        part.train(devices[0], stop)
        yield part


def _in_processes(devices: Sequence[torch.device], parts: Sequence[Part], stop: Callable[[], bool]) -> Iterator[Part]:
    """A process a device takes part after part. Processes are spawned: CUDA does not outlive a fork."""
    context = multiprocessing.get_context("spawn")
    free, over = context.SimpleQueue(), context.Event()
    for device in devices:
        free.put(device)
    threads = max(1, (os.cpu_count() or 1) // len(devices))
    pool = ProcessPoolExecutor(len(devices), context, initializer=_begin, initargs=(free, over, threads))
    try:
        with _no_interrupts():
            pending = {pool.submit(call_with_trust, is_trusted(), _train, part): part for part in parts}
        while pending and not stop():
            for future in wait(pending, SECONDS_BETWEEN_LOOKS, FIRST_COMPLETED).done:
                future.result()
                yield pending.pop(future)
    except BrokenProcessPool:
        if not stop():  # what asked this process to stop may have ended the others
            raise ArgapError(
                "a process that trained was lost (killed, or out of memory); finished runs stay, run the same command "
                "again"
            ) from None
    finally:
        over.set()
        pool.shutdown(cancel_futures=True)


@contextmanager
def _no_interrupts() -> Iterator[None]:
    """Processes begun meanwhile never see Ctrl-C, which a terminal sends to all: this one tells them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_device = torch.device("cpu")
_over: Event | None = None


def _begin(free: "SimpleQueue[torch.device]", over: Event, threads: int) -> None:
    """Take a device for this process."""
    global _device, _over
    _device, _over = use_device(str(free.get())), over
    torch.set_num_threads(threads)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)  # nobody is left to hand out parts or to say stop; files are whole or absent


def _train(part: Part) -> None:
    assert _over is not None
    part.train(_device, _over.is_set)
