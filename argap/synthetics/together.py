"""Steps of several models at once: on a GPU one CUDA graph, in which each model has a stream of its own.

A step of a small model is a few hundred kernels that each keep a few of the GPU's multiprocessors busy for some
microseconds: launching them from Python takes longer than running them. Captured, a step of all models is one
launch, and the branches of the graph run side by side. Nothing is asked of a mixer for that: what autograd and
kernels do is recorded as it is.
"""

from collections.abc import Sequence

import torch

from argap.progress import say
from argap.synthetics.learner import Learner

WARM_UP = 3
"""Steps before the capture: libraries and the optimizer make their state in them."""


class Together:
    """Models that take their steps at the same time."""

    def __init__(self, learners: Sequence[Learner]) -> None:
        self.learners = list(learners)
        self.graph: torch.cuda.CUDAGraph | None = None
        self.done = 0
        self.captures = self.learners[0].stream is not None

    def keep(self, learners: Sequence[Learner]) -> None:
        """Go on with these alone."""
        if len(learners) != len(self.learners):
            self.learners, self.graph = list(learners), None

    def step(self) -> None:
        """One step of every model."""
        self.done += 1
        if self.graph is None and self.captures and self.done > WARM_UP:
            self._capture()
        if self.graph is not None:
            self.graph.replay()
        else:
            self._each()

    def _each(self) -> None:
        """A step of each, on its own stream where there are streams."""
        for learner in self.learners:
            if learner.stream is None:
                learner.step()
                continue
            main = torch.cuda.current_stream()
            learner.stream.wait_stream(main)
            with torch.cuda.stream(learner.stream):
                learner.step()
        for learner in self.learners:
            if learner.stream is not None:
                torch.cuda.current_stream().wait_stream(learner.stream)

    def _capture(self) -> None:
        """Record a step of all models; where a model waits for the GPU in its step, go on without."""
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        try:
            with torch.cuda.graph(graph):
                self._each()
        except RuntimeError as error:
            self.captures = False
            for learner in self.learners:
                learner.optimizer.zero_grad(set_to_none=True)
            torch.cuda.synchronize()
            reason = str(error).splitlines()[0]
            say(f"{self.learners[0].config.name}: no CUDA graph of its step ({reason}); it runs kernel by kernel")
            return
        self.graph = graph
