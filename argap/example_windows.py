"""Example windows: the AR hits where a model loses most to the reference, shown in context.

Hits that the reference knows are ranked by the difference of log-probs (reference minus model). At most one hit is
taken per (domain, distance band) and per document, so that a single hard page cannot fill the list. The examples
are extremes, not a sample.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from argap.bins import distance_bins
from argap.labels import Labels
from argap.records import KNOWN, EarlierOccurrence, Examples, ExampleWindow
from argap.tokenizer import Tokenizer

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


class Scores(NamedTuple):
    """One model's predictions. Legend: N tokens of the evaluation set."""

    logprob: np.ndarray
    """float32 ``[N]``, nats; NaN at position 0 of a window."""
    top1: np.ndarray
    """int32 ``[N]``: the model's most likely id; -1 at position 0."""


class _Hit(NamedTuple):
    """A chosen AR hit: its row in the evaluation set and the model that does worse than the reference there."""

    row: int
    model: str


def choose_examples(
    tokens: np.ndarray,
    labels: Labels,
    scores: Mapping[str, tuple[np.ndarray, np.ndarray]],
    tokenizer: Tokenizer,
    *,
    reference: str,
    threshold: int | None,
    count: int = COUNT,
) -> Examples:
    """The content of ``examples.json``: up to ``count`` excerpts, each around one AR hit.

    ``tokens``: int32 ``[N]``, the ids of the evaluation set. ``scores``: for each model the arrays of `Scores`, in
    the row order of ``labels``. There are fewer than ``count`` if documents, domains and distance bands run out or
    no model is worse than the reference on more hits that it knows; none without a model besides the reference.
    """
    scores = {model: Scores(*pair) for model, pair in scores.items()}
    document = _documents(tokens, labels, tokenizer)
    hits = _choose(labels, document, scores, reference, threshold, count)
    ar_hit = labels.ar_hit(threshold)
    return Examples(
        tokenizer=tokenizer.name,
        models=tuple(scores),
        reference=reference,
        rule=RULE,
        windows=tuple(_window(hit, tokens, labels, ar_hit, document, scores, tokenizer) for hit in hits),
    )


def _documents(tokens: np.ndarray, labels: Labels, tokenizer: Tokenizer) -> np.ndarray:
    """The document of each token, int32 ``[N]``. With packing, each document ends with one EOS."""
    if labels.record.evaluation.packing == "document":
        return labels.document_of_window[labels.window]
    ends = tokens == tokenizer.eos
    return (np.cumsum(ends) - ends).astype(np.int32)


def _choose(
    labels: Labels,
    document: np.ndarray,
    scores: dict[str, Scores],
    reference: str,
    threshold: int | None,
    count: int,
) -> list[_Hit]:
    """The hits chosen by `RULE`, largest difference first; ties go to the earlier token, then the earlier model."""
    known = scores[reference].logprob >= np.log(KNOWN)
    rows = np.flatnonzero(labels.ar_hit(threshold) & labels.scored & known)
    models = [name for name in scores if name != reference]
    if not models or not len(rows):
        return []
    loss = np.stack([scores[reference].logprob[rows] - scores[m].logprob[rows] for m in models], axis=1)
    order = np.argsort(-loss, axis=None, kind="stable")
    band = distance_bins(labels.record.evaluation.seq_len).index(labels.distance[rows])
    chosen: list[_Hit] = []
    strata: set[tuple[int, int]] = set()
    documents: set[int] = set()
    for index in order.tolist():
        if len(chosen) == count or loss.flat[index] <= 0:
            break
        hit, model = divmod(index, len(models))
        row = int(rows[hit])
        stratum = (int(labels.domain[row]), int(band[hit]))
        if stratum in strata or int(document[row]) in documents:
            continue
        strata.add(stratum)
        documents.add(int(document[row]))
        chosen.append(_Hit(row, models[model]))
    return chosen


def _window(
    hit: _Hit,
    tokens: np.ndarray,
    labels: Labels,
    ar_hit: np.ndarray,
    document: np.ndarray,
    scores: dict[str, Scores],
    tokenizer: Tokenizer,
) -> ExampleWindow:
    """The tokens around a hit, with their labels and scores."""
    distance = int(labels.distance[hit.row])
    first, last = _window_bounds(labels, hit.row)
    near = distance + LEAD <= FARTHEST
    before = max(BEFORE, distance + LEAD) if near else BEFORE
    rows = slice(max(first, hit.row - before), min(last, hit.row + AFTER + 1))
    return ExampleWindow(
        window=int(labels.window[hit.row]),
        document=int(document[hit.row]),
        domain=labels.domains[labels.domain[hit.row]],
        source=labels.record.sources[document[hit.row]],
        model=hit.model,
        start=int(labels.position[rows.start]),
        tokens=tuple(token_texts(tokens[rows], tokenizer)),
        repeated=tuple(labels.repeated[rows].tolist()),
        ar_hit=tuple(ar_hit[rows].tolist()),
        distance=tuple(labels.distance[rows].tolist()),
        train_count=None if labels.train_count is None else tuple(labels.train_count[rows].tolist()),
        logprob={m: tuple(_number(p) for p in s.logprob[rows].tolist()) for m, s in scores.items()},
        top1_correct={m: tuple((s.top1[rows] == tokens[rows]).tolist()) for m, s in scores.items()},
        focus=hit.row - rows.start,
        earlier=None if near else _snippet(hit.row - distance, first, tokens, labels, tokenizer),
    )


def _snippet(row: int, first: int, tokens: np.ndarray, labels: Labels, tokenizer: Tokenizer) -> EarlierOccurrence:
    """The earlier occurrence of a hit's bigram, ending at ``row``, for a hit too far away to show both together."""
    before, after = SNIPPET
    rows = slice(max(first, row - before), row + after + 1)
    return EarlierOccurrence(
        start=int(labels.position[rows.start]),
        tokens=tuple(token_texts(tokens[rows], tokenizer)),
        focus=row - rows.start,
    )


def _window_bounds(labels: Labels, row: int) -> tuple[int, int]:
    """First row and one past the last row of the window that holds ``row``."""
    window = labels.window[row]
    return int(np.searchsorted(labels.window, window)), int(np.searchsorted(labels.window, window, side="right"))


def token_texts(ids: np.ndarray, tokenizer: Tokenizer) -> list[str]:
    """Each token as it appears in the text; part of a multi-byte character becomes U+FFFD.

    The first is decoded as the start of a text, where some tokenizers drop its leading space.
    """
    texts = [tokenizer.pieces[token] for token in ids.tolist()]
    return [tokenizer.decode([int(ids[0])]), *texts[1:]] if texts else []


def _number(value: float) -> float | None:
    """JSON has no NaN: unscored tokens become null."""
    return None if np.isnan(value) else value
