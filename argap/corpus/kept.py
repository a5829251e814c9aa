"""Columns of the source that are kept beside the text (``--keep``): one value a document, or spans of its text.

A value is text, a number, a boolean or a date. Spans are a list of ``{start, end, label}``, with ``start`` and ``end``
in characters (Unicode code points) of the document's text, ``end`` exclusive; further keys are ignored. They become
spans of tokens: a token has a label if any of its characters is in the span. Characters are those that the tokenizer
itself says a token was made from, white space included; a token that holds a part of a character counts as the whole
character, and an empty span labels nothing.
"""

from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any

import numpy as np
import pyarrow as pa

from argap.corpus.document import TextDocument
from argap.errors import FormatError
from argap.tokenizer import Tokenizer

TOKEN_SPANS = pa.list_(pa.struct([("first", pa.int32()), ("end", pa.int32()), ("label", pa.string())]))
"""Type of a column of spans: tokens ``first … end - 1`` of the document have ``label``."""
KEYS = ("start", "end", "label")
EXPECTED = "text, a number, a boolean, a date, or spans [{start, end, label}]"


def kept_of(batch: Sequence[TextDocument], tokenizer: Tokenizer) -> list[dict[str, Any]]:
    """What documents keep, with spans of tokens in place of spans of characters.

    Raises `FormatError` naming document and column for a value of another type, and for a span outside the text.
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
    return token_spans([tuple(span[key] for key in KEYS) for span in value], offsets)


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


def token_spans(spans: Sequence[tuple[int, int, str]], offsets: np.ndarray) -> list[dict[str, Any]]:
    """Spans of characters as spans of tokens; those without a token are left out.

    ``offsets``: int ``[N, 2]``, where each token begins and ends (characters), not decreasing.

    >>> token_spans([(4, 7, "name")], np.array([[0, 3], [3, 5], [5, 9]]))
    [{'first': 1, 'end': 3, 'label': 'name'}]
    """
    made = []
    for start, end, label in spans:
        first = int(np.searchsorted(offsets[:, 1], start, side="right"))
        stop = int(np.searchsorted(offsets[:, 0], end, side="left"))
        if start < end and first < stop:
            made.append({"first": first, "end": stop, "label": label})
    return made


def cut(kept: Mapping[str, Any], tokens: int) -> dict[str, Any]:
    """What a document keeps once it is cut to its first ``tokens``."""

    def spans(value: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [each | {"end": min(each["end"], tokens)} for each in value if each["first"] < tokens]

    return {name: spans(value) if isinstance(value, list) else value for name, value in kept.items()}
