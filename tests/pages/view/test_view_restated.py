"""A result at another τ and against another reference: from its cells, and the same as from its tokens."""

from pathlib import Path

import pandas as pd
import pytest

from argap.errors import ArgapError, FormatError
from argap.metric.bins import bins_of
from argap.result import open_result
from argap.results.restated import cells_at, restate, thresholds_of
from argap.slices.cells import KEYS, ar_hits, keys_of, sum_by, sum_cells
from argap.view.thresholds import at_every_threshold


def figures(scored, model):
    """NLL on the slice, the part of the gap and its share, with their intervals."""
    own = scored[model]
    return [own.nll, own.contribution, *own.contribution_ci95, own.share, *own.share_ci95]


def test_every_threshold_is_what_the_tokens_say(result):
    made = at_every_threshold(result.record, result.cells, "ref", intervals=True)
    assert [each.threshold for each in made.at] == list(thresholds_of(result.record))
    assert {0, 1, 2, 5, 10} < {each.threshold for each in made.at}
    shares = [each.ar_hits.share_of_tokens for each in made.at]
    assert shares == sorted(shares)
    assert shares[0] < shares[3]
    for at in made.at[:6]:
        whole, hits = result.slices({}, threshold=at.threshold)
        assert (at.ar_hits.n, at.other.n) == (hits.n, whole.n - hits.n)
        for model in ("m-1", "m2"):
            assert figures(at.ar_hits, model) == pytest.approx(figures(hits, model), rel=1e-6)


def test_without_intervals_the_numbers_are_the_same(result):
    quick, full = (at_every_threshold(result.record, result.cells, "m2", intervals=each) for each in (False, True))
    assert quick.reference == "m2"
    for one, other in zip(quick.at, full.at, strict=True):
        for model, a in one.ar_hits.estimates.items():
            b = other.ar_hits[model]
            assert (a.nll, a.share) == (pytest.approx(b.nll), pytest.approx(b.share))


@pytest.mark.parametrize("threshold", [2, 5])
def test_restated_rows_are_those_of_the_tokens(result, threshold):
    """At the result's own τ of 2, and beyond it, so that the bins 3–5 come in."""
    made = restate(result.record, result.cells, threshold=threshold, reference="m-1")
    frame = result.gap({}, threshold=threshold)
    assert made.models == ["m-1", "ref", "m2"]
    assert made.threshold == threshold
    for model in made.models:
        expected = frame[(frame["model"] == model) & (frame["slice"] == "ar_hits")].iloc[0]
        assert made.on_hits.n == expected["n"]
        assert made.on_hits[model].nll == pytest.approx(expected["nll"])
    assert made.deltas["m2"] == pytest.approx(made.on_all["m2"].nll - made.on_all["m-1"].nll)


def test_bins_of_another_threshold_keep_every_token(result):
    """The own τ of 1,250 is a bound that τ = 5,000 does not need: the bins on both sides of it become one."""
    committed = open_result(Path(__file__).parents[3] / "results" / "table1-mini" / "7m")
    cells, gap = committed.cells, committed.record
    merged = cells_at(cells, gap, 5000)
    n, frequency = (cells[name].to_numpy() for name in ("n", "frequency"))
    assert merged["n"].to_numpy().sum() == n.sum()
    assert len(set(merged["frequency"])) == len(set(frequency)) - 1
    own = cells["repeated"].to_numpy() & (frequency <= [each.high for each in gap.bins.frequency].index(5000))
    assert merged["n"].to_numpy()[ar_hits(merged, 5000, bins_of(5000, gap.evaluation.seq_len))].sum() == n[own].sum()


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        (
            {"threshold": 4, "reference": "ref"},
            "`threshold` 4: expected the upper end of a bin of its cells, one of 0, 1",
        ),
        ({"threshold": 2, "reference": "gone"}, "`reference` gone: not one of the models compared, which are ref, m-1"),
    ],
)
def test_other_settings_are_refused(result, setting, message):
    with pytest.raises(ArgapError) as refused:
        restate(result.record, result.cells, **setting)
    assert str(refused.value).startswith(message)


def test_the_own_setting_is_the_record_itself(result):
    assert restate(result.record, result.cells, threshold=2, reference="ref") is result.record


def test_cells_summed_in_the_file_are_those_in_memory(token_result, result):
    made = sum_cells(token_result / "cells.parquet", ["document", "distance"], ["m2", "ref"])
    columns = ["document", "distance", "n", "logprob/m2", "logprob/ref"]
    expected = sum_by(result.cells[columns], ["document", "distance"])
    pd.testing.assert_frame_equal(made, expected, check_dtype=False)
    assert keys_of(token_result / "cells.parquet") == tuple(KEYS)
    with pytest.raises(FormatError, match="not a complete file of cells"):
        sum_cells(token_result / "cells.parquet", ["colour"], ["m2"])
