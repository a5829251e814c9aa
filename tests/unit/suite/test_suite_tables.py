"""Suite tables, what seeds change in them, and the share of the gap by τ, in worked examples."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from argap.metric.bins import bins_of
from argap.metric.share import gap_due_to_ar
from argap.records import Bin, Estimate, Part
from argap.reports.tables.suites.mqar_link import LinkRow, correlations, link_rows, link_table
from argap.reports.tables.suites.suite import length_table, paper_table, rare_table, seeds_table, trajectory_table
from argap.slices.cells import PREFIX, mean_over_seeds
from argap.suite.gap import _alike, build_curve, fine_bounds
from argap.suite.result import SizeResult, read_size
from argap.tokens.labels import Labels


def test_nll_on_rare_bigrams():
    # Never seen: 4 repeated tokens with 8 nats of the reference (2 each) and 10 of the model, 2 others with 9 and 8.
    # Seen once: one repeated token, in two documents' cells 3 tokens; none that is not repeated, so no column of it.
    # Bin 2 is left out.
    cells = pd.DataFrame(
        {
            "document": [0, 0, 0, 1, 1],
            "repeated": [True, False, True, True, True],
            "frequency": [0, 0, 1, 1, 2],
            "n": [4, 2, 1, 2, 50],
            PREFIX + "ref": [-8.0, -9.0, -1.0, -5.0, -1.0],
            PREFIX + "m": [-10.0, -8.0, -1.0, -5.0, -99.0],
        }
    )
    bins = [Bin("0", 0, 0), Bin("1", 1, 1), Bin("> 1", 2, None)]
    gap: Any = SimpleNamespace(
        bins=SimpleNamespace(frequency=bins), models=["ref", "m"], reference="ref", seeds={"ref": ["ref"], "m": ["m"]}
    )
    table = rare_table(SizeResult(Path("x"), gap, cells, ()))
    assert table is not None
    assert table.columns[1:] == ("Never seen, repeated", "Never seen, not repeated", "Seen once, repeated")
    assert table.rows == [
        ("ref", "2.00", "4.50", "2.00"),
        ("m", "2.50 (+0.50)", "4.00 (−0.50)", "2.00 (+0.00)"),
    ]
    assert "4, 2, 3 tokens" in table.notes[0]
    assert rare_table(SizeResult(Path("x"), gap, cells.query("frequency == 2"), ())) is None


def test_no_model_to_compare_with_the_paper():
    gap: Any = SimpleNamespace(compared=[SimpleNamespace(model="m")])
    assert paper_table(SizeResult(Path("x"), gap, pd.DataFrame(), ()), {"ref": "Attention"}) is None


def test_shares_along_training():
    """NLLs of 2 and 3 on one hit, of 1 and 2 on the other token: half of the gap; then a lead with two thirds on it."""
    columns = ["model", "tokens", "n_ar_hits", "nll_ar_hits", "n_other", "nll_other"]
    rows = [
        ("ref", 100, 1, 2.0, 1, 1.0),
        ("m", 100, 1, 3.0, 1, 2.0),
        ("ref", 200, 1, 2.0, 1, 1.0),
        ("m", 200, 1, 0.0, 1, 0.0),
    ]
    gap: Any = SimpleNamespace(hits="hits", unit="token", index=None)
    table = trajectory_table(pd.DataFrame(rows, columns=columns), "ref", gap)
    assert table.rows == [
        ("100", "2.00", "1.00", "3.00", "2.00", "50%"),
        ("200", "2.00", "1.00", "0.00", "0.00", "67%"),
    ]


def test_nll_within_and_beyond_the_training_length():
    # Trained on 1,024: positions 512–1,023 within, 1,024–1,535 and 1,536–2,047 to twice, 2,048–2,559 beyond.
    bins = bins_of(1250, 4096)
    parts = {
        "position": {1: (2, 1.0, 2.0), 2: (3, 1.0, 3.0), 3: (1, 5.0, 3.0), 4: (2, 4.0, 1.0), 8: (0, None, None)},
        "distance": {0: (9, 1.0, 1.0), 1: (1, 2.0, 1.0), 11: (1, 1.0, 2.0), 12: (4, 3.0, 0.5)},
    }
    made = {
        by: [
            Part(
                [
                    Estimate(model, by, getattr(bins, by)[k].label, n, 0.0, nll)
                    for model, nll in zip("rm", nlls, strict=True)
                ]
            )
            for k, (n, *nlls) in of.items()
        ]
        for by, of in parts.items()
    }
    members: Any = [SimpleNamespace(name=name, train=SimpleNamespace(config={"seq_len": 1024})) for name in "rm"]
    gap: Any = SimpleNamespace(
        reference="r", models=["r", "m"], bins=bins, parts=made.__getitem__, evaluation=SimpleNamespace(seq_len=4096)
    )
    table = length_table(SizeResult(Path("x"), gap, pd.DataFrame(), members))
    assert table is not None
    assert table.columns == (
        "Model", "Position below 1,024", "Position 1,024 to 2,047", "Position from 2,048",
        "below 1,025 back", "1,025 to 2,048 back",
    )  # fmt: skip
    assert table.rows == [
        ("r", "1.000", "2.000", "4.000", "1.500", "3.000"),
        ("m", "2.000 (+1.000)", "3.000 (+1.000)", "1.000 (−3.000)", "1.500 (+0.000)", "0.500 (−2.500)"),
    ]
    gap.evaluation.seq_len = 1024
    assert length_table(SizeResult(Path("x"), gap, pd.DataFrame(), members)) is None


def test_recall_of_pairs_beside_ar_gaps():
    # Only width 64 was run for all; the reference has no gap, and d only one in the second result.
    runs = pd.DataFrame(
        [(n, 64, a) for n, a in {"r": 1.0, "a": 0.9, "b": 0.5, "c": 0.8, "d": 0.2}.items()] + [("a", 128, 1.0)],
        columns=["name", "width", "accuracy"],
    ).assign(length=64, pairs="4", validation_accuracy=1.0, lr=1e-3)

    def gap_with(**deltas: float) -> Any:
        hits = {name: SimpleNamespace(delta=delta, delta_ci95=(0.0, delta)) for name, delta in deltas.items()}
        return SimpleNamespace(compared=[SimpleNamespace(model=name) for name in deltas], on_hits=hits)

    rows, cells = link_rows(runs, [gap_with(a=0.1, b=0.3, c=0.4), gap_with(a=9.0, d=0.5)])
    assert [(row.name, row.accuracies, row.gap) for row in rows] == [
        ("a", (0.9,), 0.1), ("b", (0.5,), 0.3), ("c", (0.8,), 0.4), ("d", (0.2,), 0.5),
    ]  # fmt: skip
    table = link_table(rows, cells)
    assert table.columns == ("Mixer", "AR hits, ΔNLL", "95% interval", "N 64, width 64", "Mean")
    assert table.rows[0] == ("a", "+0.100", "+0.000 to +0.100", "90.0%", "90.0%")
    # Ranks of error 1 3 2 4: Σ d² = 2, ρ = 1 − 6·2 / (4·15) = 0.8.
    assert table.rows[-1][3].startswith("0.80 (−")
    # Two that solve the task are ties: ranks 1.5 1.5 3 against 1 2 3, ρ = 1.5 / √(1.5 · 2).
    solved = [
        LinkRow(name, (a,), gap, None) for name, a, gap in [("a", 0.995, 1.0), ("b", 0.999, 2.0), ("c", 0.5, 3.0)]
    ]
    (found, _) = correlations(solved)
    assert found is not None
    assert found.rho == pytest.approx(3**0.5 / 2)
    assert link_rows(runs, [gap_with(z=0.1)]) == ([], [])


ROOT = Path(__file__).parents[3]
SUITES = [ROOT / "results" / name for name in ("table1-mini/7m", "table1-7m/7m", "table1-50m/50m")]


def test_each_seed_is_compared_with_the_reference_of_its_seed() -> None:
    # Two AR hits and eight other tokens; sums of log p.
    logprobs = {
        "ref": [-2, -16], "m": [-8, -24], "close": [-2, -17],
        "ref-seed1": [-1, -16], "m-seed1": [-9, -20], "close-seed1": [-2, -15],
        "m-seed2": [-8, -16],
    }  # fmt: skip
    cells = pd.DataFrame({"n": [2, 8], "repeated": [True, False]} | {PREFIX + m: v for m, v in logprobs.items()})
    members: Any = [
        SimpleNamespace(name=name, member=name.split("-")[0], seed=int(name.partition("-seed")[2] or 0))
        for name in logprobs
    ]
    seeds = {name: [each for each in logprobs if each.startswith(name)] for name in ("ref", "m", "close")}
    gap: Any = SimpleNamespace(
        reference="ref", threshold=None, bins=None, seeds=seeds, hits="AR hits",
        directions={"m": "behind", "close": "level"}, on_hits=SimpleNamespace(share_of_tokens=0.2),
    )  # fmt: skip
    result = SizeResult(Path("x"), gap, cells, members)
    table = seeds_table(result)
    assert table is not None
    assert table.rows == [
        ("ref", "1.800", "1.000", "2.000", "—"),
        ("ref-seed1", "1.700", "0.500", "2.000", "—"),
        ("m", "3.200 (+1.400)", "4.000 (+3.000)", "3.000 (+1.000)", "42.9%"),
        ("m-seed1", "2.900 (+1.200)", "4.500 (+4.000)", "2.500 (+0.500)", "66.7%"),
        ("m-seed2", "2.400 (+0.600)", "4.000 (+3.000)", "2.000 (+0.000)", "100.0%"),
        ("close", "1.900 (+0.100)", "1.000 (+0.000)", "2.125 (+0.125)", "—"),
        ("close-seed1", "1.700 (+0.000)", "1.000 (+0.500)", "1.875 (−0.125)", "—"),
    ]
    assert "ref 0.100 (0.500), m 0.800 (0.500), close 0.200 (0.000)" in table.notes[0]
    # Over all pairs: m loses 6 and 14, 7 and 15; 7 and 11, 8 and 12; 6 and 6, 7 and 7.
    assert result.share_range("m") == (pytest.approx(6 / 14), pytest.approx(1.0))
    assert "m 42.9–100.0%" in table.notes[1]
    assert result.share_range("ref") is not None


def test_a_model_of_one_seed_has_no_range() -> None:
    gap: Any = SimpleNamespace(reference="ref", seeds={"ref": ("ref",), "m": ("m",)})
    assert SizeResult(Path("x"), gap, pd.DataFrame(), ()).share_range("m") is None


def test_the_mean_over_seeds_replaces_their_columns() -> None:
    cells = pd.DataFrame({"n": [1], PREFIX + "a": [-1.0], PREFIX + "a-seed1": [-3.0], PREFIX + "b": [-5.0]})
    found = mean_over_seeds(cells, {"a": ("a", "a-seed1"), "b": ("b",)})
    assert found.to_dict("list") == {"n": [1], PREFIX + "a": [-2.0], PREFIX + "b": [-5.0]}


def test_the_mean_over_seeds_of_many_models_warns_of_nothing() -> None:
    models = [f"m{k}" for k in range(120)]
    cells = pd.DataFrame({"n": [1, 2]} | {PREFIX + model: [-1.0, -2.0] for model in models})
    assert mean_over_seeds(cells, {model: (model,) for model in models}).equals(cells)


@pytest.mark.parametrize("folder", SUITES, ids=str)
def test_committed_rows_are_means_over_the_seeds_of_their_table(folder: Path) -> None:
    result = read_size(folder)
    means: dict[str, list[float]] = {}
    for seed in result.seeds:
        means.setdefault(seed.member, []).append(seed.nll["overall"] or np.nan)
    assert means.keys() == {model for model, seeds in result.gap.seeds.items() if len(seeds) > 1}
    for model, values in means.items():
        assert result.gap.on_all[model].nll == pytest.approx(np.mean(values))


def test_numbers_that_differ_in_the_last_digits_are_alike() -> None:
    assert _alike({"a": [1.0, None, "x"]}, {"a": [1.0 + 1e-12, None, "x"]})
    assert not _alike({"a": [1.0]}, {"a": [1.0 + 1e-6]})
    assert not _alike({"a": 1.0}, {"b": 1.0})
    assert not _alike([1.0], [1.0, 2.0])


def labels_of(repeated, counts, position=None):
    n = len(repeated)
    zeros = np.zeros(n, np.int32)
    position = np.arange(1, n + 1, dtype=np.int32) if position is None else position
    record: Any = None  # not read
    return Labels(zeros, position, np.array(repeated), zeros, zeros, np.array(counts), zeros, ["d"], zeros[:1], record)


def curve_of(labels, logprobs, thresholds=()):
    """Return the curve of a result with these tokens, all in one document."""
    seeds = {name: (name,) for name in logprobs}
    scored = labels.scored
    sums = {PREFIX + name: [values[scored].astype(np.float64).sum()] for name, values in logprobs.items()}
    cells = pd.DataFrame({"document": labels.document_of_window[:1], "n": [scored.sum()], **sums})
    gap: Any = SimpleNamespace(reference="ref", seeds=seeds)
    result = SizeResult(Path("x"), gap, cells, ())
    vars(result)["_sums"] = build_curve(labels, logprobs, thresholds)
    return result.curve


def test_curve_matches_a_worked_example():
    # Five scored tokens; the reference gives -1 everywhere. The model loses 1, 2 and 3 nats on repeated
    # bigrams seen 0, 5 and 100 times, and 4 on a token that is not repeated: 10 nats in all.
    labels = labels_of([True, True, True, False, False], [0, 5, 100, 7, 7])
    logprobs = {"ref": np.full(5, -1.0), "model": np.array([-2.0, -3, -4, -5, -1])}
    found = {int(point.bin): point for point in curve_of(labels, logprobs)}
    assert [found[tau]["model"].share for tau in (0, 4, 5)] == pytest.approx([0.1, 0.1, 0.3])
    last = found[max(found)]
    assert last["model"].share == pytest.approx(0.6)
    assert last.share_of_tokens == pytest.approx(3 / 5)


@pytest.mark.parametrize("threshold", [0, 3, 37, 1250])
def test_curve_equals_the_metric_at_any_threshold(threshold):
    rng = np.random.default_rng(0)
    n = 5000
    labels = labels_of(rng.random(n) < 0.4, rng.zipf(1.3, n).clip(max=10**7) - 1)
    logprobs = {"ref": -rng.exponential(2, n).astype(np.float32), "m": -rng.exponential(2.3, n).astype(np.float32)}
    hits = labels.ar_hit(threshold)
    lost = logprobs["m"].astype(np.float64) - logprobs["ref"]
    expected = gap_due_to_ar(lost[hits].mean(), lost.mean(), hits.mean()).raw
    curve = curve_of(labels, logprobs, (threshold,))
    (point,) = [point for point in curve if point.bin == str(threshold)]
    assert point["m"].share == pytest.approx(expected, rel=1e-12)


def test_the_curve_has_a_row_for_each_document():
    labels = labels_of([True, True, True, False], [0, 0, 3, 3])
    labels = dataclasses.replace(labels, window=np.array([0, 1, 1, 1], np.int32), document_of_window=np.array([4, 9]))
    curve = build_curve(labels, {"ref": np.array([-1.0, -2, -3, -4])})
    rows = curve.loc[curve["n"] > 0, ["document", "high", "n", PREFIX + "ref"]]
    assert rows.to_numpy().tolist() == [[4, 0, 1, -1], [9, 0, 1, -2], [9, 3, 1, -3]]


def test_a_model_without_a_gap_has_no_share():
    labels = labels_of([True, False], [0, 0])
    logprobs = {"ref": np.array([-2.0, -2.0]), "m": np.array([-1.0, -1.0])}
    found = curve_of(labels, logprobs)
    assert {point["m"].paper_rule for point in found} == {None}
    assert {point["m"].share for point in found} == {0.5}  # of the lead


def test_the_first_token_of_a_window_is_not_scored():
    labels = labels_of([True, True], [0, 0], position=np.array([0, 1], np.int32))
    assert build_curve(labels, {"ref": np.array([np.nan, -1.0])})["n"].to_numpy().sum() == 1


def test_bounds_increase_and_include_every_threshold():
    bounds = fine_bounds(10**6, (1250, 17))
    assert (np.diff(bounds) > 0).all()
    assert set(range(11)) | {17, 1250} <= set(bounds.tolist())
    assert bounds[-1] >= 10**6
