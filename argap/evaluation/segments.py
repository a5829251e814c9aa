"""The finest segments whose ends are token ends of every tokenizer, and windows cut at those ends.

Legend: T tokenizers, N tokens of one of them, S segments, W windows. A separator (EOS) between documents stands for no
byte; it is in a segment that is not scored. Also not scored are segments with a token that stands for unknown text, the
first segment of a window (no model has a score there), and text after the last common end of a document.

A tokenizer gives the characters that each token covers. If several tokens share a character (byte-level BPE, byte
fallback), their own bytes divide it, provided that together they spell it exactly; otherwise only the last of them ends
in the text.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import NamedTuple

import numpy as np

from argap.corpus.tokenize import check_length
from argap.errors import MismatchError
from argap.text.tokenizer import Tokenizer


class TokenizedDocument(NamedTuple):
    """A document in the tokens of one tokenizer. Legend: N tokens."""

    ids: np.ndarray
    """int32 ``[N]``."""
    ends: np.ndarray
    """int64 ``[N]``, not decreasing: the bytes of the document (UTF-8) up to the end of each token. A token that ends
    nowhere in the text, such as the space that some tokenizers prepend, has the end of the previous token."""
    unknown: np.ndarray
    """bool ``[N]``: whether the token stands for text that the tokenizer cannot spell, so that its log-prob covers all
    such text."""


def tokenized(texts: Sequence[str], tokenizer: Tokenizer, names: Sequence[str]) -> list[TokenizedDocument]:
    """Tokenize each of ``texts``; ``names``: the documents, in messages.

    Raises `MismatchError`, naming the first offending span, for tokens that are not in the order of the text.
    """
    for text, name in zip(texts, names, strict=True):
        check_length(len(text), name)
    pairs = zip(texts, tokenizer.encode_batch_spans(texts), names, strict=True)
    unknown = np.fromiter(tokenizer.unknown, dtype=np.int32)
    return [
        TokenizedDocument(ids, _byte_ends(text, ids, spans, tokenizer, name), np.isin(ids, unknown))
        for text, (ids, spans), name in pairs
    ]


def _byte_ends(text: str, ids: np.ndarray, spans: np.ndarray, tokenizer: Tokenizer, name: str) -> np.ndarray:
    """Compute `TokenizedDocument.ends`, int64 ``[N]``, from the characters ``spans [N, 2]`` that each token covers."""
    if not len(ids):
        return np.empty(0, dtype=np.int64)
    raw = text.encode()
    byte_of = _byte_offsets(text, raw)
    _check_order(text, spans, tokenizer, name)
    start, end = byte_of[spans].T
    reached = np.maximum.accumulate(end)
    # Tokens of a group share characters: none of them begins where all tokens before it have ended.
    opens = np.concatenate([[True], start[1:] >= reached[:-1]])
    first = np.flatnonzero(opens)
    last = np.append(first[1:], len(ids)) - 1
    ends = np.full(len(ids), -1, dtype=np.int64)
    ends[last] = np.where(reached[last] > start[first], reached[last], -1)  # an empty span ends nowhere
    for a, b in zip(first[last > first].tolist(), last[last > first].tolist(), strict=True):
        pieces = [tokenizer.piece_bytes[token] for token in ids[a : b + 1].tolist()]
        shared, spelled = raw[start[a] : reached[b]], b"".join(pieces)
        added = len(spelled) - len(shared)  # a space that is not in the text
        if added >= 0 and spelled == b" " * added + shared:
            ends[a : b + 1] = start[a] + np.maximum(np.cumsum([len(piece) for piece in pieces]) - added, 0)
    return np.maximum(np.maximum.accumulate(ends), 0)


def _byte_offsets(text: str, raw: bytes) -> np.ndarray:
    """Return the byte at which each character begins, and the end: int64 ``[characters + 1]``."""
    if len(raw) == len(text):
        return np.arange(len(text) + 1)
    return np.append(np.flatnonzero((np.frombuffer(raw, dtype=np.uint8) & 0xC0) != 0x80), len(raw))


def _check_order(text: str, spans: np.ndarray, tokenizer: Tokenizer, name: str) -> None:
    wrong = (spans[:, 1] < spans[:, 0]) | (spans[:, 0] < 0) | (spans[:, 1] > len(text))
    wrong[1:] |= spans[1:, 0] < np.maximum.accumulate(spans[:-1, 0])
    if wrong.any():
        a, b = spans[np.argmax(wrong)].tolist()
        excerpt = text[max(0, min(a, b)) : max(a, b)][:40]
        raise MismatchError(
            f"{name}: {tokenizer.name} gives its tokens out of the order of the text at characters {a} to {b} "
            f"({excerpt!r}); expected each token behind the one before, without which bytes cannot be compared"
        )


@dataclass(frozen=True)
class Segments:
    """The segments of a text, in order."""

    bytes: np.ndarray
    """int64 ``[S]``: the length of each segment."""
    tokens: tuple[np.ndarray, ...]
    """For each tokenizer int64 ``[S + 1]``: segment s holds its tokens ``tokens[s] … tokens[s + 1] − 1``."""
    document: np.ndarray
    """int64 ``[S]``."""
    scored: np.ndarray
    """bool ``[S]``: whether every model has a log-prob for exactly these bytes."""

    def __len__(self) -> int:
        return len(self.bytes)

    def first(self, segments: int) -> "Segments":
        """Return only the first ``segments``."""
        ends = tuple(each[: segments + 1] for each in self.tokens)
        return Segments(self.bytes[:segments], ends, self.document[:segments], self.scored[:segments])

    def in_windows(self, offsets: np.ndarray) -> "Segments":
        """Mark the first segment of each window as not scored; window w holds ``offsets[w] … offsets[w + 1] − 1``."""
        scored = self.scored.copy()
        scored[offsets[:-1]] = False
        return replace(self, scored=scored)

    def sums(self, logprob: np.ndarray, tokenizer: int) -> np.ndarray:
        """Sum the log-probs of tokens ``[N]`` by segment, float64 ``[S]``; NaN where a segment is not scored."""
        starts = self.tokens[tokenizer]
        total = np.full(len(self), np.nan)
        some = np.flatnonzero(self.scored)
        # reduceat needs pairs (from, to) inside the array; every other result is for the gap between two pairs.
        bounds = np.stack([starts[some], starts[some + 1]], axis=1).ravel()
        if len(bounds):
            total[some] = np.add.reduceat(np.append(logprob.astype(np.float64), 0.0), bounds)[::2]
        return total


def find_segments(documents: Sequence[Sequence[TokenizedDocument]], *, separated: bool) -> Segments:
    """Find the segments of documents, each given in the tokens of every tokenizer.

    ``separated``: the last token of each document is the separator, which ends after the text. Text after the last
    common end of a document is one more segment, not scored.
    """
    number = range(len(documents[0]))
    lengths: list[np.ndarray] = []
    scored: list[np.ndarray] = []
    tokens: list[list[np.ndarray]] = [[np.zeros(1, dtype=np.int64)] for _ in number]
    before = [0 for _ in number]
    for document in documents:
        ends = common_ends([each.ends for each in document])
        stops = [np.searchsorted(each.ends, ends) + 1 for each in document]
        known = np.ones(len(ends), dtype=bool)
        if separated:
            known[-1] = False
        for each, stop in zip(document, stops, strict=True):
            known &= np.diff(np.append(0, np.cumsum(each.unknown))[np.append(0, stop)]) == 0
        left = [len(each.ids) - int(stop[-1:].sum()) for each, stop in zip(document, stops, strict=True)]
        if any(left):
            ends = np.append(ends, max(int(each.ends[-1]) for each in document if len(each.ids)))
            stops = [np.append(stop, len(each.ids)) for each, stop in zip(document, stops, strict=True)]
            known = np.append(known, False)
        lengths.append(np.diff(ends, prepend=0))
        scored.append(known)
        for k in number:
            tokens[k].append(before[k] + stops[k])
            before[k] += len(document[k].ids)
    return Segments(
        bytes=np.concatenate(lengths),
        tokens=tuple(np.concatenate(each) for each in tokens),
        document=np.repeat(np.arange(len(documents)), [len(each) for each in lengths]),
        scored=np.concatenate(scored),
    )


def up_to_common_end(
    document: Sequence[TokenizedDocument], limit: int | None = None, counted: int = 0
) -> list[TokenizedDocument]:
    """Drop a document's tokens after its last common end: nothing after it is scored.

    ``limit``: use the last common end within that many tokens of tokenizer number ``counted``.
    """
    ends = common_ends([each.ends for each in document])
    if limit is not None:
        ends = ends[np.searchsorted(document[counted].ends, ends) < limit]
    stops = [int(np.searchsorted(each.ends, ends[-1])) + 1 if len(ends) else 0 for each in document]
    return [
        TokenizedDocument(each.ids[:stop], each.ends[:stop], each.unknown[:stop])
        for each, stop in zip(document, stops, strict=True)
    ]


def common_ends(ends: Sequence[np.ndarray]) -> np.ndarray:
    """Return the bytes above 0 at which a token ends in every tokenization of a document (each ``[N]``)."""
    common = reduce(np.intersect1d, ends)
    return common[common > 0]


def cut_windows(
    segments: Segments, limits: Sequence[int], *, within_documents: bool, names: Sequence[str]
) -> np.ndarray:
    """Cut windows of as many segments as fit, none with over ``limits[t]`` tokens of tokenizer t: int64 ``[W + 1]``.

    ``within_documents``: no window crosses a document. ``names``: of the documents, in messages. Raises `MismatchError`
    for a segment that fits no window, with its document and its first byte.
    """
    return np.append(np.fromiter(_starts(segments, limits, within_documents, names), dtype=np.int64), len(segments))


def _starts(segments: Segments, limits: Sequence[int], within_documents: bool, names: Sequence[str]) -> Iterator[int]:
    ends_of_documents = np.flatnonzero(np.diff(segments.document, append=-1)) + 1
    start = 0
    while start < len(segments):
        yield start
        pairs = zip(segments.tokens, limits, strict=True)
        stop = min(int(np.searchsorted(each, each[start] + limit, side="right")) - 1 for each, limit in pairs)
        if within_documents:
            stop = min(stop, int(ends_of_documents[np.searchsorted(ends_of_documents, start, side="right")]))
        if stop == start:
            document = int(segments.document[start])
            first = int(segments.bytes[:start][segments.document[:start] == document].sum())
            raise MismatchError(
                f"{names[document]}: the tokenizers have no common token end in bytes {first:,} to "
                f"{first + int(segments.bytes[start]):,}, more than the {min(limits)} tokens of a window; expected "
                "text that all of them cut into words"
            )
        start = stop
