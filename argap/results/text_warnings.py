"""Warn about the text: a BOS before windows, outlier sources, sources with much of a gap, bigrams with many hits."""

from collections.abc import Iterable, Mapping, Sequence
from typing import cast

import numpy as np
import pandas as pd

from argap.metric.documents import behind
from argap.records import Gap, ids_of
from argap.results.by_source import Grouped, group
from argap.scoring.bos import text_of
from argap.slices.cells import CellFile
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
PENDING = 2**22
"""Counts of portions that wait to be added up."""
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
    far = np.zeros(len(perplexity), dtype=bool)
    for k, own in enumerate(perplexity if len(perplexity) > 2 else ()):
        others = np.delete(perplexity, k)
        low, middle, high = np.percentile(others, [25, 50, 75])
        far[k] = own - middle > OUTLIER * max((high - low) / 1.349, others.std(ddof=1), middle / 4)
    return far


def warn_of_sources(gap: Gap, cells: pd.DataFrame | CellFile, sources: Mapping[int, str]) -> tuple[str, ...]:
    """Return a line for each source that is an outlier or holds much of a gap or lead.

    ``sources``: by document. If there is only one source, or one per document, domains are judged instead.
    """
    grouped = group(gap, cells, sources)
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
    parts, gaps = of.left_out, behind(of.logprob, of.reference).sum(axis=-1)
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


def count_hits(tokens: np.ndarray, hits: np.ndarray) -> pd.Series:
    """Count the hits of each bigram, keyed by its two ids in one number (first · 2³² + second).

    ``tokens``: int32 ``[N]``; ``hits``: bool ``[N]``, never at the first token of a window. Counts of portions add up.
    """
    rows = np.flatnonzero(hits)
    code, n = np.unique(tokens[rows - 1].astype(np.int64) << 32 | tokens[rows], return_counts=True)
    return pd.Series(n, index=code)


def add_hits(counts: list[pd.Series]) -> pd.Series:
    """Add up the `count_hits` of portions; the list then holds the sum alone."""
    counts[:] = [cast(pd.Series, pd.concat(counts).groupby(level=0).sum())] if counts else [pd.Series(dtype=np.int64)]
    return counts[0]


def warn_of_bigrams(hits: pd.Series, tokenizer: Tokenizer) -> tuple[str, ...]:
    """Return up to `MOST_LINES` lines on bigrams with more than `MOST_OF_HITS` of the hits, most frequent first."""
    total = int(hits.sum())
    if total < LEAST_HITS:
        return ()
    large = cast(pd.Series, hits[hits > MOST_OF_HITS * total]).sort_values(ascending=False, kind="stable")
    first = large.head(MOST_LINES)
    return tuple(
        f"{BIGRAM}{tokenizer.decode([int(code) >> 32, int(code) & 0xFFFFFFFF])!r}: {100 * n / total:.1f}% of the hits "
        f"({int(n):,} of {total:,})"
        for code, n in zip(first.index.tolist(), first.tolist(), strict=True)
    )
