"""The processes of one run: alone, or one a GPU under ``torchrun``."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from argap.errors import ArgapError

# Rank 0 tokenizes the corpus while the others wait at a barrier.
PATIENCE = timedelta(hours=4)


@dataclass(frozen=True)
class Parallel:
    """This process among all processes of the run."""

    rank: int
    world: int
    device: torch.device

    @property
    def is_main(self) -> bool:
        """The one process that writes files and progress."""
        return self.rank == 0

    def wait(self) -> None:
        """Until all processes are here."""
        if self.world > 1:
            dist.barrier()

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """Sum of ``values`` over the processes, in place."""
        if self.world > 1:
            dist.all_reduce(values)
        return values


@contextmanager
def join(device: str = "auto") -> Iterator[Parallel]:
    """Join the other processes that ``torchrun`` started, if it did.

    ``device``: ``cuda``, ``cpu`` or auto; each process takes the GPU of its local rank.
    """
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device not in ("cuda", "cpu"):
        raise ArgapError(f"--device {device}: expected cuda, cpu or auto")
    if device == "cuda" and not torch.cuda.is_available():
        raise ArgapError(f"--device {device}: no CUDA device here; use --device cpu")
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1:
        yield Parallel(0, 1, torch.device(device))
        return
    if device == "cuda":
        own = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(own)
        dist.init_process_group("nccl", timeout=PATIENCE, device_id=own)
    else:
        own = torch.device("cpu")
        dist.init_process_group("gloo", timeout=PATIENCE)
    yield Parallel(dist.get_rank(), world, own)
    # Not after an exception: with NCCL it would wait for processes that wait for this one. torchrun ends
    # those once this one has exited.
    dist.destroy_process_group()
