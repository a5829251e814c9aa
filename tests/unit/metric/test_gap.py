"""The four cases of the metric and the share of a gap closed, in worked examples."""

import math

import pytest

from argap.metric.share import gap_due_to_ar, perplexity, share_closed
from argap.records import ClosedShare


@pytest.mark.parametrize(
    ("delta_hits", "delta_all", "share", "expected"),
    [
        # Hits are a quarter of the tokens; there the model is 2 nats worse, overall 0.8: 2 · 0.25 / 0.8.
        (-2.0, -0.8, 0.25, (0.625, 0.625, "explained")),
        (-2.0, -0.4, 0.25, (1.0, 1.25, "explained")),  # better on the other tokens
        (0.0, -0.3, 0.0, (0.0, 0.0, "explained")),  # without hits
        (0.5, -0.2, 0.1, (-0.25, -0.25, "reversed")),
        (-0.1, 0.2, 0.1, (1.0, -0.05, "recall_only")),
        (-0.1, 0.0, 0.1, (1.0, None, "recall_only")),
        (0.1, 0.2, 0.1, (None, 0.05, "no_gap")),
        (0.0, 0.0, 0.1, (None, None, "no_gap")),
    ],
)
def test_each_case_by_hand(delta_hits, delta_all, share, expected):
    found = gap_due_to_ar(delta_hits, delta_all, share)
    assert found == pytest.approx(expected)
    assert str(found.raw) != "-0.0"  # in a table


def test_share_closed_matches_a_worked_example():
    # In NLL halfway; in perplexity (e² − e^1.5) / (e² − e).
    closed = share_closed(nll=1.5, base=2.0, reference=1.0)
    assert closed.nll == 0.5
    assert closed.ppl == pytest.approx((math.e**2 - math.e**1.5) / (math.e**2 - math.e))


def test_a_base_without_a_gap_has_nothing_to_close():
    assert share_closed(nll=1.5, base=1.0, reference=1.0) == ClosedShare(None, None)


@pytest.mark.parametrize("unknown", ["nll", "base", "reference"])
def test_an_infinite_nll_closes_nothing(unknown):
    assert share_closed(**{"nll": 1.5, "base": 2.0, "reference": 1.0} | {unknown: None}) is None


def test_a_perplexity_beyond_float64_is_null():
    """exp(709.8) is above 1.797e308, the largest float64; exp(709) is 8.2e307."""
    assert perplexity(709.0) == pytest.approx(8.2184e307, rel=1e-4)
    assert perplexity(709.8) is None
    assert share_closed(nll=1.5, base=800.0, reference=1.0) == ClosedShare(None, 798.5 / 799)
    assert share_closed(nll=800.0, base=2.0, reference=1.0) == ClosedShare(None, -798.0)
