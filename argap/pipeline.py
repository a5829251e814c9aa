"""The whole path: checkpoints and a reference in, ``gap.json`` and its parts out.

Everything that can be refused is refused before any text is read or any model runs.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from argap.bigram_index.store import check_tokenizer, open_index
from argap.checkpoint import check_length, check_loadable
from argap.comparison import check_same_set, threshold_of, write_gap
from argap.errors import MismatchError
from argap.evaluation import EvaluationSet, check_spec, open_evaluation_set
from argap.labels import index_record, label, write_labels
from argap.lock import one_writer
from argap.progress import say
from argap.records import EvaluationSpec, Gap, SourceRecord, read_gap
from argap.references import absolute
from argap.resumable import folder_name
from argap.runs import Run
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
    _check_tokenizers(tokenizer, target, models)
    if opened is not None:
        check_tokenizer(opened, tokenizer.name, tokenizer.fingerprint)
    to_score = [each for each in (target, *models) if isinstance(each, CheckpointTarget)]
    for each in to_score:
        check_loadable(each.checkpoint, options.backend, trust_remote_code=options.trust_remote_code)
    data = open_evaluation_set(spec, tokenizer)
    if isinstance(target, RunTarget):
        check_same_set(target.run, data.record, "the text is now")
    for each in to_score:
        check_length(each.checkpoint, longest=_longest(data))
        check_identity(each.checkpoint, data, out / folder_name(each.name), options, overwrite, parallel)
    labels = label(data, opened)
    if slices:
        from argap.token_slices import check_slices

        check_slices(slices, [target.name, *(model.name for model in models)], data.record, labels.kept_types)
    source = SourceRecord(
        **{**_fields(spec), "data": tuple(map(absolute, spec.data)), "index": index and absolute(index)}
    )
    runs: list[Run] = []
    for each in (target, *models):
        if isinstance(each, RunTarget):
            runs.append(each.run)
            continue
        folder = out / folder_name(each.name)
        runs.append(
            score(
                each.checkpoint,
                data,
                folder,
                model_name=each.name,
                source=source,
                options=options,
                overwrite=overwrite,
                parallel=parallel,
            )
        )
    if parallel is None or parallel.is_main:
        write_labels(labels, tokenizer, out / "labels")  # not before the folder has taken every run
        write_gap(runs, labels, tokenizer, out, threshold=threshold, base=base, slices=slices)
    if parallel is not None:
        parallel.wait()
    return read_gap(out)


def _check_tokenizers(tokenizer: Tokenizer, reference: Target, models: Sequence[CheckpointTarget]) -> None:
    """Raise `MismatchError` where a model has another tokenizer: log-probs of different tokens cannot be compared."""
    for model in (reference, *models):
        own = model.tokenizer.fingerprint
        if own != tokenizer.fingerprint:
            other = tokenizer.name if model is reference else reference.name
            raise MismatchError(
                f"{model.name} and {other}: their tokenizers differ ({own[:12]} and {tokenizer.fingerprint[:12]}), so "
                "their tokens cannot be compared; expected models of one tokenizer"
            )


def _longest(data: EvaluationSet) -> int:
    return int((data.offsets[1:] - data.offsets[:-1]).max())


def _fields(spec: EvaluationSpec) -> dict[str, Any]:
    return msgspec.structs.asdict(spec)
