"""Windows through a loaded model, batch by batch, and their log-probs back.

Windows of one length class go together, shorter ones padded on the right (a causal model's earlier
positions do not see it). On a GPU the copies either way are asynchronous, from and to pinned memory: the
host prepares the next batch and writes the last shard while the GPU works.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import torch

from argap.errors import ArgapError
from argap.evaluation import EvaluationSet
from argap.fused import fuse
from argap.heads import find_head, logprobs_of_model
from argap.kernels.linear_logprob import LogProb
from argap.progress import say

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# Where --batch-size auto starts: on a CPU what a cache holds, on a GPU what fills it.
AUTO_BATCH_TOKENS = {"cpu": 2**12, "cuda": 2**17}
PROBE_TOKENS = 16


class Batch(NamedTuple):
    """Results of some windows, in host memory once the device has got there."""

    windows: list[int]
    logprob: torch.Tensor
    """float32 ``[B, T]``: of the token after each; the last of a window means nothing."""
    top1: torch.Tensor
    """int32 ``[B, T]``."""


@dataclass(frozen=True)
class Shard:
    """The results of consecutive windows, on their way from the device."""

    data: EvaluationSet
    windows: range
    batches: list[Batch]
    arrived: torch.cuda.Event | None
    uncounted: int
    """Tokens whose progress is counted once they are written: on a GPU, where batches only begin here."""

    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """Log-prob float32 (NaN at position 0) and top-1 int32 (-1 there) of every token, once they are here."""
        if self.arrived is not None:
            self.arrived.synchronize()
        offsets = self.data.offsets
        start = offsets[self.windows.start]
        size = int(offsets[self.windows.stop] - start)
        logprob = np.full(size, np.nan, dtype=np.float32)
        top1 = np.full(size, -1, dtype=np.int32)
        for batch in self.batches:
            found, best = batch.logprob.numpy(), batch.top1.numpy()
            for row, w in enumerate(batch.windows):
                first, last = offsets[w] - start + 1, offsets[w + 1] - start
                logprob[first:last] = found[row, : last - first]
                top1[first:last] = best[row, : last - first]
        return logprob, top1


class Batches:
    """A loaded model and how its log-probs are taken."""

    def __init__(
        self, model: "PreTrainedModel", data: EvaluationSet, device: str, batch: int | Literal["auto"], name: str
    ) -> None:
        self.model = model
        self.data = data
        self.device = torch.device(device)
        self.backs_off = batch == "auto"
        self.batch = (
            max(1, AUTO_BATCH_TOKENS.get(self.device.type, 2**15) // data.seq_len) if batch == "auto" else batch
        )
        with torch.inference_mode():
            probe = torch.from_numpy(data.tokens[None, :PROBE_TOKENS].astype(np.int64)).to(self.device)
            fuse(model, probe, name)
            self.head = find_head(model, probe)
        if self.head is None:
            say(f"{name}: its logits are no linear map of its last hidden states; taking them window by window")

    def score(self, windows: range, advance: Callable[[int], None] = lambda tokens: None) -> Shard:
        """Start the windows; with batch size auto, batches are halved until they fit into memory.

        ``advance`` takes the number of tokens that are done.
        """
        while True:
            try:
                return self._score(windows, advance)
            except torch.OutOfMemoryError:
                if not self.backs_off or self.batch == 1:
                    raise ArgapError(
                        f"out of memory at {self.batch} windows of {self.data.seq_len} tokens; "
                        "choose a smaller --batch-size or --seq-len"
                    ) from None
            torch.cuda.empty_cache()
            self.batch //= 2
            say(f"out of memory: going on with {self.batch} windows a batch")

    @torch.inference_mode()
    def _score(self, windows: range, advance: Callable[[int], None]) -> Shard:
        offsets = self.data.offsets
        lengths = np.diff(offsets)
        by_length = sorted((w for w in windows if lengths[w] > 1), key=lambda w: -lengths[w])
        batches: list[Batch] = []
        counted = 0
        for first in range(0, len(by_length), self.batch):
            chosen = by_length[first : first + self.batch]
            ids = np.zeros((len(chosen), lengths[chosen[0]]), dtype=np.int64)
            for row, w in enumerate(chosen):
                ids[row, : lengths[w]] = self.data.tokens[offsets[w] : offsets[w + 1]]
            found = self.logprobs(self._to_device(torch.from_numpy(ids)))
            assert found.top1 is not None
            batches.append(Batch(chosen, self._to_host(found.logprob), self._to_host(found.top1.int())))
            if self.device.type != "cuda":
                done = int(lengths[chosen].sum())
                advance(done)
                counted += done
        arrived = None
        if self.device.type == "cuda":
            arrived = torch.cuda.Event()
            arrived.record(torch.cuda.current_stream(self.device))
        return Shard(
            self.data, windows, batches, arrived, int(offsets[windows.stop] - offsets[windows.start]) - counted
        )

    def logprobs(self, ids: torch.Tensor) -> LogProb:
        """Log-prob and top-1 of the token after each of ids ``[B, T]``, or ``[B, T − 1]`` without the last."""
        if self.head is None:
            rows = [logprobs_of_model(self.model, row) for row in ids]
            return LogProb(*(torch.stack(column) for column in list(zip(*rows, strict=True))[:2]))
        hidden = self.model.base_model(input_ids=ids, use_cache=False).last_hidden_state
        # Each window's last position predicts its first token, for nothing: cheaper than a copy without it.
        found = self.head.logprobs(hidden.flatten(0, 1), ids.roll(-1, dims=1).flatten())
        return LogProb(*(x.view(ids.shape) for x in found if x is not None))

    def _to_device(self, ids: torch.Tensor) -> torch.Tensor:
        return (
            ids.pin_memory().to(self.device, non_blocking=True) if self.device.type == "cuda" else ids.to(self.device)
        )

    def _to_host(self, x: torch.Tensor) -> torch.Tensor:
        if self.device.type != "cuda":
            return x.cpu()
        return torch.empty(x.shape, dtype=x.dtype, pin_memory=True).copy_(x, non_blocking=True)
