"""Members of a suite as tasks of a Ray cluster, a GPU each; the work folder lies where all nodes reach it."""

from pathlib import Path

from argap.errors import ArgapError
from argap.suite.config import Entry, load_suite
from argap.suite.members import Places, evaluation_set, run_member

RETRIES = 3
"""Of a member whose worker was lost; its training goes on from the last checkpoint."""


def run_on_ray(
    suite: Path, entries: list[Entry], places: Places, *, address: str | None, device: str, keep: bool
) -> None:
    """Train and score ``entries`` of the file ``suite`` on the cluster at ``address`` (None: this machine).

    What is finished is passed over. Raises `ArgapError` where Ray is not installed, and what a member raises.
    """
    try:
        import ray  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise ArgapError("--engine ray: Ray is not installed; install it with `pip install argap[cluster]`") from None
    if not ray.is_initialized():
        ray.init(address=address, log_to_driver=False)
    gpus = 0 if device == "cpu" else 1
    task = ray.remote(num_gpus=gpus, max_retries=RETRIES)(_run_one)
    pending = [task.remote(suite.absolute(), entry, Places(places.work.absolute()), device, keep) for entry in entries]
    try:
        ray.get(pending)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, ArgapError):
            raise error.cause from None
        raise


def _run_one(suite: Path, entry: Entry, places: Places, device: str, keep: bool) -> None:
    loaded = load_suite(suite)
    data, _ = evaluation_set(loaded)
    run_member(loaded, entry, places, data, device=device, keep=keep)
