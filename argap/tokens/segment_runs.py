"""Write runs whose log-probs are sums over segments: one per model, all with the rows of the reference's tokens.

Cells, slices and tables read them like any run. The runs as scored, each in its own model's tokens, are in the folder
`argap.tokens.runs.OWN`.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np

from argap.bigram_index.store import open_index
from argap.errors import ArgapError, MismatchError
from argap.files.hub import is_hub
from argap.files.regular import is_folder, is_there
from argap.files.resumable import check_resumable, folder_name
from argap.records import RunIdentity
from argap.runtime.progress import say
from argap.tokens.aligned import SegmentedText, open_text_of_runs
from argap.tokens.labels import Labels, label, read_labels, with_counts, write_labels
from argap.tokens.runs import (
    OWN,
    Run,
    begin_run,
    check_same_set,
    finish_run,
    read_logprobs,
    recorded_text,
    tokenizer_of,
    write_shards,
)


def aligned_identity(identity: RunIdentity, text: SegmentedText) -> RunIdentity:
    """Return the identity of the segment run made from a run of ``identity``. Segments have no rank, entropy or KL."""
    return msgspec.structs.replace(identity, evaluation_set=text.record.fingerprint, rank=False, entropy=False, kl=None)


def align_run(run: Run, text: SegmentedText, tokenizer: int, folder: Path, *, overwrite: bool) -> Run:
    """Write the log-probs of a finished run, summed over segments, to ``folder``; ``tokenizer``: its number.

    Raises as `argap.files.resumable.begin`.
    """
    assert run.finished is not None
    identity = aligned_identity(run.record.identity, text)
    record = msgspec.structs.replace(run.record, evaluation=text.record, identity=identity)
    aligned = begin_run(folder, record, overwrite=overwrite)
    logprob, top1 = read_logprobs(run)
    sums = text.align(logprob, tokenizer)
    # Top-1 ids can be compared with the reference's tokens only if the tokenizer is the same.
    ids = top1 if tokenizer == 0 else np.full(len(sums), -1, dtype=np.int32)
    write_shards(folder, text.sets[0], sums, ids)
    return finish_run(aligned, run.finished)


def align_finished(runs: Sequence[Run], out: Path) -> list[Run]:
    """Write finished runs of several tokenizers, the reference's first, as segment runs to ``out``, with labels.

    Reads their text again. Raises `ArgapError` if a run's text or tokenizer is missing, and `MismatchError` for runs of
    different texts, for windows that do not hold the same bytes, and if ``out`` has other runs or labels.
    """
    check_tokens(runs)
    first: dict[str, Run] = {}  # run of each tokenizer
    for run in runs:
        known = first.setdefault(run.record.evaluation.tokenizer_fingerprint, run)
        check_same_set(run, known.record.evaluation, f"{known.folder} holds")
    tokenizers = [tokenizer_of(run) for run in first.values()]
    number = {fingerprint: t for t, fingerprint in enumerate(first)}
    text = open_text_of_runs(recorded_text(runs[0]), tokenizers, dict(enumerate(first.values())))
    labels = labels_of_text(runs[0], text)
    for run in runs:
        identity = aligned_identity(run.record.identity, text)
        check_resumable(out / folder_name(run.model), identity, overwrite=False)
    beside = out / "labels"
    if is_there(beside / "labels.json") and read_labels(beside).record.evaluation != text.record:
        raise MismatchError(f"{beside}: labels of another comparison; choose another `out`")
    write_labels(labels, tokenizers[0], beside)
    own = [number[run.record.evaluation.tokenizer_fingerprint] for run in runs]
    folders = [out / folder_name(run.model) for run in runs]
    return [align_run(run, text, t, to, overwrite=False) for run, t, to in zip(runs, own, folders, strict=True)]


def labels_of_text(reference: Run, text: SegmentedText) -> Labels:
    """Label the text with training counts from the labels next to the reference's run, else from its recorded index.

    If neither is available in the reference's tokens, every repeated bigram is a hit.
    """
    labels = label(text.sets[0])
    beside = reference.folder.parent / "labels"
    if is_there(beside / "labels.json"):
        known = read_labels(beside)
        if known.record.evaluation.fingerprint == reference.record.evaluation.fingerprint:
            record = msgspec.structs.replace(labels.record, index=known.record.index)
            counts = known.train_count if known.train_count is None else known.train_count[: len(labels.window)]
            return text.labels(replace(labels, train_count=counts, record=record))
    index = reference.record.source.index
    if index is not None and (is_hub(index) or is_folder(Path(index))):
        opened, own = open_index(index), text.sets[0]
        if opened.tokenizer_fingerprint == own.tokenizer_fingerprint:
            labels = with_counts(labels, own.tokens, opened)
        else:
            say(f"{index}: counts tokens of {opened.tokenizer}, not of {own.tokenizer}; every repeated bigram is a hit")
    return text.labels(labels)


def check_tokens(runs: Sequence[Run]) -> None:
    """Raise `ArgapError` for a run of segments, whose own tokens have no log-probs."""
    for run in runs:
        if run.record.evaluation.unit == "byte":
            raise ArgapError(
                f"{run.folder}: holds sums over the segments of one comparison; use the run of its tokens, "
                f"{run.folder.parent / OWN / run.folder.name}"
            )
