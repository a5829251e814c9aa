"""Independent jobs whose results are files: run in this process, in one process per device, or on a Ray cluster.

A job skips the work already finished in its folder, so it can be run again after a stop, a kill or a lost worker; an
engine only reports which jobs have ended. The engine for Ray is in `argap.runtime.cluster`.
"""

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from multiprocessing.queues import SimpleQueue
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch

from argap.errors import ArgapError
from argap.runtime.device import use_device
from argap.runtime.signals import exit_with_parent, interrupts_blocked
from argap.runtime.streams import guard_streams
from argap.runtime.trust import call_with_trust, is_trusted

POLL_SECONDS = 0.2
"""Seconds between checks of ``stop`` while the processes work."""
START_METHOD = "spawn"
"""How processes start. CUDA does not survive a fork."""

Stop = Callable[[], bool]
"""Whether to stop: no more jobs are started, and those in progress end soon."""


class Job(Protocol):
    """Work that an engine runs. A job is pickled to reach another process."""

    @property
    def folder(self) -> Path | str:
        """Return where its results are: a path that every node of a cluster can reach."""
        ...

    def run(self, device: torch.device, stop: Stop) -> None:
        """Do the work that is left and write it to files, each whole or not at all."""
        ...

    def is_done(self) -> bool:
        """Return whether all its files exist."""
        ...


AnyJob = TypeVar("AnyJob", bound=Job)
Engine = Callable[[Sequence[Any], Stop], Iterator[Any]]
"""Runs jobs in order, each on the first free device, and yields each when it has ended. Raises what a job raises."""


def local_engine(device: str) -> Engine:
    """Return the engine of this machine, on the devices of `devices_of`."""
    return partial(run_on, devices_of(device))


def devices_of(name: str) -> list[torch.device]:
    """Return every GPU for ``auto`` (the CPU if there is none), otherwise the named device.

    Raises `ArgapError` if there is no such device.
    """
    if name == "auto" and torch.cuda.device_count() > 1:
        return [torch.device("cuda", index) for index in range(torch.cuda.device_count())]
    return [use_device(name)]


def run_on(devices: Sequence[torch.device], jobs: Sequence[AnyJob], stop: Stop) -> Iterator[AnyJob]:
    """Run jobs on one device in this process, on several in one process per device; see `Engine`.

    Raises `ArgapError` if a process is lost.
    """
    if min(len(devices), len(jobs)) > 1:
        yield from _in_processes(devices[: len(jobs)], jobs, stop)
        return
    for job in jobs:
        if stop():
            return
        job.run(devices[0], stop)
        yield job


def _in_processes(devices: Sequence[torch.device], jobs: Sequence[AnyJob], stop: Stop) -> Iterator[AnyJob]:
    context = multiprocessing.get_context(START_METHOD)
    free, over = context.SimpleQueue(), context.Event()
    for device in devices:
        free.put(device)
    threads = max(1, (os.cpu_count() or 1) // len(devices))
    pool = ProcessPoolExecutor(len(devices), context, initializer=_initialize, initargs=(free, over, threads))
    try:
        with interrupts_blocked():
            pending = {pool.submit(call_with_trust, is_trusted(), _run, job): job for job in jobs}
        while pending and not stop():
            for future in wait(pending, POLL_SECONDS, FIRST_COMPLETED).done:
                future.result()
                yield pending.pop(future)
    except BrokenProcessPool:
        if not stop():  # the signal that stopped this process may have ended the others
            raise ArgapError(
                "a worker process was lost (killed or out of memory); finished work is kept, run the same command again"
            ) from None
    finally:
        over.set()
        pool.shutdown(cancel_futures=True)


_device = torch.device("cpu")
_over: Event | None = None


def _initialize(free: "SimpleQueue[torch.device]", over: Event, threads: int) -> None:
    """Assign a device to this process."""
    global _device, _over
    guard_streams()
    _device, _over = use_device(str(free.get())), over
    torch.set_num_threads(threads)
    exit_with_parent()


def _run(job: Job) -> None:
    assert _over is not None
    job.run(_device, _over.is_set)
