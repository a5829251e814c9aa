"""The byte of a document at which each of its tokens ends.

A tokenizer gives the characters that each token covers. If several tokens share a character (byte-level BPE, byte
fallback), their own bytes divide it, provided that together they spell it exactly; otherwise only the last of them ends
in the text.
"""

from collections.abc import Sequence
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
