"""Run as a single process, or as one of several under ``torchrun``, one per GPU."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from argap.errors import ArgapError, first_line

if TYPE_CHECKING:
    import torch

# Rank 0 tokenizes the corpus while the others wait at a barrier.
BARRIER_TIMEOUT = timedelta(hours=4)
MEETING_TIMEOUT = timedelta(minutes=3)
"""Time in which all processes must have met; torchrun starts them together."""


@dataclass(frozen=True)
class Parallel:
    """This process and its rank among all processes of the run."""

    rank: int
    world: int
    device: "torch.device"

    @property
    def is_main(self) -> bool:
        """Whether this process writes files and reports progress."""
        return self.rank == 0

    def wait(self) -> None:
        """Wait for all processes."""
        if self.world > 1:
            import torch.distributed as dist

            dist.barrier()

    def sum(self, values: "torch.Tensor") -> "torch.Tensor":
        """Sum ``values`` over all processes, in place."""
        if self.world > 1:
            import torch.distributed as dist

            dist.all_reduce(values)
        return values


def is_first() -> bool:
    """Return whether this process is the only one, or the first of those that ``torchrun`` started; after `join`."""
    return int(os.environ.get("WORLD_SIZE", "1")) == 1 or int(os.environ["RANK"]) == 0


@contextmanager
def join_torchrun(device: str) -> Iterator[Parallel | None]:
    """Call `join` if ``torchrun`` started this process; otherwise yield None without looking for a device."""
    if "WORLD_SIZE" not in os.environ:
        yield None
        return
    with join(device) as parallel:
        yield parallel


@contextmanager
def join(device: str = "auto") -> Iterator[Parallel]:
    """Join the process group if ``torchrun`` started this process; otherwise run alone.

    ``device``: as in `argap.runtime.device.resolve_device`; of several processes, each gets the GPU of its local rank.

    Raises `ArgapError` for an unknown or missing device, for a numbered GPU with several processes, and for variables
    that torchrun would not have set so, as other launchers leave them behind.
    """
    import torch.distributed as dist

    from argap.runtime.device import resolve_device, use_device

    with _launched():
        world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1:
        yield Parallel(0, 1, use_device(device))
        return
    device = resolve_device(device)
    if ":" in device:
        raise ArgapError(f"`device` {device}: expected auto, cpu or cuda; torchrun gives each process its own GPU")
    on_gpu = device == "cuda"
    with _launched():
        name = f"cuda:{int(os.environ['LOCAL_RANK'])}" if on_gpu else "cpu"
    own = use_device(name)
    store, rank = _meet(world)
    dist.init_process_group(
        "nccl" if on_gpu else "gloo",
        store=store,
        rank=rank,
        world_size=world,
        timeout=BARRIER_TIMEOUT,
        device_id=own if on_gpu else None,
    )
    yield Parallel(dist.get_rank(), world, own)
    # Not reached after an exception: NCCL would wait for processes that are waiting for this one. torchrun ends them
    # once this one exits.
    dist.destroy_process_group()


def _meet(world: int) -> tuple[Any, int]:
    """Wait for the other processes; return the store that they share, and the rank of this one."""
    from torch.distributed import DistError
    from torch.distributed.rendezvous import rendezvous

    with _launched():
        if not 0 <= (rank := int(os.environ["RANK"])) < world:
            raise ValueError(f"RANK is {rank}, of {world} processes")
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        if not 0 < port < 2**16:
            raise ValueError(f"MASTER_PORT is {port}")
        try:
            socket.getaddrinfo(address, port)
        except OSError as error:
            raise ValueError(f"MASTER_ADDR is {address}: {error.strerror or first_line(error)}") from None
        try:
            store, rank, _ = next(rendezvous("env://", timeout=MEETING_TIMEOUT))
        except DistError as error:
            within = f"in {MEETING_TIMEOUT.seconds} s at {address}:{port}"
            raise ArgapError(f"{world} processes did not meet {within} ({first_line(error)})") from None
    store.set_timeout(BARRIER_TIMEOUT)
    return store, rank


@contextmanager
def _launched() -> Iterator[None]:
    try:
        yield
    except KeyError as error:
        raise ArgapError(f"WORLD_SIZE is set without {error.args[0]}; unset it, or use torchrun") from None
    except ValueError as error:
        raise ArgapError(
            f"the variables of torchrun are not from it ({first_line(error)}); unset WORLD_SIZE, or use torchrun"
        ) from None
