"""Runs whose log-probs are sums over segments: one for each model, all with the rows of the reference's tokens.

What follows (cells, slices, tables) reads them as it reads any run. The runs as scored, each in the tokens of its own
model, are in the folder `argap.runs.OWN`.
"""

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from argap.errors import ArgapError
from argap.records import RunIdentity
from argap.runs import OWN, Run, begin_run, finish_run, read_logprobs, shard_path, shards_of, write_shard
from argap.segments.evaluation import SegmentedText


def aligned_identity(identity: RunIdentity, text: SegmentedText) -> RunIdentity:
    """The identity of the run of segments that comes from a run of ``identity``."""
    return msgspec.structs.replace(identity, evaluation_set=text.record.fingerprint)


def align_run(run: Run, text: SegmentedText, tokenizer: int, folder: Path, *, overwrite: bool) -> Run:
    """Write the log-probs of a finished run, of tokenizer number ``tokenizer``, as sums over segments to ``folder``.

    Raises as `argap.resumable.begin`.
    """
    assert run.finished is not None
    identity = aligned_identity(run.record.identity, text)
    source = text.sets[0]
    record = msgspec.structs.replace(run.record, evaluation=text.record, identity=identity, finished=None)
    aligned = begin_run(folder, record, overwrite=overwrite)
    logprob, top1 = read_logprobs(run)
    sums = text.align(logprob, tokenizer)
    # The most likely token can be compared with the reference's tokens only where these are the model's own.
    ids = top1[: len(sums)] if tokenizer == 0 else np.full(len(sums), -1, dtype=np.int32)
    for shard, windows in enumerate(shards_of(source)):
        rows = slice(source.offsets[windows.start], source.offsets[windows.stop])
        write_shard(shard_path(folder, shard), source, windows, sums[rows], ids[rows])
    return finish_run(Run(aligned.folder, msgspec.structs.replace(aligned.record, finished=None)), run.finished)


def check_tokens(runs: Sequence[Run]) -> None:
    """Raise `ArgapError` for a run of segments, whose own tokens have no log-probs."""
    for run in runs:
        if run.record.evaluation.unit == "byte":
            raise ArgapError(
                f"{run.folder}: holds sums over the segments of one comparison; use the run of its tokens, "
                f"{run.folder.parent / OWN / run.folder.name}"
            )
