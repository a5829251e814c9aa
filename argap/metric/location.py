"""Find where two runs of the same weights differ: which windows, from which position on, at which distances.

Faults of an engine leave their mark in a place. A state kept in a narrow dtype or a wrong rotary base grows along the
window; a prefix cache off by one block begins abruptly at a multiple of the block, in windows that share a prefix;
padding that leaks reaches only the windows shorter than the longest of their batch. Rounding alone is everywhere.

Legend: N scored tokens, in order of window and position; W windows.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from argap.metric.bins import distance_bins, position_bins
from argap.records.difference import Finding, Where

MUCH = 10.0
"""Times the mean of all other windows at which a window stands out."""
MOST = 0.9
"""Part of Σ|Δ| that the windows which stand out must hold."""
ALIKE = 0.8
"""Part of the windows of a description that must stand out, and the reverse, for the description to hold."""
CLEAN, JUMP, AFTER = 8, 20.0, 16
"""An onset has at least `CLEAN` tokens before it, and then `AFTER` whose mean is `JUMP` times the largest of those."""
GROWN = 2.0
"""Times the first quarter's mean that the last quarter's must have for a difference to grow along the window."""
ORDERED = 0.8
"""Rank correlation of the bins of position with their means for the same."""
FAR = 3.0
"""Times the mean of all other tokens that repeated tokens beyond a distance must have."""
FEWEST = 30
"""Tokens below which the mean of a bin says nothing."""
LOOKED_AT = 2000
"""Windows whose onsets are looked for, those with the largest means."""
PREFIX = 8
"""Tokens from which the common beginning of two windows counts."""
CHANCE = 1e-3


class Tokens(NamedTuple):
    """The scored tokens of two runs, and their windows."""

    absolute: np.ndarray
    """float64 ``[N]``: |Δ log p|, finite."""
    window: np.ndarray
    """``[N]``."""
    position: np.ndarray
    """``[N]``, from 1."""
    distance: np.ndarray
    """``[N]``: tokens back to the bigram's nearest occurrence; 0 if not repeated."""
    lengths: np.ndarray
    """``[W]``: tokens, position 0 included."""
    shared: np.ndarray
    """``[W]``: tokens of the longest beginning shared with an earlier window (`shared_prefixes`)."""

    @property
    def bounds(self) -> np.ndarray:
        """Return the first row of each window with scored tokens, and N."""
        starts = np.flatnonzero(np.diff(self.window, prepend=-1))
        return np.append(starts, len(self.window))


def locate(tokens: Tokens) -> list[Finding]:
    """Return where the difference lies, the most telling place first; ``even`` if no place stands out."""
    total = tokens.absolute.sum()
    if not total:
        return [_finding("identical", np.ones(len(tokens.absolute), dtype=bool), tokens)]
    found = list(_of_windows(tokens))
    chosen = tokens
    if found:  # further places are looked for within the windows that stand out
        inside = np.isin(tokens.window, _outstanding(tokens))
        chosen = tokens._replace(**{name: getattr(tokens, name)[inside] for name in Tokens._fields[:4]})
    along = list(_onset(chosen)) or list(_along(chosen))
    found += along or list(_distance(chosen))
    return found or [_finding("even", np.ones(len(tokens.absolute), dtype=bool), tokens)]


def shared_prefixes(tokens: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Return for each window ``[W]`` how many tokens it has at its beginning in common with an earlier one.

    ``tokens``: of all windows; ``offsets [W + 1]``. Beginnings shorter than `PREFIX` count as 0.
    """
    shared = np.zeros(len(offsets) - 1, dtype=np.int64)
    groups: dict[bytes, list[np.ndarray]] = {}
    for w in range(len(shared)):
        own = tokens[offsets[w] : offsets[w + 1]]
        if len(own) < PREFIX:
            continue
        earlier = groups.setdefault(own[:PREFIX].tobytes(), [])
        for other in earlier:
            both = min(len(own), len(other))
            differing = np.flatnonzero(own[:both] != other[:both])
            shared[w] = max(shared[w], differing[0] if len(differing) else both)
        if len(earlier) < LOOKED_AT // 100:
            earlier.append(own)
    return shared


def _finding(where: Where, inside: np.ndarray, tokens: Tokens, **more: int | None) -> Finding:
    """Describe the tokens ``inside`` (bool ``[N]``)."""
    n, total = int(inside.sum()), float(tokens.absolute.sum())
    part = float(tokens.absolute[inside].sum())
    rest = len(inside) - n
    return Finding(
        where=where,
        n=n,
        share_of_tokens=n / len(inside),
        share=part / total if total else 0.0,
        inside=part / n,
        outside=(total - part) / rest if rest else None,
        **more,
    )


def _means(tokens: Tokens) -> tuple[np.ndarray, np.ndarray]:
    """Return the windows with scored tokens, and the mean of |Δ| in each."""
    bounds = tokens.bounds
    return tokens.window[bounds[:-1]], np.add.reduceat(tokens.absolute, bounds[:-1]) / np.diff(bounds)


def _outstanding(tokens: Tokens) -> np.ndarray:
    """Return the windows that hold nearly all of the difference and are far above the others; none if there are none.

    Windows are taken from the largest mean down, until they hold `MOST`, and those like the last one.
    """
    windows, means = _means(tokens)
    bounds = tokens.bounds
    order = np.argsort(-means, kind="stable")
    held = np.cumsum((means * np.diff(bounds))[order]) / tokens.absolute.sum()
    least = means[order[min(int(np.searchsorted(held, MOST)), len(order) - 1)]]
    chosen = means >= least / MUCH
    if chosen.all() or means[~chosen].max() * MUCH > means[chosen].mean():
        return np.zeros(0, dtype=windows.dtype)
    return windows[chosen]


def _of_windows(tokens: Tokens) -> Iterator[Finding]:
    """Describe the windows that stand out: the short ones, those that begin like an earlier one, or some few."""
    chosen = _outstanding(tokens)
    if not len(chosen):
        return
    inside, number = np.isin(tokens.window, chosen), len(chosen)
    known = _means(tokens)[0]
    candidates: dict[Where, np.ndarray] = {
        "short windows": known[tokens.lengths[known] < tokens.lengths.max()],
        "shared prefix": known[tokens.shared[known] >= PREFIX],
    }
    for where, described in candidates.items():
        both = len(np.intersect1d(chosen, described))
        if len(described) and both >= ALIKE * max(number, len(described)):
            longest = int(tokens.lengths.max()) if where == "short windows" else None
            yield _finding(where, inside, tokens, windows=both, of_windows=len(described), high=longest)
            return
    yield _finding("few windows", inside, tokens, windows=number, of_windows=len(known))


def _onset(tokens: Tokens) -> Iterator[Finding]:
    """Find differences that begin abruptly in most windows: nothing before a position, much from there on."""
    bounds, (_, means) = tokens.bounds, _means(tokens)
    looked = np.sort(np.argsort(-means, kind="stable")[:LOOKED_AT])
    begun = np.zeros(len(tokens.absolute), dtype=bool)
    onsets = []
    for k in looked:
        first, end = bounds[k], bounds[k + 1]
        at = _begins(tokens.absolute[first:end])
        if at is not None:
            begun[first + at : end] = True
            onsets.append(int(tokens.position[first + at]))
    if len(onsets) < ALIKE * len(looked):
        return
    low, high = min(onsets), max(onsets)
    yield _finding(
        "onset", begun, tokens, low=low, high=high, windows=len(onsets), of_windows=len(looked), block=_block(onsets)
    )


def _begins(absolute: np.ndarray) -> int | None:
    """Return the first token of an abrupt difference in one window; None if there is none."""
    before = np.maximum.accumulate(absolute)[:-1]
    after = absolute[1:]
    jumps = np.flatnonzero((after > JUMP * before) & (np.arange(1, len(absolute)) >= CLEAN))
    for at in jumps + 1:
        if absolute[at : at + AFTER].mean() > JUMP * before[at - 1]:
            return int(at)
    return None


def _block(onsets: list[int]) -> int | None:
    """Return the largest power of two, 4 to 512, behind a multiple of which all onsets lie; None if by chance perhaps.

    The first token that a wrong state at position p can change is the one predicted from there, at p + 1.
    """
    queries = np.array(onsets) - 1
    for block in (512, 256, 128, 64, 32, 16, 8, 4):
        if (queries % block == 0).all() and float(block) ** -len(onsets) < CHANCE:
            return block
    return None


def _along(tokens: Tokens) -> Iterator[Finding]:
    """Find a difference that grows or falls along the window."""
    binning = position_bins(int(tokens.lengths.max()))
    number = binning.index(tokens.position)
    n = np.bincount(number)
    known = np.flatnonzero(n >= min(FEWEST, n.max()))
    if len(known) < 4:
        return
    means = np.bincount(number, tokens.absolute)[known] / n[known]
    quarter = len(known) // 4
    first, last = means[:quarter].mean(), means[-quarter:].mean()
    order = _rank_correlation(means)
    bins = binning.bins()
    if order >= ORDERED and last >= GROWN * first:
        inside, low = number >= known[-quarter], bins[known[-quarter]].low
        yield _finding("growth", inside, tokens, low=low, high=int(tokens.position.max()))
    elif order <= -ORDERED and first >= GROWN * last:
        yield _finding("decline", number <= known[quarter - 1], tokens, low=1, high=bins[known[quarter - 1]].high)


def _rank_correlation(values: np.ndarray) -> float:
    """Return Spearman's correlation of values with their order."""
    return float(np.corrcoef(np.arange(len(values)), np.argsort(np.argsort(values)))[0, 1])


def _distance(tokens: Tokens) -> Iterator[Finding]:
    """Find the distance that best divides repeated tokens that differ much from all others, by variance between."""
    binning = distance_bins(int(tokens.lengths.max()))
    total, count = float(tokens.absolute.sum()), len(tokens.absolute)
    best: tuple[float, int] | None = None
    for each in binning.bins()[1:]:
        inside = tokens.distance >= each.low
        n = int(inside.sum())
        if n < FEWEST or n == count:
            continue
        part = float(tokens.absolute[inside].sum())
        here, elsewhere = part / n, (total - part) / (count - n)
        between = n * (count - n) * (here - elsewhere) ** 2
        if here >= FAR * elsewhere and (best is None or between > best[0]):
            best = between, each.low
    if best is not None:
        yield _finding("distance", tokens.distance >= best[1], tokens, low=best[1])
