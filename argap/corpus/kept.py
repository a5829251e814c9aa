"""Columns of the source kept beside the text (``--keep``): one value per document, or spans of its text.

A value is text, a number, a boolean or a date. Spans are a list of ``{start, end, label}``, with ``start`` and ``end``
in characters (Unicode code points) of the document's text, ``end`` exclusive; other keys are ignored. They become spans
of tokens: a token has a label if any of its characters is in the span. The tokenizer itself says which characters a
token comes from, white space included; a token with part of a character counts as the whole character, and an empty
span labels nothing.
"""

import sys
from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any, NamedTuple

import numpy as np

from argap.corpus.document import TextDocument
from argap.errors import FormatError
from argap.text.tokenizer import Tokenizer

KEYS = ("start", "end", "label")
EXPECTED = "text, a number, a boolean, a date, or spans [{start, end, label}]"


class TokenSpans(NamedTuple):
    """Spans of a document's tokens. Legend: S spans."""

    first: np.ndarray
    """int32 ``[S]``."""
    end: np.ndarray
    """int32 ``[S]``: one more than the last token."""
    labels: list[str]
    """``[S]``."""


def kept_of(batch: Sequence[TextDocument], tokenizer: Tokenizer) -> list[Mapping[str, Any]]:
    """Return the kept values of documents, with spans of tokens in place of spans of characters.

    Raises `FormatError` naming document and column for a value of the wrong type, and for a span outside the text.
    """
    spanned = [k for k, each in enumerate(batch) if any(isinstance(value, list) for value in each.kept.values())]
    offsets = dict(zip(spanned, tokenizer.offsets([batch[k].text for k in spanned]) if spanned else (), strict=True))
    return [
        {name: _value(name, value, each, offsets.get(k)) for name, value in each.kept.items()}
        for k, each in enumerate(batch)
    ]


def _value(name: str, value: Any, document: TextDocument, offsets: np.ndarray | None) -> Any:
    if value is None or isinstance(value, str | bool | int | float | date):
        return value
    if not isinstance(value, list) or offsets is None:
        raise FormatError(f"{document.source}: column {name!r} holds {_type(value)}; expected {EXPECTED}")
    for k, span in enumerate(value):
        _check_span(span, f"{document.source}: span {k} of column {name!r}", len(document.text))
    start, end, labels = ([span[key] for span in value] for key in KEYS)
    return token_spans(np.array(start, dtype=np.int64), np.array(end, dtype=np.int64), labels, offsets)


def _check_span(span: Any, what: str, length: int) -> None:
    if not isinstance(span, Mapping) or any(key not in span for key in KEYS):
        found = ", ".join(map(str, span)) if isinstance(span, Mapping) else _type(span)
        raise FormatError(f"{what}: expected start, end and label, found {found or 'nothing'}")
    start, end, label = (span[key] for key in KEYS)
    if not isinstance(label, str) or not all(isinstance(n, int) and not isinstance(n, bool) for n in (start, end)):
        raise FormatError(f"{what} ({start!r}, {end!r}, {label!r}): expected two whole numbers and a text")
    if not 0 <= start <= end <= length:
        raise FormatError(
            f"{what} ({start}, {end}, {label!r}): expected 0 <= start <= end <= {length}, the characters of the text"
        )


def _type(value: Any) -> str:
    return "an object" if isinstance(value, Mapping) else type(value).__name__


def token_spans(start: np.ndarray, end: np.ndarray, labels: Sequence[str], offsets: np.ndarray) -> TokenSpans:
    """Convert spans of characters to spans of tokens, leaving out spans without a token.

    ``start``, ``end``: int ``[S]``, ``end`` exclusive. ``offsets``: int ``[N, 2]``, where each token begins and ends
    (characters), not decreasing.

    >>> token_spans(np.array([4]), np.array([7]), ["name"], np.array([[0, 3], [3, 5], [5, 9]]))
    TokenSpans(first=array([1], dtype=int32), end=array([3], dtype=int32), labels=['name'])
    """
    first = np.searchsorted(offsets[:, 1], start, side="right").astype(np.int32)
    stop = np.searchsorted(offsets[:, 0], end, side="left").astype(np.int32)
    some = (start < end) & (first < stop)
    return TokenSpans(first[some], stop[some], [sys.intern(labels[k]) for k in np.flatnonzero(some).tolist()])


def cut(kept: Mapping[str, Any], tokens: int) -> Mapping[str, Any]:
    """Return the kept values of a document that is cut to its first ``tokens``."""

    def spans(value: TokenSpans) -> TokenSpans:
        some = value.first < tokens
        labels = [value.labels[k] for k in np.flatnonzero(some).tolist()]
        return TokenSpans(value.first[some], np.minimum(value.end[some], tokens), labels)

    return {name: spans(value) if isinstance(value, TokenSpans) else value for name, value in kept.items()}
