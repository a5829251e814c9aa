"""The evaluation text in the tokens of every model of a command, and their runs brought to one unit."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from argap.evaluation.windows import SEQ_LEN, EvaluationSet, open_evaluation_set
from argap.files.resumable import check_resumable, folder_name
from argap.records import EvaluationRecord, EvaluationSpec, RunIdentity
from argap.scoring.per_model import ModelSettings
from argap.scoring.sources import LiveTarget, RunTarget, ScoredTarget, ServerTarget, Target
from argap.text.tokenizer import Tokenizer
from argap.tokens.aligned import SegmentedText, open_segmented_text, open_text_of_runs
from argap.tokens.labels import Labels
from argap.tokens.runs import Run, check_text
from argap.tokens.segment_runs import align_run, aligned_identity


class ModelsText(NamedTuple):
    """The text as each model reads it."""

    sets: tuple[EvaluationSet, ...]
    """One for each tokenizer, the reference's first."""
    segmented: SegmentedText | None
    """None for models of one tokenizer, which are compared token by token."""

    def number(self, target: Target) -> int:
        """The number of the target's tokenizer."""
        known = [each.tokenizer_fingerprint for each in self.sets]
        return known.index(target.tokenizer.fingerprint)

    def of(self, target: Target) -> EvaluationSet:
        """The text in the tokens of a model."""
        return self.sets[self.number(target)]

    @property
    def record(self) -> EvaluationRecord:
        """The evaluation set that is compared."""
        return self.sets[0].record if self.segmented is None else self.segmented.record

    def labels(self, portions: Iterable[Labels]) -> Iterator[Labels]:
        """The labels of the reference's tokens, with the segments that they are in where there are any."""
        start = 0
        for each in portions:
            yield each if self.segmented is None else self.segmented.labels(each, start)
            start += len(each.window)

    def check_aligned(self, target: Target, identity: RunIdentity, out: Path, *, overwrite: bool) -> None:
        """Raise what `aligned` raises for a folder of ``out`` that holds another run than that of ``identity``."""
        if self.segmented is not None:
            identity = aligned_identity(identity, self.segmented)
            check_resumable(out / folder_name(target.name), identity, overwrite=overwrite)

    def aligned(self, runs: Sequence[Run], targets: Sequence[Target], out: Path, *, overwrite: bool) -> list[Run]:
        """Finished runs of ``targets`` as they are compared: as runs of segments, written to ``out``, where there are
        any. The tokenizer of each is saved with its run."""
        if self.segmented is None:
            return list(runs)
        aligned = []
        for run, target in zip(runs, targets, strict=True):
            if not isinstance(target, RunTarget):
                target.tokenizer.save(run.folder)
            folder = out / folder_name(target.name)
            aligned.append(align_run(run, self.segmented, self.number(target), folder, overwrite=overwrite))
        return aligned


def other_tokenizers(tokenizer: Tokenizer, models: Sequence[ScoredTarget]) -> list[Tokenizer]:
    """Those of ``models`` that differ from ``tokenizer``, each once."""
    known = {each.tokenizer.fingerprint: each.tokenizer for each in models}
    return [each for fingerprint, each in known.items() if fingerprint != tokenizer.fingerprint]


def open_models_text(
    spec: EvaluationSpec,
    tokenizer: Tokenizer,
    target: Target,
    models: Sequence[ScoredTarget],
    settings: ModelSettings,
) -> ModelsText:
    """The text of ``spec``, cut into segments where models have other tokenizers than the reference ``target``.

    ``settings``: of models that are given a BOS, which takes a token of their longest window. A reference that is a
    finished run has its windows. Raises what `argap.evaluation.windows.open_evaluation_set`,
    `argap.tokens.aligned.open_segmented_text` and `argap.tokens.aligned.open_text_of_runs` raise.
    """
    others = other_tokenizers(tokenizer, models)
    if not others:
        data = open_evaluation_set(spec, tokenizer)
        if isinstance(target, RunTarget):
            check_text(target.run, data.record)
        return ModelsText((data,), None)
    tokenizers = [tokenizer, *others]
    if isinstance(target, RunTarget):
        segmented = open_text_of_runs(spec, tokenizers, {0: target.run})
    else:
        limits = [_longest(spec, each, (target, *models), settings) for each in tokenizers]
        segmented = open_segmented_text(spec, tokenizers, limits)
    return ModelsText(segmented.sets, segmented)


def _longest(
    spec: EvaluationSpec, tokenizer: Tokenizer, targets: Sequence[ScoredTarget], settings: ModelSettings
) -> int:
    """Tokens of a window that every model of a tokenizer takes, at most ``seq_len``."""
    limits = [spec.seq_len or SEQ_LEN]
    for each in targets:
        if isinstance(each, ServerTarget) or each.tokenizer.fingerprint != tokenizer.fingerprint:
            continue
        longest = (each.live if isinstance(each, LiveTarget) else each.checkpoint).longest
        if longest is not None:
            limits.append(longest - (settings.bos.of(each.name) is not None))
    return min(limits)
