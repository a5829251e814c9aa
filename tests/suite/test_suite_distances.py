"""The power law of distances: the exponent that data was drawn with, and its interval."""

import numpy as np
import pandas as pd
import pytest

from argap.suite.distances import expected_log, fit_exponents


def test_mean_of_the_logarithm_by_hand():
    # α = 0 on 1, 2: the mean of log 1 and log 2. α = 1: weights 1 and ½.
    found = expected_log(np.array([0.0, 1.0]), 2)
    assert found == pytest.approx([np.log(2) / 2, np.log(2) / 3])


@pytest.mark.parametrize("exponent", [0.5, 1.2, 2.5])
def test_the_exponent_of_drawn_distances_is_found(exponent):
    rng = np.random.default_rng(1)
    support = np.arange(1, 1023)
    weights = support**-exponent
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
