"""Measure the gap of a model in memory to a finished run repeatedly: NLL on the AR hits and on all other tokens."""

from math import isfinite
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from argap.checkpoints.live import live_model, undisturbed
from argap.errors import ArgapError
from argap.evaluation.windows import EvaluationSet
from argap.metric.threshold import PAPER_THRESHOLD, Threshold
from argap.records import EvaluationSpec, Unit
from argap.results.compare import labels_of, threshold_of
from argap.scoring.bos import Model, bos_id
from argap.slices.tally import tally
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
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


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


class RecallGap:
    """Measure models in memory on the text of a finished run, against that run.

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
        For a folder that is not a finished run or has no labels, and for texts that cannot be compared.

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
        self._hits = labels.ar_hit(threshold_of(threshold, labels.record.index))[shown]
        self._n = labels.weight[self._rows].astype(np.int64)
        logprob = read_logprobs(run)[0]
        self._reference = self._aligned(logprob, 0)
        self.unit: Unit = labels.record.evaluation.unit
        """The unit of the means."""

    def measure(self, model: "PreTrainedModel") -> GapFigures:
        """Measure a model in its current state.

        It stays on its device and in its dtype; its weights, gradients and modes (training or evaluation) and the state
        of the random generators are left unchanged. Raises `ArgapError` for a model that cannot take the windows or
        lacks one of the tokens, and for a log-prob of NaN or +∞. If a log-prob is −∞, estimates are infinite or NaN.
        """
        from argap.checkpoints.family_code import family_code
        from argap.scoring.batches import Batches
        from argap.scoring.scorer import check_length, check_logprobs, check_vocabulary

        live = live_model(model)
        data = self._data
        check_length(live.name, self._max_length or live.longest, data, bos=self._bos)
        check_vocabulary(model, data, live.name)
        logprob = np.full(len(data.tokens), np.nan, dtype=np.float32)
        windows = range(self._windows)
        too_long = None if self._max_length is None else "reduce `max_length`, or choose another `reference`"
        with undisturbed(model), family_code(live.name, model, data.longest, too_long):
            batches = Batches(model, data, str(live.device), self._batch_size, live.name, live=True, bos=self._bos)
            scored, _ = batches.score(windows).arrays()
        check_logprobs(scored, data, windows, live.name)
        logprob[: len(scored)] = scored
        return self._figures(self._aligned(logprob, 1))

    def _aligned(self, logprob: np.ndarray, tokenizer: int) -> np.ndarray:
        """Select the log-probs of the rows compared, float32, from those of all tokens."""
        aligned = logprob if self._text is None else self._text.align(logprob, tokenizer)
        return aligned[self._rows]

    def _figures(self, logprob: np.ndarray) -> GapFigures:
        (hits,), n, (reference, own) = tally([self._hits], [self._reference, logprob], self._n)
        with np.errstate(invalid="ignore"):  # −∞ − −∞
            lost = reference - own
        on_hits, delta = (float(sums.sum() / n.sum()) for sums in (lost[hits], lost))
        return GapFigures(
            nll=float(-own.sum() / n.sum()),
            nll_ar_hits=float(-own[hits].sum() / n[hits].sum()) if hits.any() else None,
            nll_other=float(-own[~hits].sum() / n[~hits].sum()) if not hits.all() else None,
            delta=delta,
            contribution_ar_hits=on_hits,
            share_ar_hits=on_hits / delta if delta and isfinite(delta) else None,
        )


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
