"""Measure a model in training against a finished run, again and again: its NLL and gap on any slices of the tokens.

`RecallGap.measure` takes a model in memory, `RecallGap.measure_logprobs` a function that returns log-probs, from any
model that several processes hold together. Either way the processes share the windows and add up their sums.
"""

from collections.abc import Callable, Mapping
from math import ceil, isfinite
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from argap.checkpoints.live import live_model, undisturbed
from argap.errors import ArgapError
from argap.evaluation.windows import EvaluationSet
from argap.metric.threshold import PAPER_THRESHOLD, Threshold
from argap.records import AR_HITS, OTHER, EvaluationSpec, Unit, ids_of
from argap.results.compare import labels_of, threshold_of
from argap.scoring.bos import Model, bos_id
from argap.text.tokenizer import tokenizer_in_memory
from argap.tokens.aligned import SegmentedText, open_text_of_runs
from argap.tokens.labels import Labels, read_labels
from argap.tokens.runs import (
    Run,
    check_same_set,
    open_run,
    read_logprobs,
    read_token_ids,
    read_window_offsets,
    tokenizer_of,
)
from argap.tokens.segment_runs import check_tokens, labels_of_text

if TYPE_CHECKING:
    import torch
    from torch.distributed import ProcessGroup
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    NextTokenLogProbs = Callable[[torch.Tensor], torch.Tensor]
    """A function from ids ``[B, T]`` to log p of each id that follows, ``[B, T − 1]``; or ``[B, T]``, whose last
    entries are ignored."""


class SliceFigures(NamedTuple):
    """A model against the reference on a slice, in nats."""

    n: int
    """Tokens (or bytes)."""
    nll: float
    delta: float
    """ΔNLL on the slice, model minus reference: negative if the model is ahead there."""
    contribution: float
    """The slice's part of the whole ΔNLL: its share of the tokens times ΔNLL on it."""


class GapFigures(NamedTuple):
    """A model against the reference, in nats per token (per byte if their tokenizers differ)."""

    nll: float
    nll_ar_hits: float | None
    """None without hits."""
    nll_other: float | None
    delta: float
    """ΔNLL, model minus reference, over all scored tokens: negative if the model is ahead."""
    contribution_ar_hits: float
    """The AR hits' part of ``delta``: their share of the tokens times ΔNLL on them."""
    share_ar_hits: float | None
    """`contribution_ar_hits` divided by `delta`; None if `delta` is 0 or not finite. It has no interval, and means
    nothing if ``delta`` is near 0."""
    slices: Mapping[str, SliceFigures]
    """The slices asked for, by name."""

    def metrics(self) -> dict[str, float]:
        """Return every figure that there is by name, for a logger: ``delta``, ``nll_NAME``, ``contribution_NAME`` …"""
        found = {name: value for name, value in self._asdict().items() if name != "slices" and value is not None}
        for name, each in self.slices.items():
            found |= {f"{what}_{name}": getattr(each, what) for what in ("nll", "delta", "contribution")}
        return found


class RecallGap:
    """Measure models on the text of a finished run, against that run.

    Parameters
    ----------
    reference
        Folder of a finished run of `argap score`, with labels next to it. Its windows, log-probs and AR hits stay
        fixed.
    tokenizer
        The model's (transformers, fast); default: the reference's. A different one is compared by segments, which needs
        windows that end at token ends of both.
    threshold
        Maximum exposures of an AR hit's bigram.
    slices
        Further slices of the tokens: an SQL condition for each name, or a YAML file of them (`argap.score`). Conditions
        may name the reference (``nll``, ``top1``) but not the model, whose log-probs change.
    windows
        Only the first windows of the run; None: all.
    batch_size
        Windows per batch; ``"auto"``: halved when out of memory.
    bos
        As in `argap.score`. Default: the reference's, or, with a different tokenizer, what that puts before a text.
    max_length
        Tokens of the longest window that the model takes, if that is more than its configuration says.

    Raises
    ------
    ArgapError
        For a folder that is not a finished run or has no labels, for texts that cannot be compared, and for slices that
        do not parse, select no token, or are asked for with another tokenizer.

    Examples
    --------
    >>> from argap.integrations import RecallGap
    >>> gap = RecallGap("runs/score/attention", windows=200)                     # doctest: +SKIP
    >>> gap.measure(model).nll_ar_hits                                           # doctest: +SKIP
    """

    def __init__(
        self,
        reference: str | PathLike[str],
        *,
        tokenizer: "PreTrainedTokenizerBase | None" = None,
        threshold: Threshold = PAPER_THRESHOLD,
        slices: str | PathLike[str] | Mapping[str, str] | None = None,
        windows: int | None = None,
        batch_size: int | Literal["auto"] = "auto",
        bos: str | None = None,
        max_length: int | None = None,
    ) -> None:
        for what, number in (("windows", windows), ("max_length", max_length)):
            if number is not None and number < 1:
                raise ArgapError(f"`{what}` {number}: expected a positive whole number")
        run = open_run(Path(reference))
        own = None if tokenizer is None else tokenizer_in_memory(tokenizer)
        self._max_length = max_length
        self._batch_size: int | Literal["auto"] = batch_size
        self._text: SegmentedText | None = None
        if own is not None and own.fingerprint != run.record.evaluation.tokenizer_fingerprint:
            check_tokens([run])
            if slices is not None:
                raise ArgapError(f"`slices`: conditions are on tokens of {run.model}; expected its tokenizer")
            spec = EvaluationSpec().over(run.record.source)
            self._bos = bos_id(Model(own.name, own), bos)
            self._text = open_text_of_runs(spec, [tokenizer_of(run), own], {0: run})
            self._data, labels = self._text.sets[1], labels_of_text(run, self._text)
        else:
            folder = labels_of(run)
            labels = read_labels(folder)
            check_same_set(run, labels.record.evaluation, f"{folder} holds")
            self._data = _data_of(run, labels)
            self._bos = run.record.identity.bos
            if bos is not None:
                own = own or tokenizer_of(run)
                self._bos = bos_id(Model(own.name, own), bos)
        self._windows = min(self._data.windows, windows or self._data.windows)
        self._rows, shown = np.flatnonzero(labels.weight > 0), labels.shown
        inside = labels.window[shown] < self._windows
        self._rows, shown = self._rows[inside], shown[inside]
        if not len(shown):
            raise ArgapError(
                f"{run.folder}: nothing is scored in its first {self._windows} windows; use more `windows`"
            )
        self._window_of_row = labels.window[shown]
        self._n = labels.weight[self._rows].astype(np.int64)
        hits = labels.ar_hit(threshold_of(threshold, labels.record.index))[shown]
        self._members = {AR_HITS: hits, OTHER: ~hits}
        """The rows of each slice, bool ``[R]``."""
        if slices is not None:
            self._members |= _members_of(run, labels_of(run), slices, self._data, self._rows)
        logprob = read_logprobs(run)[0]
        self._reference = self._aligned(logprob, 0)
        self.unit: Unit = labels.record.evaluation.unit
        """The unit of the means."""

    def measure(self, model: "PreTrainedModel", *, group: "ProcessGroup | None" = None) -> GapFigures:
        """Measure a model in its current state.

        It stays on its device and in its dtype; its weights, gradients and modes (training or evaluation) and the state
        of the random generators are left unchanged. ``group``: processes that each have the whole model (DDP); all call
        this, share the windows and get the same figures. None: this process alone.

        Raises `ArgapError` for a model that cannot take the windows or lacks one of the tokens, and for a log-prob of
        NaN or +∞. If a log-prob is −∞, estimates are infinite or NaN.
        """
        from argap.checkpoints.family_code import family_code
        from argap.scoring.batches import Batches
        from argap.scoring.scorer import check_length, check_vocabulary

        live = live_model(model)
        data = self._data
        check_length(live.name, self._max_length or live.longest, data, bos=self._bos)
        check_vocabulary(model, data, live.name)
        rank, world = _place_in(group)
        windows = range(self._windows * rank // world, self._windows * (rank + 1) // world)
        logprob = np.full(len(data.tokens), np.nan, dtype=np.float32)
        too_long = None if self._max_length is None else "reduce `max_length`, or choose another `reference`"
        if windows:
            with undisturbed(model), family_code(live.name, model, data.longest, too_long):
                batches = Batches(model, data, str(live.device), self._batch_size, live.name, live=True, bos=self._bos)
                logprob[data.rows(windows)] = batches.score(windows).arrays()[0]
        return self._figures(logprob, windows, live.name, live.device, group)

    def measure_logprobs(
        self,
        logprobs: "NextTokenLogProbs",
        *,
        device: "str | torch.device" = "cpu",
        group: "ProcessGroup | None" = None,
        batch_size: int = 8,
        length: int | None = None,
        name: str = "the model",
    ) -> GapFigures:
        """Measure a model that is known by a function, such as one that FSDP2 or tensor parallelism spreads.

        All processes of the model call this at the same time. Each batch has the same shape, and every process calls
        the function equally often, so its collectives match. Put the model into evaluation mode before.

        Parameters
        ----------
        logprobs
            From ids ``[batch_size, length]``, int64 on ``device``, to log p (natural log) of each id that follows:
            ``[B, T − 1]``, or ``[B, T]`` with the last entries ignored. `argap.integrations.next_token` has it for
            logits and for hidden states with a head. No gradients are kept.
        group
            The processes that share the windows: those of data parallelism and FSDP. Processes that hold parts of one
            copy of the model (tensor, context parallelism) must get the same windows, so they are in different groups:
            ``mesh["dp"].get_group()``. None: this process reads all windows.
        batch_size, length
            Shape of each batch; by default as long as the longest window and the tokens before it. More is padding
            behind the window, for models that need a multiple of some number.
        name
            For messages.

        Raises
        ------
        ArgapError
            For a log-prob of NaN or +∞, in every process of ``group``; and for a function that returns another shape.
        """
        import torch

        from argap.integrations.next_token import whole

        data, before = self._data, ids_of(self._bos)
        shortest = len(before) + int(np.diff(data.offsets[: self._windows + 1]).max())
        length = shortest if length is None else length
        if length < shortest:
            raise ArgapError(f"`length` {length}: the longest window has {shortest} tokens")
        rank, world = _place_in(group)
        own = range(rank, self._windows, world)
        columns = []
        with torch.no_grad():
            for call in range(ceil(ceil(self._windows / world) / batch_size)):
                chosen = own[call * batch_size : (call + 1) * batch_size]
                ids = np.zeros((batch_size, length), dtype=np.int64)
                ids[:, : len(before)] = before
                for row, w in zip(ids, chosen, strict=False):
                    tokens = data.tokens[data.offsets[w] : data.offsets[w + 1]]
                    row[len(before) : len(before) + len(tokens)] = tokens
                found = whole(logprobs(torch.from_numpy(ids).to(device)))
                if found.shape not in ((batch_size, length), (batch_size, length - 1)):
                    raise ArgapError(
                        f"{name}: its function gave {tuple(found.shape)} for ids of {(batch_size, length)}; expected "
                        f"{(batch_size, length - 1)}, the log-prob of each token but the first"
                    )
                columns.append(found[: len(chosen), len(before) : length - 1].float())
        logprob = np.full(len(data.tokens), np.nan, dtype=np.float32)
        for w, row in zip(own, torch.cat(columns).cpu().numpy(), strict=True):
            first, end = data.offsets[w] + 1, data.offsets[w + 1]
            logprob[first:end] = row[: end - first]
        return self._figures(logprob, own, name, device, group)

    def _aligned(self, logprob: np.ndarray, tokenizer: int) -> np.ndarray:
        """Select the log-probs of the rows compared, float32, from those of all tokens."""
        aligned = logprob if self._text is None else self._text.align(np.nan_to_num(logprob, neginf=-np.inf), tokenizer)
        return aligned[self._rows]

    def _figures(
        self,
        logprob: np.ndarray,
        windows: range,
        name: str,
        device: "str | torch.device",
        group: "ProcessGroup | None",
    ) -> GapFigures:
        """Return the figures from the log-probs ``[N]`` of this process's ``windows`` and those of the others."""
        from argap.scoring.scorer import check_logprobs

        error: ArgapError | None = None
        try:
            for w in windows:
                check_logprobs(logprob[self._data.rows(range(w, w + 1))], self._data, range(w, w + 1), name)
        except ArgapError as raised:  # the other processes wait for this one's sums
            error = raised
        own = np.isin(self._window_of_row, np.arange(windows.start, windows.stop, windows.step))
        values = np.where(own, self._aligned(logprob, 1), 0.0).astype(np.float64)
        sums = [float(values[member].sum()) for member in self._members.values()]
        *summed, total, wrong = _summed([*sums, float(values.sum()), float(error is not None)], device, group)
        if error is not None or wrong:
            raise error or ArgapError(f"{name}: a log-prob of NaN or +∞ in another process, which says where")
        whole, reference = int(self._n.sum()), self._reference.astype(np.float64)
        found: dict[str, SliceFigures | None] = {}
        for (slice_name, member), of_model in zip(self._members.items(), summed, strict=True):
            n, theirs = int(self._n[member].sum()), float(reference[member].sum())
            lost = theirs - of_model
            found[slice_name] = SliceFigures(n, -of_model / n, lost / n, lost / whole) if n else None
        hits, other = found.pop(AR_HITS), found.pop(OTHER)
        delta = (float(reference.sum()) - total) / whole
        contribution = hits.contribution if hits else 0.0
        return GapFigures(
            nll=-total / whole,
            nll_ar_hits=hits.nll if hits else None,
            nll_other=other.nll if other else None,
            delta=delta,
            contribution_ar_hits=contribution,
            share_ar_hits=contribution / delta if delta and isfinite(delta) else None,
            slices={slice_name: each for slice_name, each in found.items() if each is not None},
        )


def _members_of(
    run: Run, labels: Path, slices: str | PathLike[str] | Mapping[str, str], data: EvaluationSet, rows: np.ndarray
) -> dict[str, np.ndarray]:
    """Return which of ``rows [R]`` are in each slice, bool ``[R]``.

    Raises `ArgapError` for a slice that cannot be computed or has none of them.
    """
    from argap.slices.library import slice_specs
    from argap.slices.of_tokens import check_slices, select
    from argap.tokens.table import TokenTable

    table, specs = TokenTable((run,), labels), slice_specs(slices)
    check_slices(specs, table.models, table.record.evaluation, table.further)
    found = {}
    for each in specs:
        chosen = select(table, each.where, columns=["window", "pos"])
        member = np.zeros(len(data.tokens), dtype=bool)
        member[data.offsets[chosen["window"].to_numpy()] + chosen["pos"].to_numpy()] = True
        found[each.name] = member[rows]
        if not found[each.name].any():
            raise ArgapError(f"slice {each.name}: selects no token of the windows that are measured ({each.where})")
    return found


def _place_in(group: "ProcessGroup | None") -> tuple[int, int]:
    """Return the rank of this process in a group, and the number of its processes."""
    if group is None:
        return 0, 1
    import torch.distributed as dist

    return dist.get_rank(group), dist.get_world_size(group)


def _summed(values: list[float], device: "str | torch.device", group: "ProcessGroup | None") -> list[float]:
    """Add up values over the processes of a group."""
    if group is None:
        return values
    import torch
    import torch.distributed as dist

    sums: Any = torch.tensor(values, dtype=torch.float64, device=device)
    dist.all_reduce(sums, group=group)
    return sums.tolist()


def _data_of(run: Run, labels: Labels) -> EvaluationSet:
    """Return the evaluation set of a run from its own rows, without reading the text."""
    evaluation = run.record.evaluation
    sources = list(labels.record.sources)
    return EvaluationSet(
        tokens=read_token_ids(run),
        offsets=read_window_offsets(run),
        document_ends=np.searchsorted(labels.document_of_window[labels.window], np.arange(len(sources)), side="right"),
        domains=[""] * len(sources),
        sources=sources,
        seq_len=evaluation.seq_len,
        packing=evaluation.packing,
        eos=None,
        tokenizer=evaluation.tokenizer,
        tokenizer_fingerprint=evaluation.tokenizer_fingerprint,
    )
