"""Figures of slices and their intervals over documents: cases worked by hand, identities, and what has no number."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from argap.metric.documents import GROUPS, Figures, group_of, leave_one_source_out
from argap.metric.influence import (
    EMPTY,
    ONE_DOCUMENT,
    UNCERTAIN,
    Component,
    Estimates,
    Figure,
    effective_freedom,
    effective_number,
    estimates,
    freedom,
    ratio,
    ratio_of_figures,
)
from argap.metric.seeds import figures_over_seeds
from argap.metric.share import NO_SHARE, contains_zero, direction
from argap.records import INFINITE


def figures(n, logprob, reference):
    """Return the figures of models of one seed each, stacked to ``[S, M]``: with one seed they are over documents."""
    found = [figures_over_seeds(n, own[:, None], logprob[:, [reference]]).figures for own in np.moveaxis(logprob, 1, 0)]

    def stacked(name, axis):
        return Estimates(*(np.stack(each, axis) for each in zip(*(getattr(one, name) for one in found), strict=True)))

    over_slices = (stacked(name, 1) for name in ("nll", "delta", "contribution", "share"))
    direction, worth = (np.stack([getattr(each, name) for each in found]) for name in ("direction", "worth"))
    return Figures(stacked("gap", 0), direction, worth, *over_slices)


def text(seed=0, documents=40, gap=0.3):
    """n [3, D] and logprob [3, 3, D]: all tokens, and two slices that part them; the reference and two models."""
    generator = np.random.default_rng(seed)
    slices = generator.integers(20, 200, (2, documents)).astype(float)
    nll = np.array([3.0, 3.0 + gap, 3.0 - gap])[:, None] + generator.normal(0, 0.1, (2, 3, documents))
    nll[0, 1] += gap  # most of the first model's gap is on the first slice
    sums = -nll * slices[:, None]
    return np.stack([slices.sum(axis=0), *slices]), np.stack([sums.sum(axis=0), *sums])


def test_an_interval_worked_by_hand():
    # R = 6 / 4; y − R x = (−½, ½, 0), over X − x = (3, 3, 2): (−⅙, ⅙, 0); variance ⅔ · 2/36 = 1/27. Two documents hold
    # the variance, half each: W = 2, so 2 (W − 1) = 2 degrees of freedom, t = 4.302653.
    found = estimates(ratio(np.array([1.0, 2.0, 3.0]), np.array([1.0, 1.0, 2.0])))
    assert found.value == pytest.approx(1.5)
    assert found.error == pytest.approx(27**-0.5)
    assert found.freedom == pytest.approx(2)
    assert (found.low, found.high) == pytest.approx((1.5 - 4.302653 * 27**-0.5, 1.5 + 4.302653 * 27**-0.5))


def test_documents_of_equal_length_give_the_standard_error_of_a_mean():
    values = np.random.default_rng(2).normal(size=30)
    found = estimates(ratio(values, np.ones(30)))
    assert found.error == pytest.approx(values.std(ddof=1) / 30**0.5)


def test_effective_number_and_freedom_by_hand():
    assert effective_number(np.array([[1.0, 1.0, 2.0], [1.0, -1.0, 0.0], [0.0, 0.0, 0.0]])) == pytest.approx(
        [16 / 6, 0, 0]
    )
    # squares (1, 1, 4): W = 36 / 18 = 2
    assert effective_freedom(np.array([1.0, -1.0, 2.0]), 9.0) == pytest.approx(2)
    assert effective_freedom(np.array([1.0, 0.0, 0.0]), 9.0) == 1
    assert effective_freedom(np.ones(20), 4.0) == 4
    assert effective_freedom(np.zeros(20), 4.0) == 4


def test_freedom_of_a_sum_is_satterthwaite_s():
    # V = 1 + 3; 16 / (1/2 + 9/4)
    parts = [Component(np.array([1.0]), 2.0, False), Component(np.array([3**0.5]), 4.0, False)]
    assert freedom(parts) == pytest.approx(16 / 2.75)


def test_the_ends_of_a_share_are_where_part_less_share_of_the_whole_may_just_be_0():
    n, logprob = text()
    found = figures(n, logprob, 0)
    lost = logprob[:, 0] - logprob[:, 1]
    for end in (found.share.low[1, 1], found.share.high[1, 1]):
        rest = ratio(lost[1] - end * lost[0], n[0])
        error = np.sqrt((rest.components[0].rows ** 2).sum())
        assert abs(rest.value) / error == pytest.approx(stats.t.ppf(0.975, found.share.freedom[1, 1]))


def test_a_share_of_a_gap_far_from_0_has_the_linearised_interval():
    n, logprob = text(documents=400, gap=3.0)
    found = figures(n, logprob, 0).share
    half = stats.t.ppf(0.975, found.freedom[1, 1]) * found.error[1, 1]
    ends = found.value[1, 1] - half, found.value[1, 1] + half
    assert (found.low[1, 1], found.high[1, 1]) == pytest.approx(ends, abs=0.02 * half)


@settings(max_examples=30)
@given(st.integers(0, 1000), st.integers(2, 60))
def test_contributions_of_a_partition_add_up_and_shares_mirror_each_other(seed, documents):
    found = figures(*text(seed, documents), 0)
    np.testing.assert_allclose(found.contribution.value[1:].sum(axis=0), found.gap.value, atol=1e-12)
    shares = found.share
    np.testing.assert_allclose(shares.value[1] + shares.value[2], np.where(shares.reason[1] == NO_SHARE, np.nan, 1.0))
    np.testing.assert_allclose(shares.low[1], 1 - shares.high[2], rtol=1e-6)
    np.testing.assert_allclose(found.contribution.value[0], found.gap.value)


@settings(max_examples=30)
@given(st.integers(0, 1000), st.sampled_from([0.3, 0.02]))
def test_swapping_model_and_reference_flips_signs_and_leaves_shares(seed, gap):
    n, logprob = text(seed, gap=gap)
    there, back = figures(n, logprob[:, :2], 0), figures(n, logprob[:, :2], 1)
    for name in ("gap", "delta", "contribution"):
        ours, theirs = getattr(there, name), getattr(back, name)
        np.testing.assert_allclose(ours.value[..., 1], -theirs.value[..., 0])
        np.testing.assert_allclose(ours.low[..., 1], -theirs.high[..., 0])
    np.testing.assert_allclose(there.share.value[:, 1], back.share.value[:, 0])
    np.testing.assert_allclose(there.share.low[:, 1], back.share.low[:, 0], rtol=1e-6)
    opposite = {"behind": "ahead", "ahead": "behind", "level": "level"}
    assert there.direction[1] == opposite[back.direction[0]]
    assert there.direction[0] == "level"


@settings(max_examples=30)
@given(st.integers(0, 1000))
def test_the_order_of_documents_changes_nothing(seed):
    n, logprob = text(seed)
    order = np.random.default_rng(seed).permutation(n.shape[-1])
    one, other = figures(n, logprob, 0), figures(n[:, order], logprob[..., order], 0)
    for ours, theirs in zip(one, other, strict=True):
        if isinstance(ours, np.ndarray):
            assert ours.dtype.kind == "U" or ours == pytest.approx(theirs)
        else:
            for mine, yours in zip(ours[:5], theirs[:5], strict=True):
                np.testing.assert_allclose(mine, yours, rtol=1e-6, atol=1e-9)


def test_a_slice_without_tokens_contributes_0_and_has_no_nll():
    n, logprob = text()
    n[1], logprob[1] = 0, 0
    found = figures(n, logprob, 0)
    for figure in (found.contribution, found.share):
        assert (figure.value[1, 1], figure.low[1, 1], figure.high[1, 1]) == (0, 0, 0)
    for figure in (found.nll, found.delta):
        assert np.isnan([figure.value[1, 1], figure.low[1, 1]]).all()
        assert figure.reason[1, 1] == EMPTY


def test_a_slice_in_one_document_has_an_nll_without_an_interval():
    n, logprob = text()
    n[1, 1:], logprob[1, :, 1:] = 0, 0
    found = figures(n, logprob, 0)
    assert found.nll.value[1, 0] == pytest.approx(-logprob[1, 0, 0] / n[1, 0])
    assert found.nll.reason[1, 0] == ONE_DOCUMENT
    assert np.isnan(found.nll.low[1, 0])
    assert np.isfinite(found.contribution.low[1, 1])


def test_one_document_has_values_without_intervals():
    n, logprob = text(documents=1)
    found = figures(n, logprob, 0)
    assert found.direction.tolist() == ["level", "behind", "ahead"]
    for figure in (found.gap, found.nll, found.contribution, found.share):
        assert np.isfinite(figure.value[..., 1:]).all()
        assert np.isnan(figure.high).all()
        assert set(figure.reason[..., 1:].ravel()) == {ONE_DOCUMENT}


def test_equal_documents_have_an_interval_of_no_width():
    n, logprob = text(documents=1)
    found = figures(np.repeat(n, 5, axis=-1), np.repeat(logprob, 5, axis=-1), 0)
    assert found.gap.low == pytest.approx(found.gap.high)
    assert found.direction.tolist() == ["level", "behind", "ahead"]


def test_a_probability_of_0_leaves_the_other_slices_their_figures():
    n, logprob = text()
    finite = figures(n, logprob, 0)
    for slice_ in (0, 1):
        logprob[slice_, 1, 3] = -np.inf
    found = figures(n, logprob, 0)
    assert found.direction[1] == "behind"
    assert found.gap.reason[1] == INFINITE
    assert found.share.reason[:, 1].tolist() == [INFINITE] * 3
    assert np.isnan(found.share.value[:, 1]).all()
    assert found.contribution.reason[:, 1].tolist() == [INFINITE, INFINITE, ""]
    np.testing.assert_array_equal(found.contribution.low[2], finite.contribution.low[2])
    np.testing.assert_array_equal(found.share.low[:, 2], finite.share.low[:, 2])
    logprob[:2, 0, 5] = -np.inf  # the reference, too: neither is ahead
    assert figures(n, logprob, 0).direction[1] == "level"
    assert figures(n, logprob, 0).contribution.reason[0, 1] == INFINITE


def test_level_models_have_contributions_and_no_shares():
    n, logprob = text(gap=0.0)
    found = figures(n, logprob, 0)
    assert found.direction.tolist() == ["level"] * 3
    assert np.isfinite(found.contribution.low).all()
    assert np.isnan(found.share.value).all()
    assert set(found.share.reason.ravel()) == {NO_SHARE}


def test_a_share_with_a_slice_of_few_degrees_of_freedom_may_have_no_interval():
    # the whole is 4 standard errors from 0; the part rests on one document: t(1) = 12.7
    rows = np.zeros((2, 50))
    rows[0, 0], rows[1, 1:] = 1.0, 1 / 7
    part, whole = (
        Figure(np.array(v), (Component(each, 49.0, True),)) for v, each in zip((0.1, 4.0), rows, strict=True)
    )
    found = ratio_of_figures(part, whole)
    assert found.value == pytest.approx(0.025)
    assert found.reason == UNCERTAIN
    assert np.isnan(found.low)


@pytest.mark.parametrize(
    ("delta", "interval", "expected"),
    [
        (0.2, (0.1, 0.3), "behind"),
        (-0.2, (-0.3, -0.1), "ahead"),
        (0.2, (-0.1, 0.5), "level"),
        (0.2, (0.0, 0.4), "level"),
        (0.2, None, "behind"),
        (0.0, None, "level"),
        (float("inf"), None, "behind"),
        (float("nan"), None, "level"),
    ],
)
def test_direction(delta, interval, expected):
    assert direction(delta, interval) == expected


def test_an_interval_that_ends_at_0_contains_it():
    assert [contains_zero(ends) for ends in ((0, 1), (-1, 0), (0.1, 1), None)] == [True, True, False, False]


def test_without_a_source_shares_are_those_of_the_other_documents():
    n, logprob = text()
    source = np.arange(40) % 3
    found = leave_one_source_out(logprob[:, [0]] - logprob, source)
    rest = figures(n[:, source != 1], logprob[..., source != 1], 0)
    np.testing.assert_allclose(found.share[:, 1:, 1], rest.share.value[:, 1:])
    assert found.part[1:].sum(axis=-1) == pytest.approx([1, 1])
    assert np.isnan(found.share[:, 0]).all()


def test_groups_of_documents():
    assert group_of(5).tolist() == [0, 1, 2, 3, 4]
    sizes = np.bincount(group_of(10_000))
    assert len(sizes) == GROUPS
    assert set(sizes) == {2, 3}
