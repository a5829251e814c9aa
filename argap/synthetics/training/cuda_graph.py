"""Run steps of several trainings at once: on a GPU, one CUDA graph in which each run has its own stream.

A step of a small model is a few hundred kernels that each occupy a few multiprocessors for some microseconds: launching
them from Python takes longer than running them. With a CUDA graph, a step of all models is one launch, and the branches
of the graph run in parallel. Mixers need no support for this: the graph records the kernels of autograd as they are
launched.
"""

from collections.abc import Sequence

import torch

from argap.runtime.progress import say
from argap.synthetics.training.trainer import Trainer

WARM_UP = 3
"""Steps before the capture, in which libraries and the optimizer allocate their state."""


class TrainerGroup:
    """Runs that take their steps together."""

    def __init__(self, trainers: Sequence[Trainer]) -> None:
        self.trainers = list(trainers)
        self.graph: torch.cuda.CUDAGraph | None = None
        self.steps = 0
        self.use_graph = self.trainers[0].stream is not None

    def keep_only(self, trainers: Sequence[Trainer]) -> None:
        """Continue with only these runs."""
        if len(trainers) != len(self.trainers):
            self.trainers, self.graph = list(trainers), None

    def step(self) -> None:
        """Take one step in every run."""
        self.steps += 1
        if self.graph is None and self.use_graph and self.steps > WARM_UP:
            self._capture()
        if self.graph is not None:
            self.graph.replay()
        else:
            self._step_each()

    def _step_each(self) -> None:
        """Take one step in every run, on its own stream if there are streams."""
        for trainer in self.trainers:
            if trainer.stream is None:
                trainer.step()
                continue
            main = torch.cuda.current_stream()
            trainer.stream.wait_stream(main)
            with torch.cuda.stream(trainer.stream):
                trainer.step()
        for trainer in self.trainers:
            if trainer.stream is not None:
                torch.cuda.current_stream().wait_stream(trainer.stream)

    def _capture(self) -> None:
        """Record a step of all runs. If a step synchronizes with the GPU, continue without a graph."""
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        try:
            with torch.cuda.graph(graph):
                self._step_each()
        except RuntimeError as error:
            self.use_graph = False
            for trainer in self.trainers:
                trainer.optimizer.zero_grad(set_to_none=True)
            torch.cuda.synchronize()
            reason = str(error).splitlines()[0]
            say(f"{self.trainers[0].config.name}: no CUDA graph of its step ({reason}); it runs kernel by kernel")
            return
        self.graph = graph
