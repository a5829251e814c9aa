"""Run the whole pipeline: checkpoints and a reference in, ``gap.json`` and its parts out.

Bad arguments are refused before any text is read or any model runs.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from argap.bigram_index.store import check_tokenizer, open_index
from argap.checkpoints.references import source_of
from argap.errors import MismatchError
from argap.evaluation.windows import check_spec, corpora_of
from argap.files.lock import one_writer
from argap.metric.threshold import PAPER_TOKENS, Threshold, resolve_threshold
from argap.records import EvaluationSpec, Gap, SourceRecord, read_gap
from argap.records.columns import GAIN, OPTIONAL, optional_types
from argap.results.compare import threshold_of, write_gap
from argap.results.short_context import check_context, check_short, contexts_of, score_short
from argap.results.summary import check_base
from argap.runtime.progress import say
from argap.scoring.bos import say_bos
from argap.scoring.config import DEFAULT, ScoreConfig
from argap.scoring.divergence import beside_reference
from argap.scoring.find import find_sources
from argap.scoring.segmented import ModelsText, fitting, open_models_text
from argap.scoring.sources import Source, check_folders
from argap.text.tokenizer import Tokenizer, load_tokenizer
from argap.tokens.labels import further_columns, index_record, label_portions, write_labels
from argap.tokens.runs import OWN, short_passes

HELD_OUT = "stdlib:heldout"
FOLDERS = {"labels": "the labels", "figures": "the report's figures", OWN: "the runs of other tokenizers"}
"""Folders of a result besides its runs."""

if TYPE_CHECKING:
    from argap.bigram_index.store import BigramIndex
    from argap.runtime.torchrun import Parallel


@one_writer("out")
def score_models(
    checkpoints: Sequence[str | Source],
    reference: str | Source,
    out: Path,
    config: ScoreConfig = DEFAULT,
    *,
    parallel: "Parallel | None" = None,
) -> Gap:
    """Score the reference and each checkpoint once, write their gaps to ``out``, and return ``gap.json``.

    Models whose tokenizer differs from the reference's are compared by segments (`argap.evaluation.segments`), in
    bytes. If ``config`` has no text or index, the one recorded with the reference is used; if that has none either, the
    text is the standard library's held-out modules, and every repeated bigram is a hit. With ``parallel``, all its
    processes call this with the same arguments and share the scoring; the main one writes the result.
    """
    from argap.slices.library import slice_specs
    from argap.slices.of_tokens import check_slices

    resolve_threshold(config.threshold, PAPER_TOKENS)  # refuse a bad value before any work
    check_context(config)
    slices = None if config.slices is None else slice_specs(config.slices)
    corpora_of(config.text)  # a text that is refused, before checkpoints are fetched and read
    first, models = find_sources(checkpoints, reference, config)
    spec, index = _with_recorded(config, first.recorded)
    sources = [first, *models]
    names = [each.name for each in sources]
    check_folders([each.name for each in sources if each.finished is None], FOLDERS)
    config.check_models(names)
    if config.base is not None:
        check_base(config.base, names)
    opened = _opened(index, config.threshold)
    tokenizer = load_tokenizer(spec.tokenizer) if spec.tokenizer else first.tokenizer
    _check_reference(tokenizer, first, opened)
    for each in sources:
        each.check(parallel)
    sources = [first, *(beside_reference(models, first) if config.kl else models)]
    fitted = fitting(spec, sources)
    if parallel is None or parallel.is_main:
        _say_fitted(spec, fitted)
    spec = fitted

    text = open_models_text(spec, tokenizer, first, sources[1:])
    contexts = contexts_of(config, text)
    having = _check_runs(sources, text, contexts, out, config, parallel)
    if slices:
        columns = further_columns(text.record, text.sets[0].kept) | optional_types(having)
        check_slices(slices, names, text.record, columns)

    asked = source_of(spec, index)
    runs = [each.score(text.of(each), text.folder(each, out), asked, parallel) for each in sources]
    for each, run in zip(sources, runs, strict=True):
        score_short(each, run, text.of(each), contexts, asked, parallel)
    if parallel is None or parallel.is_main:
        runs = text.aligned(runs, sources, out, overwrite=config.overwrite)
        labels = text.labels(label_portions(text.of(first), opened))
        write_labels(labels, tokenizer, out / "labels")  # only after every run is in the folder
        threshold, base = config.threshold, config.base
        write_gap(runs, out / "labels", tokenizer, out, threshold=threshold, base=base, slices=slices)
    if parallel is not None:
        parallel.wait()
    return read_gap(out)


def _check_runs(
    sources: Sequence[Source],
    text: ModelsText,
    contexts: Sequence[int],
    out: Path,
    config: ScoreConfig,
    parallel: "Parallel | None",
) -> dict[str, list[str]]:
    """Raise `ArgapError` for what cannot be scored into ``out``; return the models with each optional column."""
    having: dict[str, list[str]] = {name: [] for name in OPTIONAL}
    for each in sources:
        data = text.of(each)
        each.check_windows(data, parallel)
        identity = each.identity(data, parallel)
        folder = each.finished.folder if each.finished else text.folder(each, out)
        if parallel is None or parallel.is_main:
            text.check_folders(each, identity, out, overwrite=config.overwrite)
            check_short(each, identity, contexts, folder, overwrite=config.overwrite)
            if each.finished is None:
                say_bos(each, config.bos.of(each.name), identity.bos)
        if text.segmented is None:
            for name in identity.optional:
                having[name].append(each.name)
            short = short_passes(folder, identity) or (contexts and not each.finished)
            having[GAIN] += [each.name] if short else []
    return having


def _say_fitted(asked: EvaluationSpec, fitted: EvaluationSpec) -> None:
    """Say how windows and documents were fitted to the models (`argap.scoring.segmented.fitting`)."""
    if fitted.seq_len != asked.seq_len:
        say(f"windows of {fitted.seq_len:,} tokens, the longest that every model takes; --seq-len gives another length")
    if fitted.limit_document_tokens != asked.limit_document_tokens:
        say(
            f"documents cut to {fitted.limit_document_tokens:,} tokens, one window, not to "
            f"{asked.limit_document_tokens:,}: the last would be a window by itself"
        )


def _with_recorded(config: ScoreConfig, recorded: SourceRecord) -> tuple[EvaluationSpec, str | None]:
    """Fill in text and index from those recorded with the reference. Raises `ArgapError` for a bad text."""
    spec = config.text.over(recorded)
    if not spec.data:
        say(f"no text given: scoring the held-out modules of Python's standard library ({HELD_OUT})")
        spec = msgspec.structs.replace(spec, data=(HELD_OUT,))
    check_spec(spec)
    return spec, config.index or recorded.index


def _opened(index: str | None, threshold: Threshold) -> "BigramIndex | None":
    """Open the index, if any. Raises `ArgapError` for a threshold that needs one."""
    opened = None if index is None else open_index(index)
    threshold_of(threshold, opened and index_record(opened))
    return opened


def _check_reference(tokenizer: Tokenizer, reference: Source, index: "BigramIndex | None") -> None:
    """Raise `MismatchError` if the text's or the index's tokenizer is not the reference's."""
    own = reference.tokenizer.fingerprint
    if own != tokenizer.fingerprint:
        raise MismatchError(
            f"{reference.name} and {tokenizer.name}: their tokenizers differ ({own[:12]} and "
            f"{tokenizer.fingerprint[:12]}); expected the reference's own, which cuts the text and counts its bigrams"
        )
    if index is not None:
        check_tokenizer(index, tokenizer.name, tokenizer.fingerprint)
