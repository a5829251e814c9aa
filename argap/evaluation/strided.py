"""Cut windows into shorter, overlapping ones, in which every token has a bounded context.

Windows of K tokens follow each other with stride ⌊K/2⌋ inside each window of the evaluation set; each token is read
from the first that holds it. So it has from ⌈K/2⌉ to K − 1 tokens of context, or all tokens before it if those are
fewer.
"""

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from argap.evaluation.windows import EvaluationSet


class Strided(NamedTuple):
    """Short windows over consecutive windows of an evaluation set. Legend: N tokens of those; M ≥ N of these."""

    data: EvaluationSet
    """The short windows as a set of their own, without documents."""
    kept: np.ndarray
    """bool ``[M]``: the N tokens of the short windows, in order, that are read as the tokens of the windows."""


def strided(data: EvaluationSet, windows: range, context: int) -> Strided:
    """Cut ``windows`` of ``data`` into windows of ``context`` tokens, at least 2."""
    starts, lengths, first = _cut(data, windows, context)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    position = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths)
    tokens = data.tokens[np.repeat(starts, lengths) + position]
    kept = np.repeat(first, lengths) | (position >= context - context // 2)
    nothing = np.empty(0, dtype=np.int64)
    cut = replace(
        data, tokens=tokens, offsets=offsets, document_ends=nothing, domains=[], sources=[], seq_len=context, kept=None
    )
    return Strided(cut, kept)


def tokens_read(data: EvaluationSet, windows: range, context: int) -> int:
    """Count the tokens of the short windows, each as often as it is read: at most about twice those of ``windows``."""
    return int(_cut(data, windows, context)[1].sum())


def _cut(data: EvaluationSet, windows: range, context: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return where each short window starts, its length, and whether it is the first of its window."""
    bounds = data.offsets[windows.start : windows.stop + 1]
    stride = context // 2
    count = 1 + np.maximum(0, -((context - np.diff(bounds)) // stride))
    number = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
    starts = np.repeat(bounds[:-1], count) + number * stride
    return starts, np.minimum(starts + context, np.repeat(bounds[1:], count)) - starts, number == 0
