"""Cells, breakdowns and intervals equal a plain recomputation, and parts add up to the whole."""

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from argap.errors import FormatError
from argap.metric.bins import bins_of, distance_bins, frequency_bins, position_bins
from argap.metric.intervals import DocumentBootstrap, _drawn
from argap.records import EvaluationRecord, IndexRecord, LabelsRecord, SliceInfo
from argap.results.ladder import ladder
from argap.results.restated import restate
from argap.results.summary import summarize
from argap.slices.cells import ar_hits, build_cells, models_of, read_cells, write_cells
from argap.slices.figures import Key, SliceScorer
from argap.tokens.labels import Labels
from tests.conftest import assert_close

SEQ_LEN, WINDOWS, DOCUMENTS = 64, 24, 6
EVALUATION = EvaluationRecord(
    "f", "t", "t", SEQ_LEN * WINDOWS, (SEQ_LEN - 1) * WINDOWS, WINDOWS, DOCUMENTS, SEQ_LEN, "packed"
)
INDEX = IndexRecord("index", "t", "t", 10**9, 1, 1, False)
BINS = bins_of(1250, SEQ_LEN)


def summary(cells, threshold=1250, base=None):
    return summarize(cells, reference="ref", threshold=threshold, evaluation=EVALUATION, index=INDEX, base=base)


def make_labels(seed: int = 0) -> Labels:
    rng = np.random.default_rng(seed)
    n = SEQ_LEN * WINDOWS
    repeated = rng.random(n) < 0.4
    position = np.tile(np.arange(SEQ_LEN, dtype=np.int32), WINDOWS)
    repeated[position < 2] = False
    match_length = np.where(repeated, rng.integers(1, 9, n), 0).astype(np.int32)
    return Labels(
        window=np.repeat(np.arange(WINDOWS, dtype=np.int32), SEQ_LEN),
        position=position,
        repeated=repeated,
        distance=np.where(repeated, rng.integers(1, SEQ_LEN, n), 0).astype(np.int32),
        occurrences=repeated.astype(np.int32),
        train_count=(10 ** rng.uniform(0, 6, n)).astype(np.int64) * (rng.random(n) < 0.9),
        domain=np.repeat(np.arange(WINDOWS, dtype=np.int32) % 2, SEQ_LEN),
        domains=["prose", "code"],
        document_of_window=(np.arange(WINDOWS) * DOCUMENTS // WINDOWS).astype(np.int32),
        record=LabelsRecord(2, EVALUATION, INDEX, ("",) * EVALUATION.documents),
        opportunity=repeated | (rng.random(n) < 0.5) & (position > 1),
        match_length=match_length,
        induction=repeated & (rng.random(n) < 0.7),
    )


def make_logprobs(labels: Labels, threshold: float, seed: int = 1) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    reference = -rng.exponential(2.0, len(labels.window)).astype(np.float32)
    worse = reference - np.where(labels.ar_hit(threshold), 1.0, 0.1) * rng.random(len(reference))
    found = {"ref": reference, "m": worse.astype(np.float32)}
    for values in found.values():
        values[labels.position == 0] = np.nan
    return found


@pytest.fixture(scope="module")
def case():
    labels = make_labels()
    assert labels.train_count is not None
    labels.train_count[1] = 0  # the first scored token is in the lowest group of every key
    logprobs = make_logprobs(labels, 1250)
    cells = build_cells(labels, logprobs, BINS)
    return labels, logprobs, cells, summary(cells, 1250, base="m")


def test_rows_equal_a_plain_recomputation(case):
    labels, logprobs, _, gap = case
    scored, hits = labels.position > 0, labels.repeated & (labels.train_count <= 1250)
    means = {}
    for model in gap.models:
        values = logprobs[model].astype(np.float64)
        parts = {"overall": gap.on_all, "ar_hits": gap.on_hits, "other": gap.on_other}
        for name, mask in (("overall", scored), ("ar_hits", hits), ("other", scored & ~hits)):
            assert parts[name].n == mask.sum()
            assert parts[name][model].nll == pytest.approx(-values[mask].mean(), abs=1e-12)
            assert parts[name][model].ppl == pytest.approx(np.exp(-values[mask].mean()))
            means[model, name] = values[mask].mean()
    share = hits.sum() / scored.sum()
    raw = (means["m", "ar_hits"] - means["ref", "ar_hits"]) * share / (means["m", "overall"] - means["ref", "overall"])
    assert gap.models[0] == gap.reference
    assert gap.on_hits["ref"].share is None
    assert gap.on_hits["m"].share == pytest.approx(raw, abs=1e-12)
    assert gap.on_hits.share_of_tokens == pytest.approx(share)


def test_the_result_is_the_same_however_many_models_are_scored_at_once(monkeypatch) -> None:
    labels = make_labels()
    drawn = {f"m{k}": make_logprobs(labels, 1250, seed=k)["m"] for k in range(5)}
    cells = build_cells(labels, {"m0": drawn.pop("m0"), "ref": make_logprobs(labels, 1250)["ref"], **drawn}, BINS)
    together = summary(cells)
    for at_once in (1, 2, 3):
        monkeypatch.setattr("argap.slices.figures.TOGETHER", at_once)
        again = summary(cells)
        assert again.rows == together.rows
        assert_close(again.estimates, together.estimates)  # arrays of other shapes, which round their sums otherwise


def test_every_breakdown_adds_up_to_the_gap(case):
    _, _, _, gap = case
    for name in ("slice", "frequency", "distance", "position", "domain", "copy", "induction"):
        parts = gap.parts(name)
        assert sum(part["m"].contribution for part in parts) == pytest.approx(gap.deltas["m"], abs=1e-12)
        assert sum(part["m"].share for part in parts) == pytest.approx(1)
        assert sum(part.share_of_tokens for part in parts) == pytest.approx(1)
        assert sum(part.n for part in parts) == gap.on_all.n
    assert [part.bin for part in gap.parts("domain")] == ["code", "prose"]
    for name in ("distance", "position"):  # in order; no token is beyond the window
        labels = [each.label for each in getattr(gap.bins, name)]
        assert [part.bin for part in gap.parts(name)] == labels[:-1]


def test_breakdown_entries_equal_a_plain_recomputation(case):
    labels, logprobs, _, gap = case
    scored = labels.position > 0
    mask = scored & labels.repeated & (labels.train_count > 10) & (labels.train_count <= 20)
    (part,) = [p for p in gap.parts("frequency") if p.bin == "11–20" and p.repeated]
    assert part.n == mask.sum()
    assert part["m"].nll == pytest.approx(-logprobs["m"][mask].mean(dtype=np.float64))
    code = scored & (labels.domain == 1)
    (part,) = [p for p in gap.parts("domain") if p.bin == "code"]
    assert part.n == code.sum()
    far = scored & (labels.distance > 32) & (labels.distance <= 64)
    (part,) = [p for p in gap.parts("distance") if p.bin == "33–64"]
    assert part.n == far.sum()


def test_the_curve_is_the_metric_at_each_threshold(case):
    labels, logprobs, _, gap = case
    taus = [int(point.bin) for point in gap.curve]
    assert taus[:4] == [0, 1, 2, 5]
    assert taus[-2] < labels.train_count[labels.repeated].max() <= taus[-1]
    assert str(1250) not in [part.bin for part in gap.parts("threshold")]  # they are the AR hits
    (own,) = [point for point in gap.curve if point.bin == "1250"]
    assert own["m"].contribution_ci95 == gap.on_hits["m"].contribution_ci95
    for point in gap.curve[::5]:  # the same from cells that were made for the threshold
        tau = int(point.bin)
        hits = summary(build_cells(labels, logprobs, bins_of(tau, SEQ_LEN)), tau).on_hits
        assert (point.n, point.share_of_tokens) == (hits.n, hits.share_of_tokens)
        assert point["m"].share == pytest.approx(hits["m"].share, abs=1e-12)
        assert point["m"].share_ci95 == pytest.approx(hits["m"].share_ci95, abs=1e-9)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**6), st.floats(-1, 1), st.floats(-1, 1))
def test_swapping_model_and_reference_flips_every_sign_and_leaves_every_share(seed, on_hits, elsewhere):
    labels = make_labels(seed)
    logprobs = make_logprobs(labels, 1250, seed)
    noise = np.random.default_rng(seed).normal(0, 0.3, len(labels.window))
    lost = np.where(labels.ar_hit(1250), on_hits, elsewhere) + noise
    cells = build_cells(labels, {"ref": logprobs["ref"], "m": logprobs["ref"] - lost.astype(np.float32)}, BINS)
    there, back = (
        summarize(cells, reference=name, threshold=1250, evaluation=EVALUATION, index=INDEX) for name in ("ref", "m")
    )
    other = {"behind": "ahead", "ahead": "behind", "level": "level"}
    assert back.directions["ref"] == other[there.directions["m"]]
    of = {(each.partition, each.bin, each.repeated): each for each in back.estimates if each.model == "ref"}
    for each in there.estimates:
        if each.model == "m":
            swapped = of[each.partition, each.bin, each.repeated]
            for name in ("delta", "contribution"):
                assert getattr(swapped, name) == pytest.approx(-getattr(each, name), abs=1e-12)
                low, high = getattr(each, f"{name}_ci95")
                assert getattr(swapped, f"{name}_ci95") == pytest.approx((-high, -low), abs=1e-9)
            assert (swapped.share is None, swapped.reason) == (each.share is None, each.reason)
            if each.share is not None:
                assert swapped.share == pytest.approx(each.share, rel=1e-9, abs=1e-12)
                assert (swapped.share_ci95 is None) == (each.share_ci95 is None)
                if each.share_ci95 is not None:
                    assert swapped.share_ci95 == pytest.approx(each.share_ci95, rel=1e-6, abs=1e-9)


def test_cells_round_trip_through_a_file(case, tmp_path):
    labels, _, cells, _ = case
    write_cells(cells, tmp_path / "cells.parquet", BINS)
    again = read_cells(tmp_path / "cells.parquet")
    assert models_of(again) == ["ref", "m"]
    assert again["n"].sum() == (labels.position > 0).sum()
    assert again[ar_hits(again, 1250, BINS)]["n"].sum() == labels.ar_hit(1250).sum()
    (tmp_path / "cells.parquet").write_bytes(b"PAR1")
    with pytest.raises(FormatError, match=r"cells\.parquet: not a complete Parquet file"):
        read_cells(tmp_path / "cells.parquet")


def test_a_file_of_cells_has_the_bounds_of_its_bins(tmp_path):
    """Counts of 3 to 5 and above 5 · 10⁸, distances 0 and 3 to 4, the first and the last eighth of 64 positions."""
    cells = pd.DataFrame({"frequency": [3, 29], "distance": [0, 3], "position": [0, 7]}, index=[5, 9])
    write_cells(cells, tmp_path / "cells.parquet", bins_of(1250, 64))
    assert pq.read_table(tmp_path / "cells.parquet").to_pydict() == {
        "frequency": [3, 29], "frequency_low": [3, 500_000_001], "frequency_high": [5, None],
        "distance": [0, 3], "distance_low": [0, 3], "distance_high": [0, 4],
        "position": [0, 7], "position_low": [1, 56], "position_high": [7, 63],
    }  # fmt: skip
    with pytest.raises(FormatError, match="document"):
        read_cells(tmp_path / "cells.parquet")


@pytest.mark.parametrize("threshold", [0, 7, 1250, 12345])
def test_ar_hits_are_a_union_of_cells_at_any_threshold(threshold):
    labels, bins = make_labels(3), bins_of(threshold, SEQ_LEN, INDEX)
    assert [each.high for each in bins.frequency].count(125) == 1  # scaled
    cells = build_cells(labels, make_logprobs(labels, threshold), bins)
    assert cells[ar_hits(cells, threshold, bins)]["n"].sum() == labels.ar_hit(threshold).sum()


def test_the_scaled_threshold_is_a_rung_of_the_ladder():
    """1,250 per 10 B of the index's 1 B tokens: 125. Cells without that bound have the other rungs."""
    labels, bins = make_labels(3), bins_of(1250, SEQ_LEN, INDEX)
    logprobs = make_logprobs(labels, 1250)
    cells = build_cells(labels, logprobs, bins)
    gap = summarize(cells, reference="ref", threshold=1250, evaluation=EVALUATION, index=INDEX, bins=bins)
    for tau, part in ladder(gap).items():
        assert part.n == (labels.ar_hit(tau) & labels.scored).sum(), tau
    assert [*ladder(gap)] == [0, 125, 1250, None]
    for tau in (125, 10):
        restated = restate(gap, cells, threshold=tau, reference="ref")
        assert restated.on_hits.n == (labels.ar_hit(tau) & labels.scored).sum()
        assert restated.bins == bins_of(tau, SEQ_LEN, INDEX)
    assert [*ladder(summary(build_cells(labels, logprobs, BINS)))] == [0, 1250, None]


def test_without_hits_the_slice_is_null_and_the_share_is_zero():
    labels = make_labels(4)
    labels.repeated[:] = False
    cells = build_cells(labels, make_logprobs(labels, 10), bins_of(10, SEQ_LEN))
    hits = summary(cells, 10).on_hits["m"]
    assert (hits.n, hits.nll, hits.ppl, hits.share, hits.paper_rule) == (0, None, None, 0.0, 0.0)


def test_bin_labels_and_edges():
    bins = frequency_bins(1250)
    labels = [b.label for b in bins.bins()]
    assert labels[:5] == ["0", "1", "2", "3–5", "6–10"]
    assert labels[-1] == "> 500,000,000"
    assert "1,001–1,250" in labels
    assert "1,251–2,000" in labels
    for value in (0, 1, 2, 3, 1000, 1250, 1251, 10**12):
        entry = bins.bins()[int(bins.index(np.array([value]))[0])]
        assert entry.low <= value <= (entry.high or value)
    assert [b.label for b in distance_bins(5).bins()][:4] == ["not repeated", "1", "2", "3–4"]
    described = position_bins(1024).bins()
    assert (described[0].low, described[7].high) == (1, 1023)
    assert position_bins(3).index(np.array([1, 2])).tolist() == [0, 1]


def scored(model: np.ndarray, reference: np.ndarray | None = None):
    """Documents of 100 tokens; half of the model's gap to a reference of −200 is in the slice ``hits``."""
    reference = np.full(len(model), -200.0) if reference is None else reference
    half = (model - reference) / 2
    scorer = SliceScorer(["ref", "m"], "ref", np.full(len(model), 100.0), np.column_stack([reference, model]))
    scorer.add(
        Key("named", "hits"), np.full(len(model), 25.0), np.column_stack([np.full(len(model), -50.0), -50 + half])
    )
    whole, hits = scorer.results()
    return whole["m"], hits["m"]


def test_intervals_are_those_of_a_mean_over_documents(monkeypatch):
    rng = np.random.default_rng(5)
    model = -200 - rng.uniform(5, 15, 50)
    whole, hits = scored(model)
    assert hits.share_ci95 == (pytest.approx(0.5), pytest.approx(0.5))  # half in every document
    assert whole.delta_ci95 is not None
    low, high = whole.delta_ci95
    # Documents of equal length: the interval of a mean, with at most 49 degrees of freedom (`effective_freedom`).
    lost = (-200 - model) / 100
    error = lost.std(ddof=1) / np.sqrt(50)
    assert (low + high) / 2 == pytest.approx(lost.mean())
    assert 0.999 * stats.t.ppf(0.975, 49) < (high - low) / 2 / error < stats.t.ppf(0.975, 20)
    # On the slice the same half is spread over a quarter of the tokens.
    assert hits.contribution_ci95 == (pytest.approx(low / 2), pytest.approx(high / 2))
    assert hits.delta_ci95 == (pytest.approx(low * 2), pytest.approx(high * 2))
    assert whole.worth == pytest.approx(lost.sum() ** 2 / (lost**2).sum())
    monkeypatch.setattr("argap.metric.documents.GROUPS", 7)
    assert scored(model)[1].share_ci95 == (pytest.approx(0.5), pytest.approx(0.5))


def test_intervals_keep_models_paired():
    # The same noise on both models: the difference is constant.
    noise = np.random.default_rng(6).normal(0, 50, 30)
    whole, _ = scored(-210.0 + noise, -200.0 + noise)
    assert whole.delta_ci95 == (pytest.approx(0.1), pytest.approx(0.1))


def test_a_model_of_several_seeds_is_their_mean_and_the_others_take_their_variance():
    rng = np.random.default_rng(7)
    n = np.full(40, 100.0)
    lost = rng.normal(20, 2, 40)
    columns = {"ref": 0 * lost, "ref-1": 0 * lost + 1, "m": lost, "m-1": lost + 3, "one": lost}
    sums = -300 - np.column_stack(list(columns.values()))

    def deltas(seeds):
        names = [name for of in seeds.values() for name in of]
        chosen = sums[:, [list(columns).index(name) for name in names]]
        (whole,) = SliceScorer(names, "ref", n, chosen, seeds=seeds).results()
        return {model: (whole[model].delta, *(whole[model].delta_ci95 or ())) for model in seeds if model != "ref"}

    alone = deltas({"ref": ["ref"], "m": ["m"], "one": ["one"]})
    both = deltas({"ref": ["ref", "ref-1"], "m": ["m", "m-1"], "one": ["one"]})
    assert both["m"][0] == pytest.approx((lost.mean() + 1.5 - 0.5) / 100)
    assert both["one"][0] == pytest.approx((lost.mean() - 0.5) / 100)
    for model in ("m", "one"):
        width, narrow = (each[model][2] - each[model][1] for each in (both, alone))
        assert width > 2 * narrow  # between seeds lies more than between documents
    # Seeds are 1 and 3 apart: of variance 0.5 and 4.5, pooled 2.5; the reference has its own, 0.5 / 2.
    half = both["one"][2] - both["one"][0]
    assert half == pytest.approx(stats.t.ppf(0.975, 2) * np.sqrt(2.5 + 0.25) / 100, rel=0.4)


def test_leaves_have_simultaneous_intervals():
    rng = np.random.default_rng(8)
    n = np.full(40, 100.0)
    parts = rng.normal(2, 1, (8, 40))
    scorer = SliceScorer(["ref", "m"], "ref", n, np.column_stack([n * -2, n * -2 - parts.sum(axis=0)]))
    for k, lost in enumerate(parts):
        scorer.add(Key("named", f"leaf {k}"), n / 8, np.column_stack([n * -0.25, n * -0.25 - lost]))
    alone, together = (scorer.results(together=start)[1:] for start in (None, "leaf"))
    for one, all_ in zip(alone, together, strict=True):
        ends = [each["m"].contribution_ci95 for each in (all_, one)]
        assert ends[0]
        assert ends[1]
        assert ends[0][0] < ends[1][0] < ends[1][1] < ends[0][1]
        assert one["m"].delta_ci95 == all_["m"].delta_ci95


def test_a_share_is_claimed_only_where_gap_part_and_documents_allow_it():
    rng = np.random.default_rng(5)
    assert scored(-210.0 + rng.normal(0, 2, 40))[1].reason is None
    # The same loss from a single document, which gives no interval.
    whole, hits = scored(np.array([-210.0]))
    assert (hits.share_ci95, whole.delta_ci95) == (None, None)
    assert hits.reason == "a single document"
    # No gap beyond noise: a mean of 0.005 nats with a standard error of 0.016.
    none = -200.5 + rng.normal(0, 10, 40)
    noisy = scored(none - (none.mean() + 200.5))[1]
    assert noisy.reason == "the interval of the gap contains 0"
    assert (noisy.share, noisy.share_ci95) == (None, None)
    # A lead has a share as a gap does; the paper's rule knows none.
    better = scored(-190.0 + rng.normal(0, 2, 40))[1]
    assert (better.share, better.paper_rule, better.reason) == (pytest.approx(0.5), None, None)
    # A gap of 0.1 nats, all of it outside of a slice whose own part is noise.
    noise = rng.normal(0, 2, 40)
    scorer = SliceScorer(["ref", "m"], "ref", np.full(40, 100.0), np.tile([-200.0, -210.0], (40, 1)))
    part = np.column_stack([np.full(40, -50.0), -50 + noise - noise.mean() - 0.1])
    scorer.add(Key("named", "hits"), np.full(40, 25.0), part)
    scorer.add(Key("named", "none"), np.zeros(40), np.zeros((40, 2)))
    _, hits, none = (part["m"] for part in scorer.results())
    assert hits.reason == "the interval of the slice's part of the gap contains 0"
    # A slice without tokens: exactly nothing of the gap.
    assert (none.paper_rule, none.reason, none.delta) == (0.0, None, 0.0)


def test_the_interval_of_a_share_is_not_capped_at_the_whole_gap():
    """The hits lose 0.2 nats, the others win half of that back: the quotient is 2."""
    rng = np.random.default_rng(9)
    lost = 20 + rng.normal(0, 2, 60)
    sums = np.column_stack([np.full(60, -200.0), -200 - lost / 2])
    scorer = SliceScorer(["ref", "m"], "ref", np.full(60, 100.0), sums)
    sums = np.column_stack([np.full(60, -50.0), -50 - lost])
    scorer.add(Key("named", "hits"), np.full(60, 25.0), sums, about=SliceInfo("hits", title="AR hits"))
    hits = scorer.results()[1]
    assert hits.about.title == "AR hits"
    due = hits["m"]
    assert (due.paper_rule, due.share, due.reason) == (1.0, pytest.approx(2), None)
    assert due.share_ci95 == (pytest.approx(2), pytest.approx(2))


def test_the_result_says_what_its_documents_are_worth(case):
    _, _, cells, gap = case
    lost = cells.assign(lost=cells["logprob/ref"] - cells["logprob/m"]).groupby("document")["lost"].sum().to_numpy()
    assert gap.documents == DOCUMENTS
    assert gap.worth == {"m": pytest.approx(lost.sum() ** 2 / (lost**2).sum())}


def test_many_documents_are_drawn_in_random_groups_of_the_same_variance():
    documents = 20_000
    sums = np.random.default_rng(8).lognormal(size=(documents, 1))
    bootstrap = DocumentBootstrap(documents, resamples=4000)
    drawn = bootstrap.resample(bootstrap.by_unit(sums))[:, 0]
    assert bootstrap.units < documents
    assert drawn.mean() == pytest.approx(sums.sum(), rel=0.002)
    assert drawn.std() == pytest.approx(
        np.sqrt(documents) * sums.std(), rel=0.06
    )  # 4096 groups: 1.1%; 4000 draws: 1.1%


def test_resamples_are_the_same_however_many_are_drawn_at_once(monkeypatch):
    sums = np.random.default_rng(10).normal(size=(5, 3))
    bootstrap = DocumentBootstrap(5, resamples=100)
    drawn = _drawn(5, 100, bootstrap._seed)
    assert (drawn.sum(axis=1) == 5).all()
    np.testing.assert_allclose(bootstrap.resample(sums), drawn @ sums, rtol=1e-12)
    monkeypatch.setattr("argap.metric.intervals.WEIGHTS_AT_ONCE", 35)  # seven resamples
    monkeypatch.setattr("argap.metric.intervals.COLUMNS_AT_ONCE", 2)
    np.testing.assert_allclose(bootstrap.resample(sums), drawn @ sums, rtol=1e-12)
    _drawn.cache_clear()
    assert (_drawn(5, 100, bootstrap._seed) == drawn).all()


def test_share_closed_is_given_for_the_models_between(case):
    _, logprobs, _, _ = case
    labels = make_labels()
    both = {"half": ((logprobs["ref"].astype(np.float64) + logprobs["m"]) / 2).astype(np.float32), **logprobs}
    cells = build_cells(labels, both, BINS)
    rows = summary(cells, 1250, base="m").rows
    assert [(r.model, r.closed is not None) for r in rows] == [("ref", False), ("half", True), ("m", False)]
    closed = rows[1].closed
    assert closed.base == "m"
    assert closed.overall.nll == pytest.approx(0.5, abs=1e-6)
    assert closed.ar_hits.nll == pytest.approx(0.5, abs=1e-6)
