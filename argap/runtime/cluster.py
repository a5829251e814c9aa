"""Jobs as tasks of a Ray cluster, whose results are files in a folder that all nodes reach."""

import socket
from collections.abc import Iterator, Sequence
from functools import partial
from importlib import import_module
from typing import Any

from argap.errors import ArgapError
from argap.runtime.device import use_device
from argap.runtime.jobs import AnyJob, Engine, Job, Stop
from argap.runtime.progress import say
from argap.runtime.trust import call_with_trust, is_trusted

RETRIES = 3
"""Restarts of a task whose worker was lost."""
CONNECT_SECONDS = 10.0
"""Time limit for a cluster to accept a connection."""
POLL_SECONDS = 0.5
"""Seconds between checks of ``stop`` while tasks run."""
CANCEL_SECONDS = 30.0
"""Grace period for cancelled tasks."""


def ray_engine(address: str | None, device: str) -> Engine:
    """Return the engine of the cluster at ``address`` (None: this machine). Raises `ArgapError` like `connect`."""
    return partial(run_on_ray, connect(address), device)


def connect(address: str | None) -> Any:
    """Connect to the cluster at ``address`` (None: start one on this machine) and return the module ``ray``.

    Ray installs a SIGTERM handler: connect before `argap.runtime.signals.listening`. Raises `ArgapError` if Ray is
    not installed or no cluster answers.
    """
    try:
        ray = import_module("ray")
    except ImportError:
        raise ArgapError("`engine=ray`: Ray is not installed; install it with `pip install argap[cluster]`") from None
    if not ray.is_initialized():
        try:
            if not _listens(address or ""):
                raise ConnectionError
            ray.init(address=address, log_to_driver=False)
        except ConnectionError:
            raise ArgapError(
                f"`address` {address}: no Ray cluster answers; expected HOST:PORT of one started with "
                "`ray start --head`, or no address to use this machine alone"
            ) from None
    return ray


def _listens(address: str) -> bool:
    """Return whether a server accepts connections at HOST:PORT (Ray would try for minutes); true for other forms."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not port.isdecimal():
        return True
    try:
        socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
    except (OSError, OverflowError, ValueError):  # no port has that number
        return False
    return True


def task_device(ray: Any, device: str) -> str:
    """Return ``cuda`` or ``cpu``; ``auto`` is CUDA if the cluster has a GPU, whether or not this machine has one.

    Raises `ArgapError` for any other name.
    """
    if device not in ("auto", "cuda", "cpu"):
        raise ArgapError(f"`device={device}`: expected auto, cpu or cuda; Ray chooses the GPU of each task")
    if device != "auto":
        return device
    if ray.cluster_resources().get("GPU"):
        return "cuda"
    say("the cluster has no GPU: each task uses one CPU core; --device cuda would wait for a GPU to join")
    return "cpu"


def run_on_ray(ray: Any, device: str, jobs: Sequence[AnyJob], stop: Stop) -> Iterator[AnyJob]:
    """Run jobs on a cluster; see `argap.runtime.jobs.Engine`. ``ray`` comes from `connect`.

    With ``device="cuda"`` each task gets a GPU. A task whose worker is lost is restarted. Once ``stop`` returns true,
    or the caller closes the iterator, waiting tasks are cancelled and running ones interrupted. Raises `ArgapError` if
    a task loses its worker more than `RETRIES` times, and if the files of a job are not in its folder on this machine.
    """
    chosen = task_device(ray, device)
    submit = ray.remote(num_gpus=int(chosen == "cuda"), max_retries=RETRIES)(call_with_trust).remote
    pending = {submit(is_trusted(), _run, job, chosen): job for job in jobs}
    try:
        while pending and not stop():
            ended, _ = ray.wait(list(pending), timeout=POLL_SECONDS)
            for each in ended:
                job = pending.pop(each)
                _finish(ray, each)
                if not job.is_done():
                    raise ArgapError(
                        f"{job.folder}: lacks the files of a finished job; expected a folder that all nodes of "
                        "the cluster reach by this path"
                    )
                yield job
    finally:
        for each in pending:
            ray.cancel(each)
        if pending:
            ray.wait(list(pending), num_returns=len(pending), timeout=CANCEL_SECONDS)


def _run(job: Job, device: str) -> None:
    job.run(use_device(device), lambda: False)


def _finish(ray: Any, task: Any) -> None:
    """Raise whatever the task raised; an `ArgapError` arrives unwrapped."""
    try:
        ray.get(task)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, ArgapError):
            raise error.cause from None
        raise
    except ray.exceptions.RayError as error:
        reason = str(error).strip().split("\n")[0]
        raise ArgapError(
            f"`engine=ray`: a task was lost {RETRIES + 1} times ({reason}); finished work is kept, run the same "
            "command again"
        ) from None
