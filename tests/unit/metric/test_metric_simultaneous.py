"""Max-t intervals over leaves."""

import numpy as np
import pytest
from scipy import stats

from argap.metric.influence import EMPTY, Component, Figure, estimates, ratio
from argap.metric.simultaneous import simultaneous


def leaves(rows):
    return Figure(np.zeros(len(rows)), (Component(rows, rows.shape[1] - 1.0, True),))


def test_one_leaf_keeps_its_own_interval():
    one = leaves(np.random.default_rng(0).normal(size=(1, 60)))
    found, alone = simultaneous(one), estimates(one)
    assert found.each == pytest.approx(0.95, abs=0.005)
    assert found.estimates.high == pytest.approx(alone.high, rel=0.03)


def test_leaves_that_are_the_same_count_once():
    rows = np.random.default_rng(0).normal(size=(1, 60))
    assert simultaneous(leaves(rows.repeat(6, axis=0))).each == simultaneous(leaves(rows)).each


def test_independent_leaves_are_near_sidak_and_correlated_ones_below():
    rows = np.kron(np.eye(5), np.random.default_rng(0).normal(size=400))
    independent = simultaneous(leaves(rows))
    assert independent.each == pytest.approx(0.95 ** (1 / 5), abs=0.002)
    assert independent.critical == pytest.approx(
        stats.t.ppf(0.5 + independent.each / 2, estimates(leaves(rows)).freedom)
    )
    together = simultaneous(leaves(rows + rows.sum(axis=0)))
    assert 0.95 < together.each < independent.each


def test_a_partition_s_two_leaves_mirror_each_other_and_an_empty_one_does_not_count():
    n = np.full((3, 30), 10.0)
    lost = np.random.default_rng(1).normal(size=(3, 30))
    n[2], lost[2] = 0, 0
    found = simultaneous(ratio(lost, n))
    assert found.estimates.reason.tolist() == ["", "", EMPTY]
    assert found.each == simultaneous(ratio(lost[:2], n[:2])).each
    assert np.isnan(found.estimates.low[2])
    assert simultaneous(ratio(lost[2:], n[2:])).each == 0.95


def test_the_seed_fixes_the_draws():
    some = leaves(np.random.default_rng(0).normal(size=(4, 60)))
    assert simultaneous(some).each == simultaneous(some).each
    assert simultaneous(some, seed=1).each != simultaneous(some).each


def test_few_degrees_of_freedom_still_widen_the_intervals():
    rows = np.kron(np.eye(3), [1.0, -1.0, 1.0, -1.0])  # W = 4 documents each: 6 degrees of freedom
    found = simultaneous(leaves(rows))
    assert estimates(leaves(rows)).freedom == pytest.approx([6, 6, 6])
    assert 0.975 < found.each < 0.985  # Šidák's is 0.983
