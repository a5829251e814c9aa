"""Warn about the text: a BOS before windows, outlier sources, sources with much of a gap, bigrams with many hits."""

import itertools
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pandas as pd

from argap.metric.documents import behind
from argap.records import Gap, ids_of
from argap.results.by_source import Grouped, group
from argap.scoring.bos import text_of
from argap.slices.tally import PENDING, Groups, joined
from argap.text.tokenizer import Tokenizer
from argap.tokens.runs import Run

OUTLIER = 3.5
"""Standard deviations from the median beyond which a source is an outlier (`outliers`).

This is the cut-off of Iglewicz and Hoaglin, How to Detect and Handle Outliers (1993), section 3.3, for modified
z-scores, 0.6745 (x − median) / MAD. `outliers` puts another estimate of the spread in the place of MAD / 0.6745.
"""
SMALLEST = 0.002
"""Share of the tokens below which a source's perplexity is not judged."""
MOST_OF_GAP = 0.1
"""Maximum share of a gap in one source."""
MOST_LINES = 5
"""Maximum number of lines about bigrams."""
MOST_OF_HITS = 0.01
"""Maximum share of the hits with one bigram."""
BIGRAM = "bigram "
"""Start of the lines about bigrams."""
LEAST_HITS = 10_000
"""Number of hits below which bigrams are not judged."""


def outliers(perplexity: np.ndarray) -> np.ndarray:
    """Return which sources (bool ``[G]``) are far more difficult for the reference than all others.

    Each is compared with the median of the *others*, in units of their spread: the larger of the interquartile range /
    1.349 (the standard deviation of normal data) and the standard deviation, but at least a quarter of the median.
    Texts can be of an easy and a difficult kind, and the spread must span both; a median absolute deviation, or the
    range of a few sources, sees only one. Each source counts once: weighted by tokens, two large ones of a kind would
    make every other an outlier. Perplexity is used rather than NLL, as foreign text stands out above, never below.
    Of two sources neither is far: nothing says which of them is odd. Of three, one is far if its perplexity is above
    1.875 times the mean of the other two and further above that mean than 2.47 times their difference.
    """
    perplexity = perplexity / perplexity.max(initial=1.0)  # the square of an enormous one would be infinite
    far = np.zeros(len(perplexity), dtype=bool)
    for k, own in enumerate(perplexity if len(perplexity) > 2 else ()):
        others = np.delete(perplexity, k)
        low, middle, high = np.percentile(others, [25, 50, 75])
        far[k] = own - middle > OUTLIER * max((high - low) / 1.349, others.std(ddof=1), middle / 4)
    return far


def warn_of_sources(gap: Gap, sums: pd.DataFrame, sources: Mapping[int, str]) -> tuple[str, ...]:
    """Return a line for each source that is an outlier or holds much of a gap or lead.

    ``sums``: of `argap.slices.margins.sum_hits`. ``sources``: by document. If there is only one source, or one per
    document, domains are judged instead.
    """
    grouped = group(gap, sums, sources)
    return (*_difficult(grouped), *_holding(grouped))


def warn_of_bos(runs: Sequence[Run], tokenizer: Tokenizer) -> tuple[str, ...]:
    """Return a line that says what was put before the windows of each run, if anything was.

    ``tokenizer``: that of the reference, the first run; a token of another one is given by its id.
    """
    before: dict[str, list[str]] = {}
    for run in runs:
        bos, own = run.record.identity.bos, run is runs[0] or run.record.evaluation.unit == "token"
        what = text_of(tokenizer, bos) if own else f"token {', '.join(map(str, ids_of(bos)))}"
        what = "nothing" if bos is None else what
        before.setdefault(what, []).append(run.model)
    if before.keys() == {"nothing"}:
        return ()
    return ("before each window: " + "; ".join(f"{what} ({', '.join(names)})" for what, names in before.items()),)


def _difficult(of: Grouped) -> Iterable[str]:
    """Yield a line for each outlier among the sources."""
    share = of.n[0] / of.n[0].sum()
    judged = np.flatnonzero(share >= SMALLEST)
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        perplexity = np.exp(-of.logprob[0, of.reference, judged] / of.n[0, judged])
    if not np.isfinite(perplexity).all():
        return
    for k in np.flatnonzero(outliers(perplexity)).tolist():
        others = np.delete(perplexity, k)
        yield (
            f"{of.by} {of.names[judged[k]]}: perplexity {perplexity[k]:.0f} under {of.models[of.reference]}, "
            f"{others.min():.1f} to {others.max():.1f} in the {len(others)} others; is the text like any training text?"
        )


def _holding(of: Grouped) -> Iterable[str]:
    """Yield a line for each source that holds more than `MOST_OF_GAP` of a gap."""
    if len(of.names) < 2:
        return
    parts = of.left_out
    gaps = behind(of.logprob.sum(axis=-1, keepdims=True), of.reference)[..., 0]  # of sums: ∞ + −∞ is no sum
    judged = [m for m in range(len(of.models)) if m != of.reference and not of.level[m] and np.isfinite(gaps[0, m])]
    for g, name in enumerate(of.names):
        held = [m for m in judged if parts.part[m, g] > MOST_OF_GAP]
        if held:
            most = max(held, key=lambda m: parts.part[m, g])
            more = f", more than {MOST_OF_GAP:.0%} in {len(held)} of {len(judged)} models" if len(judged) > 1 else ""
            yield (
                f"{of.by} {name}: {_percent(of.n[0, g] / of.n[0].sum())} of the tokens, "
                f"{_percent(parts.part[most, g])} of the gap of {of.models[most]}{more}; without it "
                f"{_percent(parts.share[1, most, g])} of that gap is on hits, with it "
                f"{_percent(gaps[1, most] / gaps[0, most])}"
            )


def _percent(share: float) -> str:
    return "no share" if np.isnan(share) else f"{100 * share:.0f}%"


class HitCounts:
    """Hits of each bigram, counted over portions of the tokens."""

    def __init__(self) -> None:
        self._parts: list[Groups] = []
        """Of each portion; the key is the bigram's two ids in one number, first · 2³² + second."""

    def add(self, tokens: np.ndarray, hits: np.ndarray) -> None:
        """Add a portion: ids, int32 ``[N]``, and the hits, bool ``[N]``, never at the first token of a window."""
        rows = np.flatnonzero(hits)
        code, n = np.unique(tokens[rows - 1].astype(np.int64) << 32 | tokens[rows], return_counts=True)
        self._parts.append(Groups([code], n, np.empty((0, len(code)))))
        if sum(len(part.n) for part in self._parts[1:]) > PENDING:
            self._parts = [joined(self._parts)]

    @property
    def total(self) -> int:
        """Return the number of hits."""
        return sum(int(part.n.sum()) for part in self._parts)

    def above(self, share: float) -> dict[int, int]:
        """Return the hits of the bigrams with more than ``share`` of all hits, most frequent first, then by ids.

        Such a bigram has more than that share of the hits in at least one portion: the others need no adding up.
        """
        likely = [part.keys[0][part.n > share * part.n.sum()] for part in self._parts]
        codes = np.unique(np.concatenate([*likely, np.empty(0, dtype=np.int64)]))
        n = np.zeros(len(codes), dtype=np.int64)
        for part in filter(lambda part: len(part.n), self._parts):
            at = np.minimum(np.searchsorted(part.keys[0], codes), len(part.n) - 1)
            n += np.where(part.keys[0][at] == codes, part.n[at], 0)
        order = np.argsort(-n, kind="stable")
        order = order[n[order] > share * self.total]
        return dict(zip(codes[order].tolist(), n[order].tolist(), strict=True))


def warn_of_bigrams(hits: HitCounts, tokenizer: Tokenizer) -> tuple[str, ...]:
    """Return up to `MOST_LINES` lines on bigrams with more than `MOST_OF_HITS` of the hits, most frequent first."""
    if hits.total < LEAST_HITS:
        return ()
    first = itertools.islice(hits.above(MOST_OF_HITS).items(), MOST_LINES)
    return tuple(
        f"{BIGRAM}{tokenizer.decode([code >> 32, code & 0xFFFFFFFF])!r}: {100 * n / hits.total:.1f}% of the hits "
        f"({n:,} of {hits.total:,})"
        for code, n in first
    )
