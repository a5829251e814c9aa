"""Align the evaluation text across tokenizers: windows of the same bytes, in the tokens of each.

Legend: T tokenizers, the reference's first; N tokens of the reference's; S segments, W windows, D documents.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import msgspec
import numpy as np

from argap.corpus import Corpus, say_remarks
from argap.corpus.document import TextDocument, TokenShard
from argap.corpus.kept import cut, kept_of
from argap.errors import ArgapError, MismatchError
from argap.evaluation.documents import Documents, build_documents
from argap.evaluation.segments import (
    Segments,
    TokenizedDocument,
    cut_windows,
    find_segments,
    tokenized,
    up_to_common_end,
)
from argap.evaluation.windows import PACKING, SEQ_LEN, EvaluationSet, check_no_separator, corpora_of, separator_of
from argap.records import EvaluationRecord, EvaluationSpec
from argap.runtime.progress import say
from argap.runtime.threads import gathered
from argap.text.tokenizer import Tokenizer
from argap.tokens.labels import Labels
from argap.tokens.runs import Run, read_token_ids, read_window_offsets

BATCH = 256
"""Documents per tokenization batch."""


@dataclass(frozen=True)
class SegmentedText:
    """A text in the tokens of several tokenizers, with the segments that they share."""

    sets: tuple[EvaluationSet, ...]
    """``[T]``: the same windows, byte for byte."""
    segments: Segments
    """The segments of all windows."""

    @cached_property
    def segment_bytes(self) -> np.ndarray:
        """int32 ``[N]``: `argap.tokens.labels.Labels.segment_bytes`."""
        starts, ends = self.segments.tokens[0][:-1], self.segments.tokens[0][1:]
        values = np.repeat(np.where(self.segments.scored, 0, -1), ends - starts).astype(np.int32)
        values[ends - 1] = np.where(self.segments.scored, self.segments.bytes, -1)
        return values

    @cached_property
    def record(self) -> EvaluationRecord:
        """The reference's tokens and windows; ``scored`` counts bytes, and the fingerprint covers the segments."""
        own = self.sets[0]
        digest = hashlib.sha256(own.fingerprint.encode())
        digest.update(self.segment_bytes.astype("<i4").tobytes())
        scored = int(self.segments.bytes[self.segments.scored].sum())
        return msgspec.structs.replace(own.record, fingerprint=digest.hexdigest(), scored=scored, unit="byte")

    def align(self, logprob: np.ndarray, tokenizer: int) -> np.ndarray:
        """Sum token log-probs of tokenizer number ``tokenizer`` over segments.

        Returns float32 ``[N]``: each segment's sum at its last reference token, NaN elsewhere.
        """
        aligned = np.full(len(self.segment_bytes), np.nan, dtype=np.float32)
        aligned[self.segments.tokens[0][1:] - 1] = self.segments.sums(logprob, tokenizer)
        return aligned

    def labels(self, labels: Labels, start: int = 0) -> Labels:
        """Add the segments to labels of the reference's tokens, which begin at token ``start``."""
        record = msgspec.structs.replace(labels.record, evaluation=self.record)
        return replace(labels, record=record, segment_bytes=self.segment_bytes[start : start + len(labels.window)])


def open_segmented_text(spec: EvaluationSpec, tokenizers: Sequence[Tokenizer], limits: Sequence[int]) -> SegmentedText:
    """Read the text of ``spec`` and cut windows of at most ``limits[t]`` tokens in each of ``tokenizers``.

    The reference's tokenizer comes first. ``limit_tokens`` counts its tokens, with ``document`` packing only up to the
    last common end in each document; the text ends with the last segment within the limit. Raises `ArgapError` for
    token shards (they have no text), for a tokenizer without EOS under ``packed``, and if nothing can be scored;
    `MismatchError` for text that cannot be divided (`tokenized`, `cut_windows`).
    """
    text = _read(spec, tokenizers, to_common_ends=True)
    segments = find_segments(text.documents, separated=text.separators is not None)
    if spec.limit_tokens is not None:
        segments = segments.first(int(np.searchsorted(segments.tokens[0], spec.limit_tokens, side="right")) - 1)
    if not len(segments):
        raise ArgapError(f"{', '.join(spec.data)}: nothing to score there; {_why_nothing(text, tokenizers)}")
    windows = cut_windows(segments, limits, within_documents=text.separators is None, names=text.names)
    return _segmented(text, tokenizers, segments, windows, limits)


def open_text_of_runs(spec: EvaluationSpec, tokenizers: Sequence[Tokenizer], runs: Mapping[int, Run]) -> SegmentedText:
    """Read the text of ``spec`` in the windows of finished ``runs``, one run for each tokenizer that has any.

    The last window ends at the last common end that all runs and ``limit_tokens`` reach. Raises as
    `open_segmented_text`, and `MismatchError` for a run whose tokens differ from the text's or outnumber them, and for
    windows that do not hold the same bytes.
    """
    tokens = {t: read_token_ids(run) for t, run in runs.items()}
    text, counted, unlike = _read_as(runs, spec, tokenizers, tokens)
    if unlike is not None:
        t, what = unlike
        scored = {run.folder: ", ".join(run.record.source.data) for run in runs.values()}
        if len(set(scored.values())) > 1:
            what += f" ({'; '.join(f'{folder} scored {data}' for folder, data in scored.items())})"
        cut_alike = text.separators is None or spec.limit_document_tokens is not None
        raise MismatchError(
            f"{runs[t].folder}: {what}; expected the text that was scored"
            f"{', its documents cut for the same tokenizers' if cut_alike else ''}; score the checkpoints together, "
            "`argap score CKPT --ref CKPT`"
        )
    segments = find_segments(text.documents, separated=text.separators is not None)
    offsets = {t: read_window_offsets(run) for t, run in runs.items()}
    reached = [int(np.searchsorted(segments.tokens[t], each[-1], side="right")) - 1 for t, each in offsets.items()]
    if spec.limit_tokens is not None:
        reached.append(int(np.searchsorted(segments.tokens[counted], spec.limit_tokens, side="right")) - 1)
    segments = segments.first(min(reached))
    windows = _common_windows(runs, offsets, segments)
    of_runs = {t: run.record.evaluation.seq_len for t, run in runs.items()}
    limits = [of_runs.get(t, spec.seq_len or SEQ_LEN) for t in range(len(tokenizers))]
    return _segmented(text, tokenizers, segments, windows, limits)


def _read_as(
    runs: Mapping[int, Run], spec: EvaluationSpec, tokenizers: Sequence[Tokenizer], tokens: Mapping[int, np.ndarray]
) -> "tuple[_Text, int, tuple[int, str] | None]":
    """Read the text of ``spec`` as ``runs`` did, whose ``tokens`` are given.

    Runs that were scored together end each document at a common end, and their limits count the tokens of the reference
    of that time, which may be any of them. Returns the text in which the limits explain where the runs end, else the
    first that agrees with them, and the number of the tokenizer that limits count; if none agrees, the first and how it
    differs.
    """
    limited = spec.limit_tokens is not None or spec.limit_document_tokens is not None
    at_ends = (False, True) if spec.packing == "document" else (False,)
    found: list[tuple[_Text, int]] = []
    unlike: list[tuple[_Text, int, tuple[int, str]]] = []
    for counted in sorted(range(len(tokenizers)), key=lambda t: t not in runs) if limited else (0,):
        if found and counted not in runs:
            break
        for to_common_ends in at_ends:
            text = _read(spec, tokenizers, to_common_ends=to_common_ends, counted=counted)
            if (difference := _unlike(text, tokens, spec, counted)) is not None:
                unlike.append((text, counted, difference))
                continue
            within = spec.limit_tokens is None or len(tokens.get(counted, ())) <= spec.limit_tokens
            if not limited or (within and all(len(own) <= sum(text.lengths(t)) for t, own in tokens.items())):
                return text, counted, None
            found.append((text, counted))
    return (*found[0], None) if found else unlike[0]


def _common_windows(runs: Mapping[int, Run], offsets: Mapping[int, np.ndarray], segments: Segments) -> np.ndarray:
    """Return the first segment of each window of ``runs``, and the number of segments, int64 ``[W + 1]``.

    Raises `MismatchError` if the windows do not hold the same bytes.
    """
    windows: list[np.ndarray] = []
    first, *_ = runs.values()
    for t, run in runs.items():
        ends = segments.tokens[t]
        starts = offsets[t][offsets[t] < ends[-1]]
        windows.append(np.searchsorted(ends, starts))
        inside = ends[windows[-1]] != starts
        if inside.any() or not np.array_equal(windows[-1], windows[0]):
            at = int(np.argmax(inside))
            what = f"window {at} begins inside a segment" if inside.any() else f"others than those of {first.folder}"
            raise MismatchError(
                f"{run.folder}: its windows do not hold the same bytes for every tokenizer ({what}); score the "
                "checkpoints together, `argap score CKPT --ref CKPT`, which cuts windows for all of them, or make each "
                "run with --packing document and windows as long as the documents"
            )
    return np.append(windows[0], len(segments))


class _Text(NamedTuple):
    """Documents in the tokens of every tokenizer, each followed by a separator if ``separators`` is set."""

    metadata: list[TextDocument]
    documents: list[Sequence[TokenizedDocument]]
    separators: list[int] | None
    corpora: Sequence[Corpus]
    keep: tuple[str, ...]

    @property
    def names(self) -> list[str]:
        return [document.source for document in self.metadata]

    def lengths(self, tokenizer: int) -> list[int]:
        """Return the lengths of the documents in tokens."""
        return [len(document[tokenizer].ids) for document in self.documents]

    def tokens(self, tokenizer: int) -> np.ndarray:
        """Concatenate the tokens of all documents, int32."""
        return np.concatenate([document[tokenizer].ids for document in self.documents])


def _read(
    spec: EvaluationSpec, tokenizers: Sequence[Tokenizer], *, to_common_ends: bool = False, counted: int = 0
) -> _Text:
    """Read the documents of ``spec`` that have reference tokens, up to ``limit_tokens``.

    ``to_common_ends``: cut documents without a separator at the last common end of their tokens. ``counted``: number of
    the tokenizer whose tokens the limits count.
    """
    separators = None if (spec.packing or PACKING) == "document" else list(map(separator_of, tokenizers))
    corpora = corpora_of(spec)
    text = _Text([], [], separators, corpora, spec.keep)
    taken = 0
    for batch in gathered(_texts(corpora), BATCH, lambda document: 1):
        names = [document.source for document in batch]
        in_tokens = zip(*(tokenized([d.text for d in batch], each, names) for each in tokenizers), strict=True)
        of_batch = zip(batch, in_tokens, kept_of(batch, tokenizers[0]), strict=True)
        for document, each, kept in of_batch:
            if spec.limit_document_tokens is not None:
                each = up_to_common_end(each, spec.limit_document_tokens, counted)
            if not len(each[0].ids):
                continue
            text.metadata.append(replace(document, kept=kept))
            if separators is not None:
                # Text beyond the limit is left out, so the EOS follows the last token kept.
                end = len(document.text.encode()) if spec.limit_document_tokens is None else int(each[0].ends[-1])
                each = _with_separators(each, separators, end, document)
            elif to_common_ends:
                each = up_to_common_end(each)
            text.documents.append(each)
            taken += len(each[counted].ids)
            if spec.limit_tokens is not None and taken >= spec.limit_tokens:
                say_remarks(corpora)
                return text
    say_remarks(corpora)
    if not text.documents:
        raise ArgapError(f"{', '.join(spec.data)}: nothing to score there; expected a document of at least two tokens")
    return text


def _unlike(
    text: _Text, tokens: Mapping[int, np.ndarray], spec: EvaluationSpec, counted: int
) -> tuple[int, str] | None:
    """Find the first run whose tokens differ from the text's, and describe the difference.

    ``tokens``: by tokenizer number. Returns None if tokens agree as far as both go, and no run is longer than a text
    read without limits.
    """
    whole = spec.limit_document_tokens is None
    whole &= spec.limit_tokens is None or sum(text.lengths(counted)) < spec.limit_tokens
    for t, own in tokens.items():
        of_text = text.tokens(t)
        both = min(len(own), len(of_text))
        differing = own[:both] != of_text[:both]
        if differing.any():
            document = np.searchsorted(np.cumsum(text.lengths(t)), np.argmax(differing), side="right")
            return t, f"other tokens than those of the text as it is now, first in {text.names[document]}"
        if whole and len(own) > both:
            return t, f"{len(own):,} tokens, and the text as it is now has {both:,}"
    return None


def _texts(corpora: Iterable[Corpus]) -> Iterator[TextDocument]:
    for corpus in corpora:
        for item in corpus:
            if isinstance(item, TokenShard):
                raise ArgapError(f"{item.path}: tokens of one tokenizer; expected text, which every tokenizer can cut")
            yield item


def _with_separators(
    in_tokens: Sequence[TokenizedDocument], separators: Sequence[int], end: int, document: TextDocument
) -> list[TokenizedDocument]:
    """Append each tokenizer's EOS, which ends one byte after ``end``, the end of the document's text."""
    for each, separator in zip(in_tokens, separators, strict=True):
        check_no_separator(each.ids, separator, document.source)
    return [
        TokenizedDocument(
            np.append(each.ids, np.int32(separator)), np.append(each.ends, end + 1), np.append(each.unknown, False)
        )
        for each, separator in zip(in_tokens, separators, strict=True)
    ]


def _segmented(
    text: _Text, tokenizers: Sequence[Tokenizer], segments: Segments, windows: np.ndarray, limits: Sequence[int]
) -> SegmentedText:
    """Build each tokenizer's evaluation set from the ``windows [W + 1]`` of segments."""
    segments = segments.in_windows(windows)
    if not segments.scored.any():
        raise ArgapError(f"{text.names[0]}: nothing to score there; {_why_nothing(text, tokenizers)}")
    sets = []
    for t, tokenizer in enumerate(tokenizers):
        stop = int(segments.tokens[t][-1])
        lengths = text.lengths(t)
        sets.append(
            EvaluationSet(
                tokens=text.tokens(t)[:stop],
                offsets=segments.tokens[t][windows],
                document_ends=np.minimum(np.cumsum(lengths), stop),
                domains=[document.domain for document in text.metadata],
                sources=text.names,
                seq_len=limits[t],
                packing="document" if text.separators is None else "packed",
                eos=None if text.separators is None else text.separators[t],
                tokenizer=tokenizer.name,
                tokenizer_fingerprint=tokenizer.fingerprint,
                kept=_kept(text, lengths, stop) if t == 0 and text.keep else None,
            )
        )
    separators = 0 if text.separators is None else int((sets[0].tokens == text.separators[0]).sum())
    whole, scored = int(segments.bytes.sum()) - separators, int(segments.bytes[segments.scored].sum())
    say(
        f"{len(tokenizers)} tokenizers: compared on {segments.scored.sum():,} segments, {scored:,} of {whole:,} bytes; "
        "the others begin a window, stand before an EOS, or hold text that a tokenizer does not know"
    )
    return SegmentedText(tuple(sets), segments)


def _kept(text: _Text, lengths: Sequence[int], tokens: int) -> Documents:
    """Return the kept columns for the first ``tokens`` reference tokens of documents of ``lengths [D]``."""
    taken = np.diff(np.minimum(np.cumsum(lengths), tokens), prepend=0)
    documents = [
        replace(document, kept=cut(document.kept, int(size)))
        for document, size in zip(text.metadata, taken, strict=True)
    ]
    return build_documents(documents, taken, text.corpora, text.keep)


def _why_nothing(text: _Text, tokenizers: Sequence[Tokenizer]) -> str:
    """Explain why no segment can be scored: the first token that stands for unknown text, or short documents."""
    for document, in_tokens in zip(text.metadata, text.documents, strict=True):
        for tokenizer, each in zip(tokenizers, in_tokens, strict=True):
            if each.unknown.any():
                at = int(np.argmax(each.unknown))
                first, last = int(each.ends[at - 1]) if at else 0, int(each.ends[at])
                excerpt = document.text.encode()[first:last][:40].decode(errors="replace")
                return (
                    f"{tokenizer.name} does not know bytes {first:,} to {last:,} of {document.source} ({excerpt!r}), "
                    "and little else is left; expected a tokenizer of this language"
                )
    return "expected a document of at least two tokens of every tokenizer"
