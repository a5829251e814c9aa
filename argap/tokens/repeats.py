"""Find the tokens that complete a bigram seen earlier in their window: how far back, and how many times."""

from typing import NamedTuple

import numpy as np

from argap.evaluation.windows import EvaluationSet

WINDOWS_AT_ONCE = 2048


class Repeats(NamedTuple):
    """One entry per token of the evaluation set, ``[N]``; zero at the first position of a window."""

    repeated: np.ndarray
    """bool: the bigram that ends here occurred earlier in the window."""
    distance: np.ndarray
    """int32: distance in tokens to the nearest earlier occurrence; 0 if not repeated."""
    occurrences: np.ndarray
    """int32: number of earlier occurrences."""


def find_repeats(data: EvaluationSet, windows: range | None = None) -> Repeats:
    """Find the repeated bigrams of ``windows``, by default all.

    Overlaps count: in ``a a a`` position 2 is repeated. A bigram that contains the separating EOS is never repeated.
    """
    windows = data.all if windows is None else windows
    parts = [_find(data, windows[first : first + WINDOWS_AT_ONCE]) for first in range(0, len(windows), WINDOWS_AT_ONCE)]
    return Repeats(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def _find(data: EvaluationSet, windows: range) -> Repeats:
    window = data.window_of(windows).astype(np.int64) - windows.start  # so that `key` is int64
    return repeats_in(data.tokens[data.rows(windows)], window, data.eos)


def repeats_in(tokens: np.ndarray, window: np.ndarray, eos: int | None = None) -> Repeats:
    """Find the repeated bigrams of ``tokens [N]`` in the windows numbered by ``window`` (int64 ``[N]``, ascending)."""
    repeated = np.zeros(len(tokens), dtype=bool)
    distance = np.zeros(len(tokens), dtype=np.int32)
    occurrences = np.zeros(len(tokens), dtype=np.int32)

    ends = np.flatnonzero(np.diff(window, prepend=-1) == 0)
    if eos is not None:
        ends = ends[(tokens[ends] != eos) & (tokens[ends - 1] != eos)]
    base = int(tokens.max(initial=0)) + 1
    key = (window[ends] * base + tokens[ends - 1]) * base + tokens[ends]
    order = np.argsort(key, kind="stable")  # stable: equal bigrams keep text order
    ends, key = ends[order], key[order]
    same = np.zeros(len(key), dtype=bool)  # the previous entry is the same bigram in the same window
    same[1:] = key[1:] == key[:-1]
    later = np.flatnonzero(same)
    group_start = np.maximum.accumulate(np.where(same, 0, np.arange(len(key))))
    repeated[ends[later]] = True
    distance[ends[later]] = ends[later] - ends[later - 1]
    occurrences[ends[later]] = later - group_start[later]
    return Repeats(repeated, distance, occurrences)
