"""Coverage of the 95% intervals by simulation: documents drawn from a population whose gap is known."""

import numpy as np
import pytest

from argap.metric.intervals import FEW, DocumentBootstrap
from argap.slices.figures import Key, SliceScorer

SHARE = 0.6
"""Of the population's gap that is on the slice."""


def covered(documents: int, sigma: float, draws: int, monkeypatch: pytest.MonkeyPatch) -> tuple[float, float, float]:
    """How often the intervals of the slice's contribution and of its share of the gap hold the truth, and the effective
    number of documents, on average.

    A document has a log-normal number of tokens and its own gap, of which the slice has its own share; neither depends
    on the length, so that the truth is the mean. 1,000 resamples are enough here, drawn once: they are the same for the
    same number of documents.
    """
    weights = list(DocumentBootstrap(documents, resamples=1000)._weights())
    monkeypatch.setattr(DocumentBootstrap, "_weights", lambda _: weights)
    generator = np.random.default_rng(documents)
    hits = np.zeros(2)
    worth = 0.0
    for _ in range(draws):
        n = np.round(200 * np.exp(sigma * generator.standard_normal(documents))) + 1
        gap = generator.gamma(4, 0.05, documents)  # 0.2 nats
        share = generator.beta(6, 4, documents)
        lost = np.stack([np.zeros(documents), -n * gap], axis=1)
        scorer = SliceScorer(["ref", "m"], "ref", n, lost - 3 * n[:, None])
        scorer.add(Key("named", "half"), np.round(n / 2), lost * share[:, None] - 1.5 * n[:, None])
        model = scorer.results()[1]["m"]
        for k, (ends, truth) in enumerate([(model.contribution_ci95, 0.2 * SHARE), (model.share_ci95, SHARE)]):
            assert ends is not None
            hits[k] += ends[0] <= truth <= ends[1]
        worth += n.sum() ** 2 / (n**2).sum() / draws
    return *(hits / draws), worth


def test_intervals_cover_the_truth_at_200_documents(monkeypatch):
    contribution, share, worth = covered(200, 0.5, 1000, monkeypatch)
    assert worth > 5 * FEW
    # 93 to 97% of many draws; of 1,000, a standard error is 0.7 points.
    assert 0.92 <= contribution <= 0.98
    assert 0.92 <= share <= 0.98


def test_intervals_that_are_warned_of_cover_less(monkeypatch):
    contribution, share, worth = covered(200, 2.5, 1000, monkeypatch)
    assert worth < FEW
    assert contribution < 0.93
    assert share < 0.93


@pytest.mark.slow
def test_intervals_cover_93_to_97_percent(monkeypatch):
    for found in covered(200, 0.5, 4000, monkeypatch)[:2]:
        assert 0.93 <= found <= 0.97
