"""Tasks of a Ray cluster, a GPU each, whose results are files in a folder that all nodes reach.

A task passes over what is finished there, so the tasks of a lost worker may be begun again.
"""

import socket
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from argap.errors import ArgapError
from argap.progress import say

RETRIES = 3
"""Of a task whose worker was lost."""
SECONDS_TO_ANSWER = 10.0
"""Of a cluster that is there."""
SECONDS_BETWEEN_LOOKS = 0.5
"""By so many a task is waited for before ``stop`` is asked again."""
SECONDS_TO_STOP = 30.0
"""So long the tasks in progress are given to end once they are cancelled."""


def connect(address: str | None) -> Any:
    """Ray itself, connected to the cluster at ``address`` (None: this machine alone).

    It sets a handler of SIGTERM: connect before `argap.train.interrupt.listening`. Raises `ArgapError` where Ray is
    not installed and where no cluster answers.
    """
    try:
        import ray  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise ArgapError("--engine ray: Ray is not installed; install it with `pip install argap[cluster]`") from None
    if not ray.is_initialized():
        try:
            if not _listens(address or ""):
                raise ConnectionError
            ray.init(address=address, log_to_driver=False)
        except ConnectionError:
            raise ArgapError(
                f"--address {address}: no Ray cluster answers; expected HOST:PORT of one that `ray start --head` "
                "began, or no address for this machine alone"
            ) from None
    return ray


def _listens(address: str) -> bool:
    """Whether something does, where ``address`` names host and port: Ray itself tries for minutes to find out."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not port.isdecimal():
        return True
    try:
        socket.create_connection((host, int(port)), SECONDS_TO_ANSWER).close()
    except OSError:
        return False
    return True


def device_of_tasks(ray: Any, device: str) -> str:
    """``cuda`` or ``cpu``; ``auto`` is CUDA where the cluster has a GPU. This machine itself needs none.

    Raises `ArgapError` for another name.
    """
    if device not in ("auto", "cuda", "cpu"):
        raise ArgapError(f"--device {device}: expected auto, cpu or cuda; Ray chooses the GPU of each task")
    if device != "auto":
        return device
    if ray.cluster_resources().get("GPU"):
        return "cuda"
    say("the cluster has no GPU: a CPU core for each task; --device cuda waits for a GPU to join")
    return "cpu"


def as_they_end(
    ray: Any,
    task: Callable[..., None],
    calls: Sequence[tuple[Any, ...]],
    *,
    device: str,
    stop: Callable[[], bool] = lambda: False,
) -> Iterator[int]:
    """Run ``task`` with each of ``calls`` as tasks of the cluster; yield the number of each call as it ends.

    ``device`` ``cuda`` gives each task a GPU. Where ``stop`` says so, and where the caller goes no further, those
    that wait are taken back and those in progress are interrupted. Raises `ArgapError` where a worker is lost once
    too often, and what a task raises.
    """
    begin = ray.remote(num_gpus=int(device == "cuda"), max_retries=RETRIES)(task).remote
    pending = {begin(*call): number for number, call in enumerate(calls)}
    try:
        while pending and not stop():
            ended, _ = ray.wait(list(pending), timeout=SECONDS_BETWEEN_LOOKS)
            for each in ended:
                number = pending.pop(each)
                _end(ray, each)
                yield number
    finally:
        for each in pending:
            ray.cancel(each)
        if pending:
            ray.wait(list(pending), num_returns=len(pending), timeout=SECONDS_TO_STOP)


def result_of(ray: Any, task: Any) -> Any:
    """What a task returned, once it has. Raises what it raised: an `ArgapError` as it was."""
    try:
        return ray.get(task)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, ArgapError):
            raise error.cause from None
        raise


def _end(ray: Any, task: Any) -> None:
    try:
        result_of(ray, task)
    except ray.exceptions.RayTaskError:
        raise
    except ray.exceptions.RayError as error:
        reason = str(error).strip().split("\n")[0]
        raise ArgapError(
            f"--engine ray: a task was lost {RETRIES + 1} times ({reason}); what is finished stays, run the same "
            "command again"
        ) from None
