"""Run as a single process, or as one of several under ``torchrun``, one per GPU."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from argap.errors import ArgapError, first_line

if TYPE_CHECKING:
    import torch

# Rank 0 tokenizes the corpus while the others wait at a barrier.
BARRIER_TIMEOUT = timedelta(hours=4)


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
    import torch
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
    own = use_device(f"cuda:{os.environ['LOCAL_RANK']}") if on_gpu else torch.device("cpu")
    with _launched():
        dist.init_process_group(
            "nccl" if on_gpu else "gloo", timeout=BARRIER_TIMEOUT, device_id=own if on_gpu else None
        )
    yield Parallel(dist.get_rank(), world, own)
    # Not reached after an exception: NCCL would wait for processes that are waiting for this one. torchrun ends them
    # once this one exits.
    dist.destroy_process_group()


@contextmanager
def _launched() -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise ArgapError(
            f"WORLD_SIZE, RANK or MASTER_PORT is not from torchrun ({first_line(error)}); unset it, or use torchrun"
        ) from None
