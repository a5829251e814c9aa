"""Cells, breakdowns and intervals: what is summed is what was scored, and the parts make the whole."""

import numpy as np
import pytest

from argap.bins import distance_bins, frequency_bins, position_bins
from argap.bootstrap import Sums, bootstrap
from argap.cells import ar_hits, build_cells, models_of, read_cells, write_cells
from argap.errors import ArgapError, FormatError
from argap.labels import Labels
from argap.summary import summarize

SEQ_LEN, WINDOWS, DOCUMENTS = 64, 24, 6


def make_labels(seed: int = 0) -> Labels:
    rng = np.random.default_rng(seed)
    n = SEQ_LEN * WINDOWS
    repeated = rng.random(n) < 0.4
    position = np.tile(np.arange(SEQ_LEN, dtype=np.int32), WINDOWS)
    repeated[position < 2] = False
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
        record={"evaluation": {"seq_len": SEQ_LEN}},
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
    logprobs = make_logprobs(labels, 1250)
    cells = build_cells(labels, logprobs, 1250)
    return labels, logprobs, cells, summarize(cells, reference="ref", threshold=1250, seq_len=SEQ_LEN, base="m")


def test_rows_equal_a_plain_recomputation(case):
    labels, logprobs, _, gap = case
    scored, hits = labels.position > 0, labels.repeated & (labels.train_count <= 1250)
    means = {}
    for row in gap["rows"]:
        values = logprobs[row["model"]].astype(np.float64)
        for name, mask in (("overall", scored), ("ar_hits", hits), ("other", scored & ~hits)):
            assert row[name]["n"] == mask.sum()
            assert row[name]["nll"] == pytest.approx(-values[mask].mean(), abs=1e-12)
            assert row[name]["ppl"] == pytest.approx(np.exp(-values[mask].mean()))
            means[row["model"], name] = values[mask].mean()
    share = hits.sum() / scored.sum()
    raw = (means["m", "ar_hits"] - means["ref", "ar_hits"]) * share / (means["m", "overall"] - means["ref", "overall"])
    assert gap["rows"][0]["reference"]
    assert gap["rows"][0]["gap_due_to_ar"] is None
    assert gap["rows"][1]["gap_due_to_ar"]["raw"] == pytest.approx(raw, abs=1e-12)
    assert gap["rows"][1]["share_ar_hits"] == pytest.approx(share)


def test_every_breakdown_adds_up_to_the_gap(case):
    _, _, _, gap = case
    delta = gap["rows"][1]["delta"]["nll"]
    n = gap["rows"][1]["overall"]["n"]
    assert set(gap["breakdowns"]) == {"slice", "frequency", "distance", "position", "domain"}
    for parts in gap["breakdowns"].values():
        assert sum(part["contribution"]["m"] for part in parts) == pytest.approx(delta, abs=1e-12)
        assert sum(part["share"] for part in parts) == pytest.approx(1)
        assert sum(part["n"] for part in parts) == n


def test_breakdown_entries_equal_a_plain_recomputation(case):
    labels, logprobs, _, gap = case
    scored = labels.position > 0
    mask = scored & labels.repeated & (labels.train_count > 10) & (labels.train_count <= 20)
    (part,) = [p for p in gap["breakdowns"]["frequency"] if p["bin"] == "11–20" and p["repeated"]]
    assert part["n"] == mask.sum()
    assert part["nll"]["m"] == pytest.approx(-logprobs["m"][mask].mean(dtype=np.float64))
    code = scored & (labels.domain == 1)
    (part,) = [p for p in gap["breakdowns"]["domain"] if p["bin"] == "code"]
    assert part["n"] == code.sum()
    far = scored & (labels.distance > 32) & (labels.distance <= 64)
    (part,) = [p for p in gap["breakdowns"]["distance"] if p["bin"] == "33–64"]
    assert part["n"] == far.sum()


def test_cells_keep_all_tokens_through_a_file(case, tmp_path):
    labels, _, cells, _ = case
    write_cells(cells, tmp_path / "cells.parquet")
    again = read_cells(tmp_path / "cells.parquet")
    assert models_of(again) == ["ref", "m"]
    assert again["n"].sum() == (labels.position > 0).sum()
    assert again[ar_hits(again, 1250)]["n"].sum() == labels.ar_hit(1250).sum()
    (tmp_path / "cells.parquet").write_bytes(b"PAR1")
    with pytest.raises(FormatError, match=r"cells\.parquet: not a whole Parquet file"):
        read_cells(tmp_path / "cells.parquet")


@pytest.mark.parametrize("threshold", [0, 7, 1250, 12345])
def test_ar_hits_are_a_union_of_cells_at_any_threshold(threshold):
    labels = make_labels(3)
    cells = build_cells(labels, make_logprobs(labels, threshold), threshold)
    assert cells[ar_hits(cells, threshold)]["n"].sum() == labels.ar_hit(threshold).sum()


def test_without_hits_the_slice_is_null_and_nothing_is_recall():
    labels = make_labels(4)
    labels.repeated[:] = False
    cells = build_cells(labels, make_logprobs(labels, 10), 10)
    row = summarize(cells, reference="ref", threshold=10, seq_len=SEQ_LEN)["rows"][1]
    assert row["ar_hits"] == {"n": 0, "nll": None, "ppl": None}
    assert (row["gap_due_to_ar"]["raw"], row["gap_due_to_ar"]["value"]) == (0.0, 0.0)


def test_bin_labels_and_edges():
    bins = frequency_bins(1250)
    labels = [b["label"] for b in bins.describe()]
    assert labels[:5] == ["0", "1", "2", "3–5", "6–10"]
    assert "1,001–1,250" in labels
    assert "1,251–2,000" in labels
    for value in (0, 1, 2, 3, 1000, 1250, 1251, 10**12):
        entry = bins.describe()[int(bins.index(np.array([value]))[0])]
        assert entry["low"] <= value <= (entry["high"] or value)
    assert [b["label"] for b in distance_bins(5).describe()][:4] == ["not repeated", "1", "2", "3–4"]
    described = position_bins(1024).describe()
    assert (described[0]["low"], described[7]["high"]) == (1, 1023)
    assert position_bins(3).index(np.array([1, 2])).tolist() == [0, 1]


def sums_of(model: np.ndarray, n: float = 100.0) -> Sums:
    """Documents of 100 tokens; half of the model's difference to a reference of −200 is on hits."""
    reference = np.full(len(model), -200.0)
    half = (model - reference) / 2
    return Sums(np.full(len(model), n), model, -50 + half, reference, np.full(len(model), -50.0))


def test_intervals_hold_the_truth_and_follow_the_seed():
    rng = np.random.default_rng(5)
    sums = sums_of(-200 - rng.uniform(5, 15, 50))
    found = bootstrap(sums)
    assert found.gap_due_to_ar is not None
    assert found.gap_due_to_ar == (pytest.approx(0.5), pytest.approx(0.5))  # half in every document
    assert found.delta is not None
    low, high = found.delta
    mean = float((200 + sums.model).mean() / -100)
    assert low < mean < high
    assert bootstrap(sums) == found
    assert bootstrap(sums, seed=1).delta != found.delta
    # The width is that of the mean of 50 draws: 2 · 1.96 standard errors.
    error = sums.model.std() / 100 / np.sqrt(50)
    assert high - low == pytest.approx(2 * 1.96 * error, rel=0.05)


def test_resampling_is_over_documents_and_keeps_models_paired():
    # The same noise on both models: the difference is constant, and so is every resample of it.
    rng = np.random.default_rng(6)
    noise = rng.normal(0, 50, 30)
    sums = sums_of(np.full(30, -210.0))
    paired = sums._replace(model=sums.model + noise, reference=sums.reference + noise)
    found = bootstrap(paired)
    assert found.delta == (pytest.approx(0.1), pytest.approx(0.1))


def test_a_gap_that_may_be_none_has_no_interval():
    rng = np.random.default_rng(7)
    model = -200.5 + rng.normal(0, 10, 40)
    model -= model.mean() + 200.5  # a gap of 0.005 nats with a standard error of 0.016
    found = bootstrap(sums_of(model))
    assert found.gap_due_to_ar is None
    assert found.reason == "gap not resolved"
    assert found.delta is not None


def test_one_document_gives_no_interval():
    assert bootstrap(sums_of(np.array([-210.0]))) == (None, None, None, "a single document")


def test_share_closed_is_told_of_the_models_between(case):
    _, logprobs, _, _ = case
    labels = make_labels()
    both = {**logprobs, "half": ((logprobs["ref"].astype(np.float64) + logprobs["m"]) / 2).astype(np.float32)}
    cells = build_cells(labels, both, 1250)
    rows = summarize(cells, reference="ref", threshold=1250, seq_len=SEQ_LEN, base="m")["rows"]
    assert [r["model"] for r in rows if "closed" in r] == ["half"]
    closed = rows[2]["closed"]
    assert closed["base"] == "m"
    assert closed["overall"]["nll"] == pytest.approx(0.5, abs=1e-6)
    assert closed["ar_hits"]["nll"] == pytest.approx(0.5, abs=1e-6)


def test_an_unknown_base_lists_the_models(case):
    _, _, cells, _ = case
    with pytest.raises(ArgapError, match="--base x: not one of the models compared, which are ref, m"):
        summarize(cells, reference="ref", threshold=1250, seq_len=SEQ_LEN, base="x")
