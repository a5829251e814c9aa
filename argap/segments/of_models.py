"""The evaluation text in the tokens of every model of a command, and their runs brought to one unit."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from argap.evaluation import SEQ_LEN, EvaluationSet, open_evaluation_set
from argap.labels import Labels
from argap.records import EvaluationSpec, RunIdentity
from argap.resumable import check_resumable, folder_name
from argap.runs import Run, check_same_set
from argap.segments.evaluation import SegmentedText, open_segmented_text, open_text_of_runs
from argap.segments.runs import align_run, aligned_identity
from argap.targets import CheckpointTarget, LiveTarget, RunTarget, ScoredTarget, Target
from argap.tokenizer import Tokenizer


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

    def labels(self, labels: Labels) -> Labels:
        """The labels of the reference's tokens, with the segments that they are in where there are any."""
        return labels if self.segmented is None else self.segmented.labels(labels)

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
    spec: EvaluationSpec, tokenizer: Tokenizer, target: Target, models: Sequence[ScoredTarget]
) -> ModelsText:
    """The text of ``spec``, cut into segments where models have other tokenizers than the reference ``target``.

    A reference that is a finished run has its windows. Raises what `argap.evaluation.open_evaluation_set`,
    `argap.segments.evaluation.open_segmented_text` and `argap.segments.evaluation.open_text_of_runs` raise.
    """
    others = other_tokenizers(tokenizer, models)
    if not others:
        data = open_evaluation_set(spec, tokenizer)
        if isinstance(target, RunTarget):
            check_same_set(target.run, data.record, "the text is now")
        return ModelsText((data,), None)
    tokenizers = [tokenizer, *others]
    if isinstance(target, RunTarget):
        segmented = open_text_of_runs(spec, tokenizers, {0: target.run})
    else:
        limits = [_longest(spec, each, (target, *models)) for each in tokenizers]
        segmented = open_segmented_text(spec, tokenizers, limits)
    return ModelsText(segmented.sets, segmented)


def _longest(spec: EvaluationSpec, tokenizer: Tokenizer, targets: Sequence[ScoredTarget]) -> int:
    """Tokens of a window that every model of a tokenizer takes, at most ``seq_len``."""
    own = [each for each in targets if each.tokenizer.fingerprint == tokenizer.fingerprint]
    limits = [each.checkpoint.longest for each in own if isinstance(each, CheckpointTarget)]
    limits += [each.live.longest for each in own if isinstance(each, LiveTarget)]
    return min([spec.seq_len or SEQ_LEN, *(limit for limit in limits if limit is not None)])
