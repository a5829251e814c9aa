"""Run windows through a loaded model in batches and collect the log-probs.

Windows of similar length share a batch, padded on the right, unless the model's log-probs then depend on the other
windows (`find_sharing`). On a GPU, copies in both directions are asynchronous and use pinned memory, so that
the host can prepare the next batch and write the previous shard while the GPU computes.

On a CPU the windows of a batch are shared among threads. One window per thread is faster than splitting every operation
over all threads, which synchronises after each one.

Padding on the right does not affect earlier positions of a causal model, but some families look at the whole batch:
LongRoPE (Phi-3, MiniCPM) picks its frequencies by the length of the longest row, and experts of limited capacity take
tokens of one row in place of another's.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import numpy as np
import torch

from argap.checkpoints.causality import check_sees_no_future
from argap.errors import ArgapError
from argap.evaluation.windows import EvaluationSet
from argap.kernels.head.linear_divergence import linear_divergence
from argap.kernels.head.linear_logprob import Logits
from argap.records import Bos, ids_of
from argap.records.columns import OPTIONAL
from argap.runtime.progress import say
from argap.scoring.confirmed import wide_weights
from argap.scoring.fused import fuse
from argap.scoring.heads import OfTargets, find_head, logits_of_model, of_targets

if TYPE_CHECKING:
    from transformers import PreTrainedModel


Sharing = Literal["any", "equal", "none"]
"""Which windows may share a batch: any, those of one length, or none."""
BY_LENGTH = ("dynamic", "longrope", "su")
"""Kinds of rotary positions that depend on the length of a batch, perhaps by less than half precision rounds."""
SHORT = 64
"""Tokens of the probes that do not depend on the lengths of windows."""
DIFFERENT = 1e-4
"""Mean difference of log-probs (nats) in float32 beyond which they depend on the batch."""
DIFFERENT_HALF = 0.02
"""The same for narrower dtypes, in which a result rounds differently for each shape."""


def find_sharing(
    windows: Callable[[int], np.ndarray],
    lengths: np.ndarray,
    logprobs: Callable[[Sequence[np.ndarray]], list[np.ndarray]],
    *,
    by_length: bool,
    exact: bool,
) -> Sharing:
    """Return which windows may share a batch.

    The shortest window is scored by itself and in a batch with the longest. If its log-probs differ, the same is done
    with two windows of one length.

    ``windows``: the tokens of a window by its number; ``lengths``: of every window. ``logprobs``: the log-probs of
    windows in one batch. ``exact``: the model computes in float32. ``by_length``: its configuration says that it
    depends on the length, which decides where it does not.
    """
    scored = np.flatnonzero(lengths > 1)
    if len(scored) < 2:
        return "any"
    order = scored[np.argsort(lengths[scored], kind="stable")]
    short, long = windows(int(order[0])), windows(int(order[-1]))
    same = min(len(short), SHORT)

    def differ(first: np.ndarray, second: np.ndarray) -> bool:
        (alone,), (shared, _) = logprobs([first]), logprobs([first, second])
        with np.errstate(invalid="ignore"):  # −∞ − −∞
            difference = float(np.abs(alone - shared).mean())
        return difference > (DIFFERENT if exact else DIFFERENT_HALF)

    if len(short) < len(long):
        if not differ(short, long) and (exact or not by_length):
            return "any"
        return "none" if differ(short[:same], long[:same]) else "equal"
    return "none" if differ(short[:same], long[:same]) else "any"


def depends_on_length(config: Mapping[str, Any], longest: int) -> bool:
    """Return whether the rotary positions of a configuration depend on the length of a batch of ``longest`` tokens."""
    nested = [value for value in config.values() if isinstance(value, Mapping)]
    if config.get("rope_type", config.get("type")) in BY_LENGTH:
        return longest > config.get("original_max_position_embeddings", 0)
    # Early configurations have the length of training beside the settings of the positions.
    outer = {key: config[key] for key in ("original_max_position_embeddings",) if config.get(key) is not None}
    return any(depends_on_length({**outer, **inner}, longest) for inner in nested)


# Starting point for batch size "auto", in tokens: small enough for a CPU's cache, large enough to saturate a GPU.
AUTO_BATCH_TOKENS = {"cpu": 2**12, "cuda": 2**17}
BATCH_WORK = 2**37
"""Weights times tokens of such a batch on a CPU: some seconds' work, so that progress moves."""
PROBE_TOKENS = 16


class Batch(NamedTuple):
    """The results of one batch of windows. The host tensors are valid once the device has finished copying."""

    windows: list[int]
    logprob: torch.Tensor
    """float32 ``[B, T]``: log-prob of the next token; the last entry of each window is meaningless."""
    top1: torch.Tensor
    """int32 ``[B, T]``: the most likely next token."""
    further: dict[str, torch.Tensor]
    """By column of `argap.records.columns.OPTIONAL` that was requested, each ``[B, T]``."""


@dataclass(frozen=True)
class Shard:
    """The results of consecutive windows; on a GPU the copies may still be in flight."""

    data: EvaluationSet
    windows: range
    batches: list[Batch]
    names: tuple[str, ...]
    """The requested columns of `OPTIONAL`."""
    arrived: torch.cuda.Event | None
    uncounted: int
    """Tokens not yet reported as progress. On a GPU batches are only queued, so the caller reports them when it writes
    the shard."""

    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """Wait for the copies, then return log-prob and top-1 id of every token.

        float32, NaN at position 0 of a window; int32, -1 at position 0.
        """
        logprob = self._column([batch.logprob for batch in self.batches], np.nan, np.float32)
        return logprob, self._column([batch.top1 for batch in self.batches], -1, np.int32)

    def further(self) -> dict[str, np.ndarray]:
        """Wait for the copies, then return the requested columns of `OPTIONAL`, -1 or NaN at position 0."""
        columns = {}
        for name in self.names:
            dtype = OPTIONAL[name].to_pandas_dtype()
            nothing = np.nan if np.issubdtype(dtype, np.floating) else -1
            columns[name] = self._column([batch.further[name] for batch in self.batches], nothing, dtype)
        return columns

    def _column(self, values: Sequence[torch.Tensor], nothing: float, dtype: type[np.generic]) -> np.ndarray:
        """Return ``values`` of the batches for every token, ``nothing`` at position 0."""
        if self.arrived is not None:
            self.arrived.synchronize()
        offsets = self.data.offsets
        start = offsets[self.windows.start]
        column = np.full(int(offsets[self.windows.stop] - start), nothing, dtype=dtype)
        for batch, of_batch in zip(self.batches, values, strict=True):
            for row, w in enumerate(batch.windows):
                first, last = offsets[w] - start + 1, offsets[w + 1] - start
                column[first:last] = of_batch[row, : last - first].numpy()
        return column


class Batches:
    """A loaded model that scores windows in batches."""

    def __init__(
        self,
        model: "PreTrainedModel",
        data: EvaluationSet,
        device: str,
        batch: int | Literal["auto"],
        name: str,
        *,
        live: bool = False,
        bos: Bos = None,
        rank: bool = False,
        entropy: bool = False,
    ) -> None:
        """Fuse the layers of ``model`` and find its output head.

        ``live``: the model is used elsewhere too, so it is neither patched nor left with inference tensors. ``bos``:
        what to put before each window. ``rank``, ``entropy``: also compute these of each token.
        """
        self.model = model
        self.rank = rank
        self.entropy = entropy
        self.reference: Batches | None = None
        """The model to take KL from (`follow`)."""
        self.bos = bos
        self.data = data
        self.device = torch.device(device)
        self.backs_off = batch == "auto"
        # A model in memory may have hooks, which expect one call at a time.
        self.threads = torch.get_num_threads() if self.device.type == "cpu" and not live else 1
        tokens = AUTO_BATCH_TOKENS.get(self.device.type, 2**15)
        if self.device.type == "cpu":
            tokens = min(tokens, BATCH_WORK // max(1, model.num_parameters()))
        automatic = max(self.threads, tokens // data.seq_len)
        self.batch = automatic if batch == "auto" else batch
        self.head = None
        self.sharing: Sharing = "none"
        """Which windows may share a batch."""
        self._without_gradients = torch.no_grad if live else torch.inference_mode
        if len(set(getattr(model, "hf_device_map", {}).values())) > 1:
            say(f"{name}: spread over several devices; scoring one window at a time")
            return
        if live:  # a checkpoint was checked when it was loaded
            check_sees_no_future(name, model)
        with self._without_gradients():
            text = torch.from_numpy(data.tokens[None, : data.longest].astype(np.int64)).to(self.device)
            if not live:
                fuse(model, text, name)
            self.head = find_head(model, text[:, :PROBE_TOKENS])
        if self.head is None:
            say(f"{name}: its logits are not a linear map of its last hidden states; scoring one window at a time")
        elif self.batch > 1:
            with self._without_gradients():
                self.sharing = self._find_sharing()
            if self.sharing != "any":
                how = "one window at a time" if self.sharing == "none" else "windows of equal length together"
                say(f"{name}: its log-probs of a window depend on the others in a batch; scoring {how}")

    def follow(self, reference: "Batches") -> None:
        """Also compute KL(reference ‖ model) of each token from now on; ``reference`` has the same ``data``."""
        self.reference = reference
        self.threads, self.batch = min(self.threads, reference.threads), min(self.batch, reference.batch)
        order: tuple[Sharing, ...] = get_args(Sharing)
        self.sharing = order[max(order.index(self.sharing), order.index(reference.sharing))]
        if reference._without_gradients is torch.no_grad:
            self._without_gradients = torch.no_grad

    @property
    def names(self) -> tuple[str, ...]:
        """Return the requested columns of `argap.records.columns.OPTIONAL`."""
        requested = {"rank": self.rank, "kl": self.reference is not None, "entropy": self.entropy}
        return tuple(name for name in OPTIONAL if requested.get(name))

    def _find_sharing(self) -> Sharing:
        offsets, model = self.data.offsets, self.model

        def logprobs(windows: Sequence[np.ndarray]) -> list[np.ndarray]:
            found = self._logprobs_of(windows).logprob.float().cpu().numpy()
            return [row[: len(tokens) - 1] for row, tokens in zip(found, windows, strict=True)]

        by_length, exact = depends_on_length(model.config.to_dict(), self.data.longest), model.dtype == torch.float32
        find = partial(
            find_sharing,
            lambda w: self.data.tokens[offsets[w] : offsets[w + 1]],
            np.diff(offsets),
            logprobs,
            by_length=by_length,
        )
        found = find(exact=exact)
        if found == "any" or exact or by_length:
            return found
        # A deep trunk of random weights amplifies what each shape rounds; float32 tells that from dependence.
        try:
            with wide_weights(model):
                return find(exact=True)
        except torch.OutOfMemoryError:
            return found

    def score(self, windows: range, advance: Callable[[int], None] = lambda tokens: None) -> Shard:
        """Score ``windows``. With batch size "auto", halve the batch until it fits in memory.

        ``advance`` is called with the number of tokens finished since the last call.
        """
        while True:
            try:
                with self._without_gradients():
                    return self._score(windows, advance)
            except torch.OutOfMemoryError:
                if not self.backs_off or self.batch == 1:
                    raise ArgapError(
                        f"out of memory at {self.batch} windows of {self.data.seq_len} tokens; "
                        "reduce `batch_size` or `seq_len`"
                    ) from None
            torch.cuda.empty_cache()
            self.batch //= 2
            say(f"out of memory: continuing with {self.batch} windows per batch")

    def _score(self, windows: range, advance: Callable[[int], None]) -> Shard:
        offsets = self.data.offsets
        lengths = np.diff(offsets)
        by_length = sorted((w for w in windows if lengths[w] > 1), key=lambda w: -lengths[w])
        batches: list[Batch] = []
        counted = 0
        with self._workers(min(self.threads, self.batch, len(by_length))) as run:
            for chosen in self._chosen(by_length, lengths):
                batches += run(chosen)
                if self.device.type != "cuda":
                    done = int(lengths[chosen].sum())
                    advance(done)
                    counted += done
        arrived = None
        if self.device.type == "cuda":
            arrived = torch.cuda.Event()
            arrived.record(torch.cuda.current_stream(self.device))
        return Shard(self.data, windows, batches, self.names, arrived, self.data.count_in(windows) - counted)

    def _chosen(self, by_length: list[int], lengths: np.ndarray) -> Iterator[list[int]]:
        """Yield `batch` windows at a time, of one length if `sharing` asks for that."""
        alike = [by_length]
        if self.sharing == "equal":
            alike = [list(windows) for _, windows in groupby(by_length, lambda w: lengths[w])]
        for windows in alike:
            for first in range(0, len(windows), self.batch):
                yield windows[first : first + self.batch]

    @contextmanager
    def _workers(self, count: int) -> Iterator[Callable[[list[int]], list[Batch]]]:
        """Yield a function that scores the windows of a batch in ``count`` threads, which share torch's threads."""

        def parts(chosen: list[int]) -> Iterator[list[int]]:
            split = len(chosen) if self.sharing == "none" else count
            return filter(None, (chosen[k::split] for k in range(split)))

        if count <= 1:
            yield lambda chosen: [self._score_together(part) for part in parts(chosen)]
            return
        torch.set_num_threads(max(1, self.threads // count))  # for threads started from here on
        try:
            with ThreadPoolExecutor(count, thread_name_prefix="scorer") as pool:
                yield lambda chosen: list(pool.map(self._score_together, parts(chosen)))
        finally:
            torch.set_num_threads(self.threads)

    def _score_together(self, chosen: list[int]) -> Batch:
        """Score one batch."""
        offsets = self.data.offsets
        with self._without_gradients():  # a setting of each thread
            found = self._logprobs_of([self.data.tokens[offsets[w] : offsets[w + 1]] for w in chosen])
            columns = {name: getattr(found, name) for name in self.names}
            further = {k: self._to_host(x if x.is_floating_point() else x.int()) for k, x in columns.items()}
            return Batch(chosen, self._to_host(found.logprob), self._to_host(found.top1.int()), further)

    def _logprobs_of(self, windows: Sequence[np.ndarray]) -> OfTargets:
        """Return what `logprobs` does for windows behind their BOS, padded to the longest; BOS not included.

        With a reference also the KL of each token, from the reference's logits of the same windows behind its own BOS.
        """
        ids, before = self._padded(windows)
        logits = self.logits(ids)
        found = self._of_targets(logits, ids).each(lambda x: x[:, before:])
        if self.reference is None:
            return found
        their_ids, their_bos = self.reference._padded(windows)
        theirs = _behind(self.reference.logits(their_ids), their_ids, their_bos)
        own = _behind(logits, ids, before)
        device = (theirs if own.weight is None else own).hidden.device  # where models are spread over several
        theirs, own = (each._replace(hidden=each.hidden.to(device)) for each in (theirs, own))
        return found._replace(kl=linear_divergence(theirs, own).view(len(ids), -1).to(self.device))

    def _padded(self, windows: Sequence[np.ndarray]) -> tuple[torch.Tensor, int]:
        """Return the ids of windows behind their BOS, padded to the longest ``[B, T]``, and the tokens of the BOS."""
        before = len(ids_of(self.bos))
        ids = np.zeros((len(windows), before + max(map(len, windows))), dtype=np.int64)
        ids[:, :before] = ids_of(self.bos)
        for row, tokens in zip(ids, windows, strict=True):
            row[before : before + len(tokens)] = tokens
        return self._to_device(torch.from_numpy(ids)), before

    def gain_of_bos(self, bos: int, tokens: int) -> float:
        """Return by how much ``bos`` before each window lowers the mean NLL of the first ``tokens`` tokens (nats).

        They are cut to whole windows, at least one. 0 if none of them is scored.
        """
        chosen = range(max(1, int(np.searchsorted(self.data.offsets, tokens, side="right")) - 1))
        given, means = self.bos, []
        try:
            for self.bos in (None, bos):
                logprob = self.score(chosen).arrays()[0].astype(np.float64)
                scored = max(1, self.data.count_in(chosen) - len(chosen))
                means.append(-float(logprob[~np.isnan(logprob)].sum()) / scored)
        finally:
            self.bos = given
        return means[0] - means[1]

    def logprobs(self, ids: torch.Tensor) -> OfTargets:
        """Return log-prob, top-1 and what else was asked for of the token that follows each of ``ids [B, T]``.

        ``[B, T]``; the last position of a window "predicts" its first token. Ignoring that entry costs less than
        slicing it off, which would copy the hidden states.
        """
        return self._of_targets(self.logits(ids), ids)

    def logits(self, ids: torch.Tensor) -> Logits:
        """Return the logits after each of ``ids [B, T]``, B · T rows: by the fused head, or the model's own."""
        if self.head is None:
            rows = [logits_of_model(self.model, row) for row in ids]
            return Logits(rows[0] if len(rows) == 1 else torch.cat(rows))
        hidden = self.model.base_model(input_ids=ids, use_cache=False).last_hidden_state
        return self.head.logits(hidden.flatten(0, 1))

    def _of_targets(self, logits: Logits, ids: torch.Tensor) -> OfTargets:
        targets = ids.roll(-1, dims=1).flatten().to(logits.hidden.device)
        of = of_targets if self.head is None else self.head.logprobs
        return of(logits.hidden, targets, rank=self.rank, entropy=self.entropy).each(lambda x: x.view(ids.shape))

    def _to_device(self, ids: torch.Tensor) -> torch.Tensor:
        return (
            ids.pin_memory().to(self.device, non_blocking=True) if self.device.type == "cuda" else ids.to(self.device)
        )

    def _to_host(self, x: torch.Tensor) -> torch.Tensor:
        if self.device.type != "cuda":
            return x.cpu()
        return torch.empty(x.shape, dtype=x.dtype, pin_memory=True).copy_(x, non_blocking=True)


def _behind(logits: Logits, ids: torch.Tensor, before: int) -> Logits:
    """Return the logits after ``ids [B, T]`` without the rows of the first ``before`` of each window."""
    if not before:
        return logits
    return logits._replace(hidden=logits.hidden.view(*ids.shape, -1)[:, before:].flatten(0, 1))
