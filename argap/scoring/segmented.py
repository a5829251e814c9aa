"""Tokenize the evaluation text for every model of a command, and bring their runs to one unit."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from argap.evaluation.windows import SEQ_LEN, EvaluationSet, open_evaluation_set
from argap.files.resumable import check_resumable, folder_name
from argap.records import EvaluationRecord, EvaluationSpec, RunIdentity, ids_of
from argap.scoring.sources import Source
from argap.text.tokenizer import Tokenizer
from argap.tokens.aligned import SegmentedText, open_segmented_text, open_text_of_runs
from argap.tokens.labels import Labels
from argap.tokens.runs import OWN, Run, check_text
from argap.tokens.segment_runs import align_run, aligned_identity


class ModelsText(NamedTuple):
    """The text as each model reads it."""

    sets: tuple[EvaluationSet, ...]
    """One per tokenizer, the reference's first."""
    segmented: SegmentedText | None
    """None if all models share a tokenizer and are compared token by token."""

    def number(self, source: Source) -> int:
        """Return the number of a model's tokenizer."""
        known = [each.tokenizer_fingerprint for each in self.sets]
        return known.index(source.tokenizer.fingerprint)

    def of(self, source: Source) -> EvaluationSet:
        """Return the text in the tokens of a model."""
        return self.sets[self.number(source)]

    @property
    def record(self) -> EvaluationRecord:
        """Return the evaluation set that is compared."""
        return self.sets[0].record if self.segmented is None else self.segmented.record

    def labels(self, portions: Iterable[Labels]) -> Iterator[Labels]:
        """Yield the labels of the reference's tokens, with their segments if there are any."""
        start = 0
        for each in portions:
            yield each if self.segmented is None else self.segmented.labels(each, start)
            start += len(each.window)

    def folder(self, source: Source, out: Path) -> Path:
        """Return the folder of a model's run over its own tokens, below the folder ``out`` of the result."""
        return (out if self.segmented is None else out / OWN) / folder_name(source.name)

    def check_folders(self, source: Source, identity: RunIdentity, out: Path, *, overwrite: bool) -> None:
        """Raise `MismatchError` if a folder for a model's run holds a run of another ``identity``.

        Raises `ArgapError` if it holds something else.
        """
        if source.finished is None:
            check_resumable(self.folder(source, out), identity, overwrite=overwrite)
        if self.segmented is not None:
            aligned = aligned_identity(identity, self.segmented)
            check_resumable(out / folder_name(source.name), aligned, overwrite=overwrite)

    def aligned(self, runs: Sequence[Run], sources: Sequence[Source], out: Path, *, overwrite: bool) -> list[Run]:
        """Return the finished runs of ``sources`` in the unit of comparison.

        With segments these are runs of segments, written to ``out``, and each tokenizer is saved with its run.
        """
        if self.segmented is None:
            return list(runs)
        aligned = []
        for run, source in zip(runs, sources, strict=True):
            if source.finished is None:
                source.tokenizer.save(run.folder)
            folder = out / folder_name(source.name)
            aligned.append(align_run(run, self.segmented, self.number(source), folder, overwrite=overwrite))
        return aligned


def open_models_text(
    spec: EvaluationSpec, tokenizer: Tokenizer, reference: Source, models: Sequence[Source]
) -> ModelsText:
    """Return the text of ``spec``, cut into segments if models have other tokenizers than ``reference``.

    A finished run as the reference fixes the windows. Raises what `argap.evaluation.windows.open_evaluation_set`,
    `argap.tokens.aligned.open_segmented_text` and `argap.tokens.aligned.open_text_of_runs` raise.
    """
    known = {each.tokenizer.fingerprint: each.tokenizer for each in models}
    others = [each for fingerprint, each in known.items() if fingerprint != tokenizer.fingerprint]
    if not others:
        data = open_evaluation_set(spec, tokenizer)
        if reference.finished is not None:
            check_text(reference.finished, data.record)
        return ModelsText((data,), None)
    tokenizers = [tokenizer, *others]
    if reference.finished is not None:
        segmented = open_text_of_runs(spec, tokenizers, {0: reference.finished})
    else:
        limits = [_longest(spec, each, (reference, *models)) for each in tokenizers]
        segmented = open_segmented_text(spec, tokenizers, limits)
    return ModelsText(segmented.sets, segmented)


def fitting(spec: EvaluationSpec, sources: Sequence[Source]) -> EvaluationSpec:
    """Return ``spec`` with windows that every model takes, if nobody said how long they are.

    Windows of several tokenizers are cut to each one's models (`open_models_text`). Documents that are cut to one token
    more than a window of their own, as a BOS takes the place of one, lose that token: it would be a window by itself,
    in which nothing is scored.
    """
    if any(each.finished for each in sources):
        return spec
    longest = _longest(spec, sources[0].tokenizer, sources)
    if spec.packing == "document" and spec.limit_document_tokens == longest + 1 > 2:
        spec = replace(spec, limit_document_tokens=longest)
    if spec.seq_len is not None or len({each.tokenizer.fingerprint for each in sources}) > 1:
        return spec
    return replace(spec, seq_len=longest) if 1 < longest < SEQ_LEN else spec


def _longest(spec: EvaluationSpec, tokenizer: Tokenizer, sources: Sequence[Source]) -> int:
    """Return the longest window that every model of a tokenizer takes, BOS not counted; at most ``seq_len``."""
    limits = [
        each.longest - len(ids_of(each.bos))
        for each in sources
        if each.longest is not None and each.tokenizer.fingerprint == tokenizer.fingerprint
    ]
    return min([spec.seq_len or SEQ_LEN, *limits])
