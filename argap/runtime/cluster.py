"""Tasks of a Ray cluster, one GPU each, whose results are files in a folder that all nodes reach.

A task skips whatever is already finished in that folder, so the tasks of a lost worker can be restarted.
"""

import socket
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from argap.errors import ArgapError
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


def connect(address: str | None) -> Any:
    """Connect to the cluster at ``address`` (None: start one on this machine) and return the module ``ray``.

    Ray installs a SIGTERM handler: connect before `argap.runtime.stopping.listening`. Raises `ArgapError` if Ray is
    not installed or no cluster answers.
    """
    try:
        import ray  # pyright: ignore[reportMissingImports]
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
    """Whether a server accepts connections at HOST:PORT; true for other addresses. Ray itself would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not port.isdecimal():
        return True
    try:
        socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
    except OSError:
        return False
    return True


def task_device(ray: Any, device: str) -> str:
    """``cuda`` or ``cpu``; ``auto`` chooses CUDA if the cluster has a GPU, whether or not this machine has one.

    Raises `ArgapError` for another name.
    """
    if device not in ("auto", "cuda", "cpu"):
        raise ArgapError(f"`device={device}`: expected auto, cpu or cuda; Ray chooses the GPU of each task")
    if device != "auto":
        return device
    if ray.cluster_resources().get("GPU"):
        return "cuda"
    say("the cluster has no GPU: each task uses one CPU core; --device cuda would wait for a GPU to join")
    return "cpu"


def completed(
    ray: Any,
    task: Callable[..., None],
    calls: Sequence[tuple[Any, ...]],
    *,
    device: str,
    stop: Callable[[], bool] = lambda: False,
) -> Iterator[int]:
    """Run ``task`` with the arguments of each call on the cluster; yield the index of each call as it ends.

    With ``device="cuda"`` each task gets a GPU. Once ``stop`` returns true, or the caller closes the iterator, waiting
    tasks are cancelled and running ones interrupted. Raises `ArgapError` if the workers of a task are lost more than
    `RETRIES` times, and whatever a task raises.
    """
    submit = ray.remote(num_gpus=int(device == "cuda"), max_retries=RETRIES)(call_with_trust).remote
    pending = {submit(is_trusted(), task, *call): index for index, call in enumerate(calls)}
    try:
        while pending and not stop():
            ended, _ = ray.wait(list(pending), timeout=POLL_SECONDS)
            for each in ended:
                index = pending.pop(each)
                _finish(ray, each)
                yield index
    finally:
        for each in pending:
            ray.cancel(each)
        if pending:
            ray.wait(list(pending), num_returns=len(pending), timeout=CANCEL_SECONDS)


def result_of(ray: Any, task: Any) -> Any:
    """Wait for a task and return its result. Raises whatever the task raised; an `ArgapError` arrives unwrapped."""
    try:
        return ray.get(task)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, ArgapError):
            raise error.cause from None
        raise


def _finish(ray: Any, task: Any) -> None:
    try:
        result_of(ray, task)
    except ray.exceptions.RayTaskError:
        raise
    except ray.exceptions.RayError as error:
        reason = str(error).strip().split("\n")[0]
        raise ArgapError(
            f"`engine=ray`: a task was lost {RETRIES + 1} times ({reason}); finished work is kept, run the same "
            "command again"
        ) from None
