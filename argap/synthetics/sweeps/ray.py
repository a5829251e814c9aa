"""Jobs of a sweep as tasks of a Ray cluster, one GPU each. All nodes must reach the sweep's folder by the same path."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from argap.errors import ArgapError
from argap.runtime.cluster import completed, connect, task_device
from argap.runtime.device import use_device
from argap.synthetics.sweeps.jobs import Engine, Job


def ray_engine(address: str | None, device: str) -> Engine:
    """Train on the Ray cluster at ``address`` (None: this machine alone). Raises `ArgapError` like `connect`."""
    return partial(train_on_ray, connect(address), device)


def train_on_ray(ray: Any, device: str, jobs: Sequence[Job], stop: Callable[[], bool]) -> Iterator[Job]:
    """Train the jobs and yield each when it has ended; ``ray`` comes from `argap.runtime.cluster.connect`.

    The job of a lost worker is restarted with its unfinished runs. Raises `ArgapError` like `argap.runtime.cluster`, if
    the results of a job are not in the folder here, and whatever training raises.
    """
    chosen = task_device(ray, device)
    calls = [(replace(job, out=job.out.absolute()), chosen) for job in jobs]
    for number in completed(ray, _train, calls, device=chosen, stop=stop):
        job = jobs[number]
        if missing := job.unfinished():
            raise ArgapError(
                f"{job.out}: the finished run {missing[0].key} is missing; expected `out` to be a folder that all "
                "nodes of the cluster reach by this path"
            )
        yield job


def _train(job: Job, device: str) -> None:
    job.train(use_device(device), lambda: False)
