"""The whole path: checkpoints and a reference in, ``gap.json`` and its parts out.

Everything that can be refused is refused before any text is read or any model runs.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from argap.bigram_index.store import check_tokenizer, open_index
from argap.checkpoints.references import source_of
from argap.errors import MismatchError
from argap.evaluation.windows import check_spec
from argap.files.lock import one_writer
from argap.metric.threshold import PAPER_THRESHOLD, PAPER_TOKENS, Threshold, resolve_threshold
from argap.records import EvaluationSpec, Gap, SourceRecord, read_gap
from argap.records.columns import ranks_of
from argap.results.compare import threshold_of, write_gap
from argap.results.summary import check_base
from argap.runtime.progress import say
from argap.scoring.per_model import NO_SETTINGS, ModelSettings
from argap.scoring.scorers import Scoring, scorer_of
from argap.scoring.segmented import open_models_text, other_tokenizers
from argap.scoring.server.scoring import CONCURRENCY
from argap.scoring.sources import LiveTarget, RunTarget, Target, distinct, find_targets
from argap.text.tokenizer import Tokenizer, load_tokenizer
from argap.tokens.labels import further_columns, index_record, label_portions, write_labels
from argap.tokens.runs import OWN, Run
from argap.tokens.segment_runs import check_tokens

HELD_OUT = "stdlib:heldout"
FOLDERS = {"labels": "the labels", "figures": "the report's figures", OWN: "the runs of other tokenizers"}
"""What a result holds beside the runs."""

if TYPE_CHECKING:
    from argap.bigram_index.store import BigramIndex
    from argap.runtime.torchrun import Parallel
    from argap.scoring.scorer import ScoreOptions
    from argap.slices.library import SliceSpec


@one_writer("out")
def score_models(
    checkpoints: Sequence[str | LiveTarget],
    reference: str | LiveTarget,
    out: Path,
    *,
    spec: EvaluationSpec = EvaluationSpec(),  # noqa: B008  (frozen)
    index: str | None = None,
    threshold: Threshold = PAPER_THRESHOLD,
    options: "ScoreOptions | None" = None,
    settings: ModelSettings = NO_SETTINGS,
    model_names: Sequence[str] = (),
    concurrency: int = CONCURRENCY,
    base: str | None = None,
    slices: "Sequence[SliceSpec] | None" = None,
    overwrite: bool = False,
    parallel: "Parallel | None" = None,
) -> Gap:
    """Score each checkpoint and the reference once, write the gap of each to ``out``, and return it.

    Models with other tokenizers than the reference's are compared by segments (`argap.segments`), in bytes.
    ``spec`` and ``index`` are completed by what is recorded with the reference. Without any text, that is the standard
    library's held-out modules; without any index, the hits are all repeated bigrams. ``settings``: those that models
    have for themselves; ``model_names`` and ``concurrency``: for servers (`argap.scoring.sources.find_targets`);
    ``slices``: as `argap.results.compare.write_gap` takes them, checked before any model runs. With ``parallel``, all
    its processes call this with the same arguments and share the scoring; the main one writes the result.
    """
    from argap.scoring.scorer import ScoreOptions

    resolve_threshold(threshold, PAPER_TOKENS)  # a bad one is refused before any work
    found, target = find_targets(checkpoints, reference, model_names, settings)
    if isinstance(target, RunTarget):
        check_tokens([target.run])
    spec, index = _with_recorded(spec, index, target.recorded)
    targets = list({each.name: each for each in distinct([target, *found], settings, FOLDERS)}.values())
    models = [each for each in targets[1:] if not isinstance(each, RunTarget)]
    names = [each.name for each in targets]
    settings.check(names)
    if base is not None:
        check_base(base, names)
    opened = _opened(index, threshold)
    tokenizer = load_tokenizer(spec.tokenizer) if spec.tokenizer else target.tokenizer
    _check_reference(tokenizer, target, opened)
    folder = out / OWN if other_tokenizers(tokenizer, models) else out
    scoring = Scoring(folder, options or ScoreOptions(), settings, concurrency, overwrite, parallel)
    to_score = [(each, scorer_of(each, scoring)) for each in targets if not isinstance(each, RunTarget)]
    for _, scorer in to_score:
        scorer.check()
    text = open_models_text(spec, tokenizer, target, models, settings)
    for each, scorer in to_score:
        text.check_aligned(each, scorer.check_windows(text.of(each)), out, overwrite=overwrite)
    if slices:
        from argap.slices.of_tokens import check_slices

        known = {each.name: each.run.record.identity.rank for each in targets if isinstance(each, RunTarget)}
        ranked = [name for name in names if known.get(name, scoring.options.rank)]
        ranks = ranks_of(ranked if text.record.unit == "token" else ())
        check_slices(slices, names, text.record, further_columns(text.record, text.sets[0].kept) | ranks)
    runs: list[Run] = [target.run] if isinstance(target, RunTarget) else []
    runs += [scorer.score(text.of(each), source_of(spec, index)) for each, scorer in to_score]
    if parallel is None or parallel.is_main:
        runs = text.aligned(runs, targets, out, overwrite=overwrite)
        labels = text.labels(label_portions(text.of(target), opened))
        write_labels(labels, tokenizer, out / "labels")  # not before the folder has taken every run
        write_gap(runs, out / "labels", tokenizer, out, threshold=threshold, base=base, slices=slices)
    if parallel is not None:
        parallel.wait()
    return read_gap(out)


def _with_recorded(
    spec: EvaluationSpec, index: str | None, recorded: SourceRecord
) -> tuple[EvaluationSpec, str | None]:
    """Text and index, completed by those recorded with the reference. Raises `ArgapError` for a bad text."""
    spec = spec.over(recorded)
    if not spec.data:
        say(f"no text given: scoring the held-out modules of Python's standard library ({HELD_OUT})")
        spec = msgspec.structs.replace(spec, data=(HELD_OUT,))
    check_spec(spec)
    return spec, index or recorded.index


def _opened(index: str | None, threshold: Threshold) -> "BigramIndex | None":
    """The index, if there is one. Raises `ArgapError` for a threshold that needs one."""
    opened = None if index is None else open_index(index)
    threshold_of(threshold, opened and index_record(opened))
    return opened


def _check_reference(tokenizer: Tokenizer, reference: Target, index: "BigramIndex | None") -> None:
    """Raise `MismatchError` where the text is to be cut by another tokenizer than the reference's, or the index counts
    the tokens of another."""
    own = reference.tokenizer.fingerprint
    if own != tokenizer.fingerprint:
        raise MismatchError(
            f"{reference.name} and {tokenizer.name}: their tokenizers differ ({own[:12]} and "
            f"{tokenizer.fingerprint[:12]}); expected the reference's own, which cuts the text and counts its bigrams"
        )
    if index is not None:
        check_tokenizer(index, tokenizer.name, tokenizer.fingerprint)
