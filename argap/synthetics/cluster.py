"""Parts of a sweep as tasks of a Ray cluster, a GPU each; the sweep's folder lies where all nodes reach it."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from argap.cluster import as_they_end, device_of_tasks
from argap.device import use_device
from argap.errors import ArgapError
from argap.synthetics.parts import Part


def train_on_ray(ray: Any, device: str, parts: Sequence[Part], stop: Callable[[], bool]) -> Iterator[Part]:
    """Train the parts and yield each when it has ended; ``ray`` as `argap.cluster.connect` gives it.

    A part whose worker was lost is begun again with the runs that were not finished. Raises `ArgapError` as
    `argap.cluster` does, where a task's files are not seen here, and what training raises.
    """
    chosen = device_of_tasks(ray, device)
    calls = [(replace(part, out=part.out.absolute()), chosen) for part in parts]
    for number in as_they_end(ray, _train, calls, device=chosen, stop=stop):
        part = parts[number]
        if missing := part.unfinished():
            raise ArgapError(
                f"{part.out}: {missing[0].key} was trained and is not there; expected in --out a folder that all nodes "
                "of the cluster reach by that path"
            )
        yield part


def _train(part: Part, device: str) -> None:
    part.train(use_device(device), lambda: False)
