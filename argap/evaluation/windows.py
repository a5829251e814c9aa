"""The evaluation set: documents cut into disjoint windows of tokens, the same on every machine.

``packed`` (the paper's way): each document is followed by one EOS and the stream is cut into windows of ``seq_len``
tokens; the last may be shorter. ``document``: a window never crosses a document.

For a short context, windows are cut into shorter, overlapping ones. Windows of K tokens follow each other with stride
⌊K/2⌋ inside each window of the evaluation set; each token is read from the first that holds it. So it has from ⌈K/2⌉ to
K − 1 tokens of context, or all tokens before it if those are fewer.
"""

import hashlib
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, TypeVar, get_args

import numpy as np

from argap.corpus import Corpus, open_corpus, say_remarks
from argap.corpus.document import TokenDocument
from argap.corpus.kept import cut
from argap.corpus.tokenize import token_documents
from argap.errors import ArgapError
from argap.evaluation.documents import Documents, build_documents, check_keep
from argap.records import LONGEST_WINDOW, EvaluationRecord, EvaluationSpec, Packing
from argap.text.tokenizer import Tokenizer

Value = TypeVar("Value")
SEQ_LEN = 2048
PACKING: Packing = "packed"


@dataclass(frozen=True)
class EvaluationSet:
    """Windows of token ids. Legend: N tokens, W windows, D documents.

    Window ``w`` holds ``tokens[offsets[w] : offsets[w + 1]]``; its first token is context only, the
    others are scored.
    """

    tokens: np.ndarray
    """int32 ``[N]``."""
    offsets: np.ndarray
    """int64 ``[W + 1]``."""
    document_ends: np.ndarray
    """int64 ``[D]``: where each document ends in the tokens; an EOS belongs to the document that it ends."""
    domains: list[str]
    """``[D]``."""
    sources: list[str]
    """``[D]``: where each document comes from, for people."""
    seq_len: int
    packing: Packing
    eos: int | None
    """The separating id under ``packed``, whose bigrams are never repeated; None under ``document``."""
    tokenizer: str
    tokenizer_fingerprint: str
    kept: Documents | None = None
    """The columns kept from the source; None without any."""

    @property
    def windows(self) -> int:
        return len(self.offsets) - 1

    @property
    def longest(self) -> int:
        """Tokens of the longest window."""
        return int(self._lengths(self.all).max())

    @property
    def scored(self) -> int:
        """Tokens with a log-prob: all but the first of each window."""
        return len(self.tokens) - self.windows

    def rows(self, windows: range) -> slice:
        """Return the tokens of consecutive windows as a slice."""
        return slice(int(self.offsets[windows.start]), int(self.offsets[windows.stop]))

    def count_in(self, windows: range) -> int:
        """Count the tokens in consecutive windows."""
        return int(self.offsets[windows.stop] - self.offsets[windows.start])

    def window_of(self, windows: range) -> np.ndarray:
        """Return the window of each token of consecutive windows, int32."""
        return np.repeat(np.arange(windows.start, windows.stop, dtype=np.int32), self._lengths(windows))

    def position_of(self, windows: range) -> np.ndarray:
        """Return the position of each token of consecutive windows in its window, from 0, int32."""
        rows, starts = self.rows(windows), self.offsets[windows.start : windows.stop]
        return (np.arange(rows.start, rows.stop) - np.repeat(starts, self._lengths(windows))).astype(np.int32)

    def document_of(self, windows: range) -> np.ndarray:
        """Return the document of each token of consecutive windows, int32."""
        rows = self.rows(windows)
        first, last = np.searchsorted(self.document_ends, [rows.start, rows.stop - 1], side="right").tolist()
        ends = np.minimum(self.document_ends[first : last + 1], rows.stop)
        return np.repeat(np.arange(first, last + 1, dtype=np.int32), np.diff(ends, prepend=rows.start))

    def _lengths(self, windows: range) -> np.ndarray:
        return np.diff(self.offsets[windows.start : windows.stop + 1])

    @property
    def all(self) -> range:
        """All windows."""
        return range(self.windows)

    @property
    def window(self) -> np.ndarray:
        """int32 ``[N]``: the window of each token. Computed at each call, as are the next two."""
        return self.window_of(self.all)

    @property
    def position(self) -> np.ndarray:
        """int32 ``[N]``: the position of each token in its window, from 0."""
        return self.position_of(self.all)

    @property
    def document(self) -> np.ndarray:
        """int32 ``[N]``: the document of each token."""
        return self.document_of(self.all)

    @cached_property
    def document_of_window(self) -> np.ndarray:
        """int32 ``[W]``: the document that holds most of a window's tokens (the earliest in a tie)."""
        starts = np.union1d(self.offsets[:-1], self.document_ends[self.document_ends < len(self.tokens)])
        size = np.diff(starts, append=len(self.tokens))
        window = np.searchsorted(self.offsets, starts, side="right") - 1
        document = np.searchsorted(self.document_ends, starts, side="right")
        order = np.lexsort((document, -size, window))
        first = np.unique(window[order], return_index=True)[1]
        return document[order][first].astype(np.int32)

    @property
    def record(self) -> EvaluationRecord:
        """The description of the set in ``run.json``, ``labels.json`` and ``gap.json``."""
        return EvaluationRecord(
            fingerprint=self.fingerprint,
            tokenizer=self.tokenizer,
            tokenizer_fingerprint=self.tokenizer_fingerprint,
            tokens=len(self.tokens),
            scored=self.scored,
            windows=self.windows,
            documents=len(self.domains),
            seq_len=self.seq_len,
            packing=self.packing,
        )

    @cached_property
    def fingerprint(self) -> str:
        """`fingerprint_of` the set."""
        return fingerprint_of(self.tokens, self.offsets)


def fingerprint_of(tokens: np.ndarray, offsets: np.ndarray) -> str:
    """Return the SHA-256 (hex) over token ids ``[N]`` (little-endian int32) and window bounds ``[W + 1]`` (int64)."""
    digest = hashlib.sha256(np.ascontiguousarray(tokens, dtype="<i4").data)
    digest.update(np.ascontiguousarray(offsets, dtype="<i8").data)
    return digest.hexdigest()


def check_spec(spec: EvaluationSpec) -> None:
    """Raise `ArgapError`, before any text is read, for options that leave nothing to score.

    These are a length, packing or limit that is too small or unknown, and columns that cannot be kept.
    """
    _check_windows(_given(spec.seq_len, SEQ_LEN), _given(spec.packing, PACKING))
    _check_limits(limit_tokens=spec.limit_tokens, limit_document_tokens=spec.limit_document_tokens)
    check_keep(spec.keep)


def open_evaluation_set(spec: EvaluationSpec, tokenizer: Tokenizer) -> EvaluationSet:
    """Read the evaluation set of ``spec`` with ``tokenizer``.

    Raises the errors of `argap.corpus.open_corpus` and `build_evaluation_set`.
    """
    corpora = corpora_of(spec)
    data = build_evaluation_set(
        corpora,
        tokenizer,
        seq_len=_given(spec.seq_len, SEQ_LEN),
        packing=_given(spec.packing, PACKING),
        limit_tokens=spec.limit_tokens,
        limit_document_tokens=spec.limit_document_tokens,
        keep=spec.keep,
    )
    say_remarks(corpora)
    return data


def corpora_of(spec: EvaluationSpec) -> list[Corpus]:
    """Open the texts of ``spec``. Raises the errors of `argap.corpus.open_corpus`."""
    return [
        open_corpus(source, text_column=_given(spec.text_column, "text"), token_dtype=spec.token_dtype, keep=spec.keep)
        for source in spec.data
    ]


def build_evaluation_set(
    corpora: Corpus | Iterable[Corpus],
    tokenizer: Tokenizer,
    *,
    seq_len: int = SEQ_LEN,
    packing: Packing = PACKING,
    limit_tokens: int | None = None,
    limit_document_tokens: int | None = None,
    keep: Sequence[str] = (),
) -> EvaluationSet:
    """Tokenize ``corpora`` and cut windows of at most ``seq_len`` tokens.

    ``limit_tokens`` keeps the first tokens of the stream, EOS included; later documents are not read.
    ``limit_document_tokens`` keeps the first tokens of each document, to which ``packed`` adds its EOS. ``keep``: the
    columns that ``corpora`` were opened to keep. Raises `ArgapError` for a limit or length that leaves nothing to
    score, for a tokenizer without EOS under ``packed`` or whose EOS is in a document, for an empty corpus, and for a
    column that no document has.
    """
    _check_windows(seq_len, packing)
    _check_limits(limit_tokens=limit_tokens, limit_document_tokens=limit_document_tokens)
    separator = separator_of(tokenizer) if packing == "packed" else None
    corpora = [corpora] if isinstance(corpora, Corpus) else list(corpora)
    ids, ends = array("i"), [0]  # the ids grow in place, so those of 10⁸ tokens are in memory once
    documents: list[TokenDocument] = []
    for document in _take(token_documents(corpora, tokenizer), separator, limit_tokens, limit_document_tokens):
        ids.frombytes(document.ids.astype(np.int32, copy=False).tobytes())
        ends.append(len(ids))
        documents.append(replace(document, ids=np.empty(0, dtype=np.int32)))
    lengths = np.diff(ends)
    if lengths.max(initial=0) < 2:
        names = ", ".join(corpus.spec for corpus in corpora)
        raise ArgapError(f"{names}: nothing to score there; expected a document of at least two tokens")
    tokens = np.frombuffer(ids, dtype=np.int32)
    cut = np.array([len(tokens)]) if packing == "packed" else np.array(ends[1:])
    return EvaluationSet(
        tokens=tokens,
        offsets=_window_offsets(cut, seq_len),
        document_ends=np.array(ends[1:], dtype=np.int64),
        domains=[d.domain for d in documents],
        sources=[d.source for d in documents],
        seq_len=seq_len,
        packing=packing,
        eos=separator,
        tokenizer=tokenizer.name,
        tokenizer_fingerprint=tokenizer.fingerprint,
        kept=build_documents(documents, lengths, corpora, keep) if keep else None,
    )


def _check_limits(**limits: int | None) -> None:
    for name, limit in limits.items():
        if limit is not None and limit < 2:
            raise ArgapError(f"`{name}` {limit}: expected at least 2, one of context and one to score")


def _check_windows(seq_len: int, packing: str) -> None:
    if packing not in get_args(Packing):
        raise ArgapError(f"`packing` {packing}: expected packed or document")
    if seq_len < 2:
        raise ArgapError(f"`seq_len` {seq_len}: expected at least 2, one token of context and one to score")
    if seq_len > LONGEST_WINDOW:
        raise ArgapError(f"`seq_len` {seq_len}: expected at most {LONGEST_WINDOW:,}")


def _given(value: Value | None, default: Value) -> Value:
    return default if value is None else value


def _take(
    documents: Iterable[TokenDocument], separator: int | None, limit: int | None, of_each: int | None
) -> Iterator[TokenDocument]:
    """Yield the first ``limit`` tokens of the documents, ``of_each`` of each, with an EOS where packing separates."""
    left = limit
    for document in documents:
        if separator is not None:
            check_no_separator(document.ids, separator, document.source)
        ids = document.ids[:of_each]
        ids = ids if separator is None else np.append(ids, np.int32(separator))
        if left is not None:
            ids = ids[:left]
            left -= len(ids)
        kept = cut(document.kept, min(len(ids), _given(of_each, len(ids))))
        yield TokenDocument(ids, document.domain, document.source, kept)
        if left == 0:
            break


def separator_of(tokenizer: Tokenizer) -> int:
    """Return the EOS that packing puts between documents. Raises `ArgapError` for a tokenizer without one."""
    if tokenizer.eos is None:
        raise ArgapError(
            f"{tokenizer.name}: the tokenizer names no EOS token, which packing needs; use `packing=document`"
        )
    return tokenizer.eos


def check_no_separator(ids: np.ndarray, separator: int, document: str) -> None:
    """Raise `ArgapError` for a document that contains the EOS."""
    if np.any(ids == separator):
        raise ArgapError(
            f"{document}: its text contains the EOS token, id {separator}, which packing puts between documents; use "
            "`packing=document`"
        )


def _window_offsets(ends: np.ndarray, seq_len: int) -> np.ndarray:
    """Return window bounds: every ``seq_len`` tokens from the start of each stretch that ends at ``ends``."""
    starts = np.concatenate([[0], ends[:-1]])
    cuts = [np.arange(start, end, seq_len) for start, end in zip(starts, ends, strict=True)]
    return np.concatenate([*cuts, ends[-1:]]).astype(np.int64)


class Strided(NamedTuple):
    """Short windows over consecutive windows of an evaluation set. Legend: N tokens of those; M ≥ N of these."""

    data: EvaluationSet
    """The short windows as a set of their own, without documents."""
    kept: np.ndarray
    """bool ``[M]``: the N tokens of the short windows, in order, that are read as the tokens of the windows."""


def strided(data: EvaluationSet, windows: range, context: int) -> Strided:
    """Cut ``windows`` of ``data`` into windows of ``context`` tokens, at least 2."""
    starts, lengths, first = _cut(data, windows, context)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    position = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths)
    tokens = data.tokens[np.repeat(starts, lengths) + position]
    kept = np.repeat(first, lengths) | (position >= context - context // 2)
    nothing = np.empty(0, dtype=np.int64)
    cut = replace(
        data, tokens=tokens, offsets=offsets, document_ends=nothing, domains=[], sources=[], seq_len=context, kept=None
    )
    return Strided(cut, kept)


def tokens_read(data: EvaluationSet, windows: range, context: int) -> int:
    """Count the tokens of the short windows, each as often as it is read: at most about twice those of ``windows``."""
    return int(_cut(data, windows, context)[1].sum())


def _cut(data: EvaluationSet, windows: range, context: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return where each short window starts, its length, and whether it is the first of its window."""
    bounds = data.offsets[windows.start : windows.stop + 1]
    stride = context // 2
    count = 1 + np.maximum(0, -((context - np.diff(bounds)) // stride))
    number = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
    starts = np.repeat(bounds[:-1], count) + number * stride
    return starts, np.minimum(starts + context, np.repeat(bounds[1:], count)) - starts, number == 0
