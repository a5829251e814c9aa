"""Figures over seeds: cases worked by hand, one seed straight from the definitions; max-t intervals."""

import numpy as np
import pytest
from scipy import stats

from argap.metric.documents import Figures, behind, effective_documents, shares
from argap.metric.influence import EMPTY, INFINITE, Component, Figure, estimates, ratio, simultaneous
from argap.metric.seeds import SEEDS_NOT_COVERED, figures_over_seeds, pool_seeds, seed_range
from argap.metric.share import directions


def figures(n: np.ndarray, logprob: np.ndarray, reference: int) -> Figures:
    """Return the figures of models of one seed each on each slice, straight from the definitions.

    ``n [S, D]``: scored tokens. ``logprob [S, M, D]``: sums of log p; −∞ if a token has probability 0, in which case
    the figures of that slice and model are NaN. ``reference``: its index among the models; all its differences are 0.
    A single document gives values without intervals.
    """
    n, logprob = np.asarray(n, dtype=np.float64), np.asarray(logprob, dtype=np.float64)
    lost = behind(logprob, reference)
    gap = ratio(lost[0], n[0])
    contribution = ratio(lost, n[0])
    whole = estimates(gap)
    return Figures(
        whole,
        directions(gap.value, whole.low, whole.high),
        effective_documents(lost[0]),
        estimates(ratio(-logprob, n[:, None])),
        estimates(ratio(lost, n[:, None])),
        estimates(contribution),
        shares(contribution, gap),
    )


def seeds(models, documents=40, seed=0):
    """n [2, D] and, of each model, logprob [2, I, D] of all tokens and of a slice."""
    generator = np.random.default_rng(seed)
    n = np.stack([generator.integers(100, 400, documents), generator.integers(10, 40, documents)]).astype(float)
    found = []
    for nll, count in models:
        shift = generator.normal(0, 0.02, count)
        each = nll + shift[:, None] + generator.normal(0, 0.05, (2, count, documents))
        each[1] += nll - 3
        found.append(-each * n[:, None])
    return n, found


def equal_documents(*of_each):
    """logprob [1, I, 2] of seeds that have the same sum in both documents."""
    return np.array(of_each, dtype=float)[None, :, None].repeat(2, axis=2)


def test_seeds_alone_worked_by_hand():
    # Documents are alike. Sums over both: −2 and −4, variance 2, of the mean of two 1, per token (2 tokens) 1/4.
    n = np.ones((1, 2))
    found = figures_over_seeds(n, equal_documents(-1, -2), equal_documents(0, 0)).figures
    assert found.gap.value == pytest.approx(1.5)
    assert found.gap.error == pytest.approx(0.5)
    assert found.gap.freedom == pytest.approx(1)
    assert (found.gap.low, found.gap.high) == pytest.approx((1.5 - 12.7062 / 2, 1.5 + 12.7062 / 2), rel=1e-5)
    assert found.direction == "level"
    # both sides: 1/4 each, and 1 + 1 degrees of freedom
    found = figures_over_seeds(n, equal_documents(-1, -2), equal_documents(0, -1)).figures
    assert found.gap.error == pytest.approx(0.5**0.5)
    assert found.gap.freedom == pytest.approx(2)
    assert found.nll.error == pytest.approx([0.5])


def test_the_pool_is_the_variance_within_models():
    # sums over both documents: (2, 6) and (4, 8, 12): squares 8 + 32, over 1 + 2 degrees of freedom
    pool = pool_seeds([equal_documents(1, 3), equal_documents(2, 4, 6), equal_documents(9)])
    assert (pool.rows**2).sum() == pytest.approx(40 / 3)
    assert pool.freedom == 3
    assert pool_seeds([equal_documents(9)]) is None
    assert pool_seeds([equal_documents(1, -np.inf)]) is None


def test_one_seed_takes_the_pool_s_variance():
    n = np.ones((1, 2))
    pool = pool_seeds([equal_documents(1, 3), equal_documents(2, 4, 6)])
    one = figures_over_seeds(n, equal_documents(-1), equal_documents(0), pool)
    assert one.reason is None
    assert one.figures.gap.error == pytest.approx((2 * 40 / 3 / 4) ** 0.5)  # two sides, two tokens
    assert one.figures.gap.freedom == pytest.approx(3)  # one estimate: not 6
    other = figures_over_seeds(n, equal_documents(-1, -2), equal_documents(0), pool)
    assert other.figures.gap.error == pytest.approx((40 / 3 / 4 + 1 / 4) ** 0.5)
    assert other.figures.nll.error == pytest.approx([0.5])


def test_one_seed_without_a_pool_is_the_interval_over_documents_and_says_so():
    n, (model, reference) = seeds([(3.3, 1), (3.0, 1)])
    found = figures_over_seeds(n, model, reference)
    alone = figures(n, np.concatenate([reference, model], axis=1), 0)
    assert found.reason == SEEDS_NOT_COVERED
    for ours, theirs in ((found.figures.gap, alone.gap), (found.figures.share, alone.share)):
        np.testing.assert_allclose(ours.low, theirs.low[..., 1])
        np.testing.assert_allclose(ours.high, theirs.high[..., 1])
    assert figures_over_seeds(n, np.repeat(model, 2, axis=1), reference).reason == SEEDS_NOT_COVERED


@pytest.mark.parametrize(("own", "theirs"), [(3, 2), (2, 1), (1, 3)])
def test_the_point_is_the_mean_over_all_pairs(own, theirs):
    n, (model, reference) = seeds([(3.3, own), (3.0, theirs)])
    found = figures_over_seeds(n, model, reference).figures
    pairs = [(reference[:, j] - model[:, i]).sum(axis=-1) / n[0].sum() for i in range(own) for j in range(theirs)]
    np.testing.assert_allclose(found.contribution.value, np.mean(pairs, axis=0))
    np.testing.assert_allclose(found.share.value, np.mean(pairs, axis=0) / np.mean(pairs, axis=0)[0])
    low, high = seed_range(n, model, reference).contribution
    np.testing.assert_allclose([low, high], [np.min(pairs, axis=0), np.max(pairs, axis=0)])


def test_swapping_model_and_reference_flips_signs_and_leaves_shares():
    n, (model, reference) = seeds([(3.3, 3), (3.0, 2)])
    there, back = figures_over_seeds(n, model, reference).figures, figures_over_seeds(n, reference, model).figures
    np.testing.assert_allclose(there.contribution.low, -back.contribution.high)
    np.testing.assert_allclose(there.share.low, back.share.low)
    assert (there.direction, back.direction) == ("behind", "ahead")
    ranges = seed_range(n, model, reference), seed_range(n, reference, model)
    np.testing.assert_allclose(ranges[0].delta[0], -ranges[1].delta[1])
    np.testing.assert_allclose(ranges[0].share[0], ranges[1].share[0])


def test_the_order_of_seeds_and_documents_changes_nothing():
    n, (model, reference) = seeds([(3.3, 3), (3.0, 2)])
    order = np.random.default_rng(0).permutation(n.shape[1])
    one = figures_over_seeds(n, model, reference).figures
    other = figures_over_seeds(n[:, order], model[:, ::-1, order], reference[:, ::-1, order]).figures
    np.testing.assert_allclose(one.share.low, other.share.low)
    np.testing.assert_allclose(one.gap.high, other.gap.high)


def test_seeds_widen_the_interval_and_the_range_is_not_one():
    n, (model, reference) = seeds([(3.3, 3), (3.0, 3)])
    over = figures_over_seeds(n, model, reference).figures
    alone = figures_over_seeds(n, model.mean(axis=1, keepdims=True), reference.mean(axis=1, keepdims=True)).figures
    assert over.gap.high - over.gap.low > alone.gap.high - alone.gap.low
    low, high = seed_range(n, model, reference).delta
    assert high[0] - low[0] < over.gap.high - over.gap.low


def test_an_infinite_seed_leaves_the_model_without_a_number():
    n, (model, reference) = seeds([(3.3, 2), (3.0, 2)])
    model[0, 1, 0] = -np.inf
    found = figures_over_seeds(n, model, reference).figures
    assert found.gap.reason == INFINITE
    assert found.share.reason.tolist() == [INFINITE] * 2
    assert found.contribution.reason.tolist() == [INFINITE, ""]
    assert np.isfinite(seed_range(n, model, reference).delta[1]).all()
    assert np.isnan(seed_range(n, np.full_like(model, -np.inf), reference).delta[1]).all()


def leaves(rows):
    return Figure(np.zeros(len(rows)), (Component(rows, rows.shape[1] - 1.0, True),))


def test_one_leaf_keeps_its_own_interval():
    one = leaves(np.random.default_rng(0).normal(size=(1, 60)))
    found, alone = simultaneous(one), estimates(one)
    assert found.each == pytest.approx(0.95, abs=0.005)
    assert found.estimates.high == pytest.approx(alone.high, rel=0.03)


def test_leaves_that_are_the_same_count_once():
    rows = np.random.default_rng(0).normal(size=(1, 60))
    six, one = simultaneous(leaves(rows.repeat(6, axis=0))), simultaneous(leaves(rows))
    assert six.each == pytest.approx(one.each, rel=1e-12)  # a product of other shapes, which rounds its sums otherwise


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
