"""Choose example windows: the AR hits where a model loses most to the reference, in context.

Hits that the reference predicts well are ranked by the difference in log-prob (reference minus model). At most one hit
is taken per (domain, distance band) and per document, so that a single hard page cannot fill the list. The examples are
extremes, not a sample.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from argap.metric.bins import distance_bins
from argap.records import KNOWN, EarlierOccurrence, Examples, ExampleWindow
from argap.text.tokenizer import Tokenizer
from argap.tokens.labels import Labels
from argap.tokens.portions import ReadLater, Scores

COUNT = 8
BEFORE = 56  # tokens of context before the hit
FARTHEST = 84  # extended up to this if that brings the earlier occurrence into view
LEAD = 8  # tokens shown before the earlier occurrence
AFTER = 12  # tokens shown after the hit
SNIPPET = (12, 6)  # tokens before and after an earlier occurrence that is too far back and shown separately

RULE = (
    f"AR hits that the reference gives at least {100 * KNOWN:.0f}%, with the largest difference of log-probs, "
    "reference minus model; at most one of each domain and distance band, and one of each document"
)


Pair = tuple[np.ndarray, np.ndarray | ReadLater]
"""The arrays of `Scores`."""


class Candidate(NamedTuple):
    """An AR hit that may be chosen, with the model that does worse than the reference there."""

    loss: float
    """Reference minus model, in nats."""
    row: int
    """Row in the evaluation set."""
    model: int
    stratum: tuple[str, int]
    document: int
    window: ExampleWindow | None

    @property
    def order(self) -> tuple[float, int, int]:
        """Return the sort key: largest loss first, ties by earlier token, then by earlier model."""
        return -self.loss, self.row, self.model


class _Portion(NamedTuple):
    """Tokens of whole windows. Legend: N tokens."""

    tokens: np.ndarray
    labels: Labels
    ar_hit: np.ndarray
    """bool ``[N]``."""
    document: np.ndarray
    """int32 ``[N]``."""
    scores: dict[str, Scores]


class ExampleChooser:
    """Choose excerpts by `RULE` from whole windows, added in portions and in order.

    Only a bounded set of candidates is kept. Within a stratum (domain, distance band), only the best hits of ``count``
    documents can be chosen. Across strata, only hits with at least the loss of the rule's pick number ``2 · count``:
    the rule is greedy, so at least half as many picks remain possible whatever comes later.
    """

    def __init__(
        self, models: Sequence[str], tokenizer: Tokenizer, *, reference: str, threshold: int | None, count: int = COUNT
    ) -> None:
        self._names = list(models)
        self._models = [name for name in models if name != reference]
        self._reference = reference
        self._tokenizer = tokenizer
        self._threshold = threshold
        self._count = count
        self._kept: list[Candidate] = []
        self._least = 0.0
        self._rows = 0
        self._ended = 0  # documents that ended with an EOS

    def add(self, tokens: np.ndarray, labels: Labels, scores: Mapping[str, Pair]) -> None:
        """Add a portion. ``tokens``: ids, int32 ``[N]``. ``scores``: the arrays of `Scores` by model, in that order."""
        known = {model: Scores(*pair) for model, pair in scores.items()}
        portion = _Portion(tokens, labels, labels.ar_hit(self._threshold), self._documents(tokens, labels), known)
        kept = self.shortened(sorted([*self._kept, *self._candidates(portion)], key=lambda each: each.order))
        self._kept = [
            each if each.window is not None else each._replace(window=self._window(each, portion)) for each in kept
        ]
        self._rows += len(tokens)

    def examples(self) -> Examples:
        """Return the contents of ``examples.json``."""
        return Examples(
            tokenizer=self._tokenizer.name,
            models=tuple(self._names),
            reference=self._reference,
            rule=RULE,
            windows=tuple(each.window for each in self.picks(self._kept, self._count) if each.window is not None),
        )

    def _documents(self, tokens: np.ndarray, labels: Labels) -> np.ndarray:
        """Return the document of each token, int32 ``[N]``. With packing, each document ends with one EOS."""
        if labels.record.evaluation.packing == "document":
            return labels.document_of_window[labels.window]
        ends = tokens == self._tokenizer.eos
        document = self._ended + np.cumsum(ends) - ends
        self._ended += int(ends.sum())
        return document.astype(np.int32)

    def _candidates(self, of: _Portion) -> list[Candidate]:
        """Return the best hit of each stratum in each document."""
        labels, reference = of.labels, of.scores[self._reference].logprob
        rows = np.flatnonzero(of.ar_hit & labels.scored)
        rows = rows[np.exp(reference[rows]) >= KNOWN]
        if not self._models or not len(rows):
            return []
        loss = np.stack([reference[rows] - of.scores[m].logprob[rows] for m in self._models], axis=1)
        order = np.flatnonzero((loss.ravel() > 0) & (loss.ravel() >= self._least))
        order = order[np.argsort(-loss.ravel()[order], kind="stable")]
        hit, model = np.divmod(order, len(self._models))
        row = rows[hit]
        band = distance_bins(labels.record.evaluation.seq_len).index(labels.distance[row])
        pairs = np.stack([labels.domain[row], band, of.document[row]], axis=1)
        first = np.unique(pairs, axis=0, return_index=True)[1]
        return [
            Candidate(
                float(loss.flat[order[k]]),
                self._rows + int(row[k]),
                int(model[k]),
                (labels.domains[labels.domain[row[k]]], int(band[k])),
                int(of.document[row[k]]),
                None,
            )
            for k in first.tolist()
        ]

    def shortened(self, ordered: list[Candidate]) -> list[Candidate]:
        """Drop candidates that can no longer be chosen."""
        documents: dict[tuple[str, int], set[int]] = {}
        kept = []
        for each in ordered:
            seen = documents.setdefault(each.stratum, set())
            if each.document not in seen and len(seen) < self._count:
                seen.add(each.document)
                kept.append(each)
        picks = self.picks(kept, 2 * self._count)
        if len(picks) == 2 * self._count:
            self._least = picks[-1].loss
        return [each for each in kept if each.loss >= self._least]

    @staticmethod
    def picks(ordered: list[Candidate], count: int) -> list[Candidate]:
        """Pick up to ``count`` candidates by `RULE`."""
        chosen: list[Candidate] = []
        strata: set[tuple[str, int]] = set()
        documents: set[int] = set()
        for each in ordered:
            if len(chosen) < count and each.stratum not in strata and each.document not in documents:
                strata.add(each.stratum)
                documents.add(each.document)
                chosen.append(each)
        return chosen

    def _window(self, hit: Candidate, of: _Portion) -> ExampleWindow:
        """Return the tokens around a hit, with their labels and scores."""
        row, labels = hit.row - self._rows, of.labels
        distance = int(labels.distance[row])
        window = int(labels.window[row])
        first, last = np.searchsorted(labels.window, [window, window + 1]).tolist()
        near = distance + LEAD <= FARTHEST
        before = max(BEFORE, distance + LEAD) if near else BEFORE
        rows = slice(max(first, row - before), min(last, row + AFTER + 1))
        shown = scores_in(rows, of.tokens, of.scores)
        return ExampleWindow(
            window=window,
            document=hit.document,
            domain=hit.stratum[0],
            source=labels.record.sources[hit.document],
            model=self._models[hit.model],
            start=int(labels.position[rows.start]),
            tokens=tuple(token_texts(of.tokens[rows], self._tokenizer)),
            repeated=tuple(labels.repeated[rows].tolist()),
            ar_hit=tuple(of.ar_hit[rows].tolist()),
            distance=tuple(labels.distance[rows].tolist()),
            train_count=None if labels.train_count is None else tuple(labels.train_count[rows].tolist()),
            logprob=shown.logprob,
            top1_correct=shown.top1_correct,
            focus=row - rows.start,
            earlier=None if near else self._snippet(row - distance, first, of),
        )

    def _snippet(self, row: int, first: int, of: _Portion) -> EarlierOccurrence:
        """Return the earlier occurrence of a hit's bigram, which ends at ``row``, too far away to show with the hit."""
        before, after = SNIPPET
        rows = slice(max(first, row - before), row + after + 1)
        return EarlierOccurrence(
            start=int(of.labels.position[rows.start]),
            tokens=tuple(token_texts(of.tokens[rows], self._tokenizer)),
            focus=row - rows.start,
        )


def choose_examples(
    tokens: np.ndarray,
    labels: Labels,
    scores: Mapping[str, Pair],
    tokenizer: Tokenizer,
    *,
    reference: str,
    threshold: int | None,
    count: int = COUNT,
) -> Examples:
    """Return the contents of ``examples.json``: up to ``count`` excerpts, each around one AR hit.

    ``tokens``: ids of the evaluation set, int32 ``[N]``. ``scores``: the arrays of `Scores` by model, in the row order
    of ``labels``. There are fewer than ``count`` if documents, domains and distance bands run out, or if models lose to
    the reference on fewer hits; none without a model besides the reference.
    """
    chooser = ExampleChooser(list(scores), tokenizer, reference=reference, threshold=threshold, count=count)
    chooser.add(tokens, labels, scores)
    return chooser.examples()


def add_models(
    before: Examples,
    models: Sequence[str],
    known: Collection[str],
    tokens: np.ndarray,
    labels: Labels,
    scores: Mapping[str, Pair],
) -> Examples:
    """Add the scores of further models to the windows chosen ``before``.

    Models in ``scores`` get new scores, the others keep theirs: their tokens outside the windows no longer have any, so
    the windows cannot be chosen again. ``known``: the models that took part in the choice and have not changed. Windows
    that show any other model losing are left out.
    """
    own = {model: Scores(*pair) for model, pair in scores.items()}
    windows = []
    for each in (each for each in before.windows if each.model in models and each.model in known):
        first = int(np.searchsorted(labels.window, each.window)) + each.start
        shown = scores_in(slice(first, first + len(each.tokens)), tokens, own)
        merged = {name: getattr(each, name) | values for name, values in shown._asdict().items()}
        ordered = {name: {model: values[model] for model in models} for name, values in merged.items()}
        windows.append(msgspec.structs.replace(each, **ordered))
    added = tuple(model for model in models if model in before.added or model not in known)
    return msgspec.structs.replace(before, models=tuple(models), windows=tuple(windows), added=added)


class OfModels(NamedTuple):
    """Two fields of an `ExampleWindow`, by model."""

    logprob: dict[str, tuple[float | None, ...]]
    top1_correct: dict[str, tuple[bool, ...]]


def scores_in(rows: slice, tokens: np.ndarray, scores: Mapping[str, Scores]) -> OfModels:
    """Return what a window shows of each model.

    Tokens without a score or with probability 0 get None, as JSON has neither NaN nor infinity.
    """
    return OfModels(
        {m: tuple(p if np.isfinite(p) else None for p in each.logprob[rows].tolist()) for m, each in scores.items()},
        {m: tuple((each.top1[rows] == tokens[rows]).tolist()) for m, each in scores.items()},
    )


def token_texts(ids: np.ndarray, tokenizer: Tokenizer) -> list[str]:
    """Return each token as it appears in the text; part of a multi-byte character becomes U+FFFD.

    The first is decoded as the start of a text, so some tokenizers drop its leading space.
    """
    texts = [tokenizer.pieces[token] for token in ids.tolist()]
    return [tokenizer.decode([int(ids[0])]), *texts[1:]] if texts else []
