"""The four cases of the metric and the share of a gap closed, in worked examples."""

import math

import pytest

from argap.gap import gap_due_to_ar, perplexity, share_closed
from argap.records import ClosedShare


def test_explained_matches_a_worked_example():
    # Hits are a quarter of the tokens; there the model is 2 nats worse, overall 0.8: 2 · 0.25 / 0.8.
    result = gap_due_to_ar(-2.0, -0.8, 0.25)
    assert result == (pytest.approx(0.625), pytest.approx(0.625), "explained")


def test_a_model_better_on_other_tokens_is_capped_at_all():
    result = gap_due_to_ar(-2.0, -0.4, 0.25)
    assert (result.value, result.raw, result.case) == (1.0, pytest.approx(1.25), "explained")


def test_recall_only_if_the_model_is_as_good_overall():
    assert gap_due_to_ar(-0.1, 0.2, 0.1)[::2] == (1.0, "recall_only")
    assert gap_due_to_ar(-0.1, 0.0, 0.1) == (1.0, None, "recall_only")


def test_no_gap_has_no_number():
    assert gap_due_to_ar(0.1, 0.2, 0.1)[::2] == (None, "no_gap")
    assert gap_due_to_ar(0.0, 0.0, 0.1) == (None, None, "no_gap")


def test_reversed_is_shown_negative():
    assert gap_due_to_ar(0.5, -0.2, 0.1) == (pytest.approx(-0.25), pytest.approx(-0.25), "reversed")


def test_without_hits_the_share_is_zero():
    result = gap_due_to_ar(0.0, -0.3, 0.0)
    assert (result.value, result.raw, result.case) == (0.0, 0.0, "explained")
    assert math.copysign(1, result.raw or 0.0) == 1  # no negative zero in a table


def test_share_closed_matches_a_worked_example():
    # In NLL halfway; in perplexity (e² − e^1.5) / (e² − e).
    closed = share_closed(nll=1.5, base=2.0, reference=1.0)
    assert closed.nll == pytest.approx(0.5)
    assert closed.ppl == pytest.approx((math.e**2 - math.e**1.5) / (math.e**2 - math.e))


def test_a_base_without_a_gap_has_nothing_to_close():
    assert share_closed(nll=1.5, base=1.0, reference=1.0) == ClosedShare(None, None)


def test_a_perplexity_beyond_float64_is_null():
    """exp(709.8) is above 1.797e308, the largest float64; exp(709) is 8.2e307."""
    assert perplexity(709.0) == pytest.approx(8.2184e307, rel=1e-4)
    assert perplexity(709.8) is None
    closed = share_closed(nll=1.5, base=800.0, reference=1.0)
    assert closed is not None
    assert (closed.ppl, closed.nll) == (None, pytest.approx(798.5 / 799))
