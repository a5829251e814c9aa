"""Count repeated bigrams by domain and position; tabulate distances of AR hits and fit a power law d^−α to them.

A window has room for distance d at L + 1 − d positions, d = 1 … L. The fitted density is therefore
p(d) ∝ (L + 1 − d) d^−α; without the first factor, the fit would take lack of room for a scarcity of long distances.
The maximum-likelihood α equates the model's mean of log d with the sample's (Σ log d is a sufficient statistic). Its
interval is that of the mean of log d over documents.
"""

from typing import cast

import numpy as np
import pandas as pd

from argap.metric.bins import position_bins
from argap.metric.influence import estimates, ratio
from argap.slices.tally import tally
from argap.text.content import content_bigrams, has_letters
from argap.text.tokenizer import Tokenizer
from argap.text.words import PieceBytes
from argap.tokens.labels import Labels

GRID = np.linspace(-2, 6, 1601)
"""Grid of exponents; solutions are interpolated on it."""


def build_distances(labels: Labels, threshold: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Summarise the AR hits at ``threshold`` in two tables.

    The first is a histogram, ``domain, distance, n``. The second has sums by ``document, domain``: ``n`` and
    ``log_distance``, the sum of log d.
    """
    rows = np.flatnonzero(labels.ar_hit(threshold) & labels.scored)
    domain, distance = labels.domain[rows], labels.distance[rows]
    document = labels.document_of_window[labels.window[rows]]
    names = np.array(labels.domains, dtype=object)
    groups = tally([domain, distance], [])
    histogram = pd.DataFrame({"domain": names[groups.keys[0]], "distance": groups.keys[1], "n": groups.n})
    groups = tally([document, domain], [np.log(distance)])
    of_documents = {"document": groups.keys[0], "domain": names[groups.keys[1]], "n": groups.n}
    return histogram, pd.DataFrame(of_documents | {"log_distance": groups.sums[0]})


def fit_exponents(documents: pd.DataFrame, longest: int) -> pd.DataFrame:
    """Fit α for all documents and for each domain: rows ``domain, n, exponent, low, high`` with the 95% interval.

    ``longest``: the largest distance possible in a window. The interval is NaN for a single document. No rows without
    ``documents``.
    """
    names = ["all", *documents["domain"].unique().tolist()] if len(documents) else []
    means = expected_log(GRID, longest)
    rows = []
    for name in names:
        part = documents if name == "all" else cast(pd.DataFrame, documents[documents["domain"] == name])
        n, total = part["n"].to_numpy(np.float64), part["log_distance"].to_numpy(np.float64)
        low, high = _interval(n, total, means)
        exponent = float(_solve(np.array(total.sum() / n.sum()), means))
        rows.append((name, int(n.sum()), exponent, low, high))
    return pd.DataFrame(rows, columns=["domain", "n", "exponent", "low", "high"])


def power_law(exponents: np.ndarray, longest: int) -> np.ndarray:
    """Return p(d) ∝ (L + 1 − d) d^−α for d = 1 … L = ``longest``; α ``[..., 1]`` gives ``[..., L]``."""
    distance = np.arange(1, longest + 1)
    weights = (longest + 1 - distance) * distance**-exponents
    return weights / weights.sum(axis=-1, keepdims=True)


def expected_log(exponents: np.ndarray, longest: int) -> np.ndarray:
    """Return E[log d] under `power_law` for each α."""
    return power_law(exponents[:, None], longest) @ np.log(np.arange(1, longest + 1))


def _solve(mean: np.ndarray, means: np.ndarray) -> np.ndarray:
    """Return the exponent for each mean of log d. ``means``: E[log d] on `GRID`, which decreases."""
    return np.asarray(np.interp(-mean, -means, GRID))


def _interval(n: np.ndarray, total: np.ndarray, means: np.ndarray) -> tuple[float, float]:
    """Return the exponents of the interval's ends, which are NaN without an interval."""
    mean = estimates(ratio(total, n))
    return float(_solve(mean.high, means)), float(_solve(mean.low, means))


def build_prevalence(labels: Labels, tokens: np.ndarray, tokenizer: Tokenizer) -> pd.DataFrame:
    """Count scored tokens ``n`` and ``repeated`` ones for each ``domain, position, content``.

    ``position``: bin of the position (`argap.metric.bins.position_bins`); ``content``: whether the bigram is of content
    words (`argap.text.content`). ``tokens``: int32 ``[N]``, the ids of the evaluation set.
    """
    words = PieceBytes(tokenizer.piece_bytes).words(tokens, labels.window)
    content = content_bigrams(tokens, words, has_letters(tokenizer))
    rows = np.flatnonzero(labels.scored)
    position = position_bins(labels.record.evaluation.seq_len).index(labels.position[rows])
    groups = tally([labels.domain[rows], position, content[rows]], [labels.repeated[rows]])
    domain, position, content = groups.keys
    names = np.array(labels.domains, dtype=object)
    columns = {"domain": names[domain], "position": position, "content": content, "n": groups.n}
    return pd.DataFrame(columns | {"repeated": groups.sums[0].astype(np.int64)})
