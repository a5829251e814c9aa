"""The whole path: checkpoints and a reference in, ``gap.json`` and its parts out.

Everything that can be refused is refused before any text is read or any model runs.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from argap.bigram_index.store import check_tokenizer, open_index
from argap.checkpoint import check_length, check_loadable, max_positions, read_config
from argap.comparison import threshold_of, write_gap
from argap.errors import MismatchError
from argap.evaluation import SEQ_LEN, EvaluationSet, check_spec, open_evaluation_set
from argap.labels import index_record, label, write_labels
from argap.lock import one_writer
from argap.progress import say
from argap.records import EvaluationSpec, Gap, SourceRecord, as_json, read_gap
from argap.references import absolute
from argap.resumable import check_resumable, folder_name
from argap.runs import OWN, Run, check_same_set
from argap.segments.evaluation import SegmentedText, open_segmented_text, open_text_of_runs
from argap.segments.runs import align_run, aligned_identity, check_tokens
from argap.summary import check_base
from argap.targets import CheckpointTarget, RunTarget, Target, distinct, find_reference_target, find_target
from argap.threshold import PAPER_THRESHOLD, PAPER_TOKENS, Threshold, resolve_threshold
from argap.tokenizer import Tokenizer, load_tokenizer

HELD_OUT = "stdlib:heldout"

if TYPE_CHECKING:
    from argap.parallel import Parallel
    from argap.scorer import ScoreOptions
    from argap.slice_library import SliceSpec


@one_writer("out")
def score_models(
    checkpoints: Sequence[str],
    reference: str,
    out: Path,
    *,
    spec: EvaluationSpec = EvaluationSpec(),  # noqa: B008  (frozen)
    index: str | None = None,
    threshold: Threshold = PAPER_THRESHOLD,
    options: "ScoreOptions | None" = None,
    base: str | None = None,
    slices: "Sequence[SliceSpec] | None" = None,
    overwrite: bool = False,
    parallel: "Parallel | None" = None,
) -> Gap:
    """Score each checkpoint and the reference once, write the gap of each to ``out``, and return it.

    ``spec`` and ``index`` are completed by what is recorded with the reference. Without any text, that is the standard
    library's held-out modules; without any index, the hits are all repeated bigrams. ``slices``: as
    `argap.comparison.write_gap` takes them, checked before any model runs. With ``parallel``, all its processes call
    this with the same arguments and share the scoring; the main one writes the result.
    """
    from argap.scorer import ScoreOptions, check_identity, score

    options = ScoreOptions() if options is None else options
    resolve_threshold(threshold, PAPER_TOKENS)  # a bad one is refused before any work
    target = find_reference_target(reference)
    if isinstance(target, RunTarget):
        check_tokens([target.run])
    spec = spec.over(target.recorded)
    index = index or target.recorded.index
    if not spec.data:
        say(f"no text given: scoring the held-out modules of Python's standard library ({HELD_OUT})")
        spec = msgspec.structs.replace(spec, data=(HELD_OUT,))
    check_spec(spec)
    models = distinct([find_target(checkpoint) for checkpoint in checkpoints], target)
    if base is not None:
        check_base(base, [target.name, *(model.name for model in models)])
    opened = None if index is None else open_index(index)
    threshold_of(threshold, opened and index_record(opened))
    tokenizer = load_tokenizer(spec.tokenizer) if spec.tokenizer else target.tokenizer
    _check_reference(tokenizer, target)
    if opened is not None:
        check_tokenizer(opened, tokenizer.name, tokenizer.fingerprint)
    to_score = [each for each in (target, *models) if isinstance(each, CheckpointTarget)]
    for each in to_score:
        check_loadable(each.checkpoint, options.backend, trust_remote_code=options.trust_remote_code)
    text = _open_text(spec, tokenizer, target, models)
    runs_folder = out if text.segmented is None else out / OWN
    for each in to_score:
        data = text.of(each)
        check_length(each.checkpoint, longest=int(np.diff(data.offsets).max()))
        identity = check_identity(
            each.checkpoint, data, runs_folder / folder_name(each.name), options, overwrite, parallel
        )
        if text.segmented is not None:
            identity = aligned_identity(identity, text.segmented)
            check_resumable(out / folder_name(each.name), as_json(identity), overwrite=overwrite)
    labels = label(text.of(target), opened)
    if text.segmented is not None:
        labels = text.segmented.labels(labels)
    if slices:
        from argap.token_slices import check_slices

        names = [target.name, *(model.name for model in models)]
        check_slices(slices, names, labels.record.evaluation, labels.further_columns)
    source = SourceRecord(
        **{**_fields(spec), "data": tuple(map(absolute, spec.data)), "index": index and absolute(index)}
    )
    runs: list[Run] = []
    for each in (target, *models):
        if isinstance(each, RunTarget):
            runs.append(each.run)
            continue
        folder = runs_folder / folder_name(each.name)
        runs.append(
            score(
                each.checkpoint,
                text.of(each),
                folder,
                model_name=each.name,
                source=source,
                options=options,
                overwrite=overwrite,
                parallel=parallel,
            )
        )
        if text.segmented is not None:
            each.tokenizer.save(folder)  # the labels have the reference's alone
    if parallel is None or parallel.is_main:
        if text.segmented is not None:
            runs = [
                align_run(run, text.segmented, text.number(each), out / folder_name(each.name), overwrite=overwrite)
                for run, each in zip(runs, (target, *models), strict=True)
            ]
        write_labels(labels, tokenizer, out / "labels")  # not before the folder has taken every run
        write_gap(runs, labels, tokenizer, out, threshold=threshold, base=base, slices=slices)
    if parallel is not None:
        parallel.wait()
    return read_gap(out)


class _Text(NamedTuple):
    """The evaluation text in the tokens of every model."""

    sets: tuple[EvaluationSet, ...]
    """One for each tokenizer, the reference's first."""
    segmented: SegmentedText | None
    """None for models of one tokenizer."""

    def number(self, target: Target) -> int:
        """The number of the target's tokenizer."""
        known = [each.tokenizer_fingerprint for each in self.sets]
        return known.index(target.tokenizer.fingerprint)

    def of(self, target: Target) -> EvaluationSet:
        return self.sets[self.number(target)]


def _open_text(spec: EvaluationSpec, tokenizer: Tokenizer, target: Target, models: Sequence[CheckpointTarget]) -> _Text:
    """The text of ``spec``; cut into segments where models have other tokenizers than the reference ``target``."""
    of_models = {each.tokenizer.fingerprint: each.tokenizer for each in models}
    others = [each for fingerprint, each in of_models.items() if fingerprint != tokenizer.fingerprint]
    if not others:
        data = open_evaluation_set(spec, tokenizer)
        if isinstance(target, RunTarget):
            check_same_set(target.run, data.record, "the text is now")
        return _Text((data,), None)
    tokenizers = [tokenizer, *others]
    if isinstance(target, RunTarget):
        segmented = open_text_of_runs(spec, tokenizers, {0: target.run})
    else:
        limits = [_longest(spec, each, (target, *models)) for each in tokenizers]
        segmented = open_segmented_text(spec, tokenizers, limits)
    return _Text(segmented.sets, segmented)


def _longest(spec: EvaluationSpec, tokenizer: Tokenizer, targets: Sequence[CheckpointTarget]) -> int:
    """Tokens of a window that every model of a tokenizer takes, at most ``seq_len``."""
    own = [each.checkpoint for each in targets if each.tokenizer.fingerprint == tokenizer.fingerprint]
    limits = [max_positions(read_config(checkpoint)) for checkpoint in own]
    return min([spec.seq_len or SEQ_LEN, *(limit for limit in limits if limit is not None)])


def _check_reference(tokenizer: Tokenizer, reference: Target) -> None:
    """Raise `MismatchError` where the text is to be cut by another tokenizer than the reference's."""
    own = reference.tokenizer.fingerprint
    if own != tokenizer.fingerprint:
        raise MismatchError(
            f"{reference.name} and {tokenizer.name}: their tokenizers differ ({own[:12]} and "
            f"{tokenizer.fingerprint[:12]}); expected the reference's own, which cuts the text and counts its bigrams"
        )


def _fields(spec: EvaluationSpec) -> dict[str, Any]:
    return msgspec.structs.asdict(spec)
