"""The power law of distances: recovering a known exponent, and its interval."""

import numpy as np
import pandas as pd
import pytest

from argap.suite.distances import expected_log, fit_exponents, power_law


def test_expected_log_matches_a_worked_example():
    # On 1, 2 there is room for 1 twice, for 2 once. α = 0: weights 2 and 1. α = 1: weights 2 and ½.
    found = expected_log(np.array([0.0, 1.0]), 2)
    assert found == pytest.approx([np.log(2) / 3, np.log(2) / 5])


def test_power_law_counts_positions_with_room():
    # Wherever a token repeats the one d before it with probability ∝ d^−2, alike at all places of 5.
    pairs = np.array([b - a for a in range(5) for b in range(a + 1, 5)], dtype=float)
    weight = np.array([(pairs == d).sum() * d**-2.0 for d in range(1, 5)])
    assert power_law(np.array([2.0]), 4) == pytest.approx(weight / weight.sum())


@pytest.mark.parametrize("exponent", [0.5, 1.2, 2.5])
def test_fit_recovers_the_exponent_of_sampled_distances(exponent):
    rng = np.random.default_rng(1)
    support = np.arange(1, 1023)
    weights = (1023 - support) * support**-exponent
    drawn = np.log(rng.choice(support, 60_000, p=weights / weights.sum())).reshape(60, 1000)
    documents = pd.DataFrame(
        {"document": np.arange(60), "domain": ["a"] * 30 + ["b"] * 30, "n": 1000, "log_distance": drawn.sum(axis=1)}
    )
    fitted = fit_exponents(documents, 1022).set_index("domain")
    assert list(fitted.index) == ["all", "a", "b"]
    assert fitted.loc["all", "exponent"] == pytest.approx(exponent, abs=0.02)
    assert fitted.loc["all", "low"] < exponent < fitted.loc["all", "high"]
    assert (fitted["high"] - fitted["low"]).to_numpy()[0] < (fitted["high"] - fitted["low"]).to_numpy()[1]


def test_one_document_has_no_interval():
    documents = pd.DataFrame({"document": [0], "domain": ["a"], "n": [3], "log_distance": [2.0]})
    fitted = fit_exponents(documents, 100)
    assert np.isnan(fitted["low"].to_numpy()).all()
    assert np.isnan(fitted["high"].to_numpy()).all()
