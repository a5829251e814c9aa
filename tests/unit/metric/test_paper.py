"""The metric against the figures published in the Zoology paper."""

import csv
import json
import os
from math import log
from pathlib import Path

import numpy as np
import pytest

from argap.metric.paper import (
    GAP_TABLES,
    HYBRID_TABLE,
    PublishedRow,
    Range,
    check_closed,
    check_gap,
    check_gaps,
    check_headline,
    own_share,
    rows_at_text_share,
)
from argap.metric.share import gap_due_to_ar

DATA = Path(os.environ.get("ARGAP_DATA", Path(__file__).parents[3] / "../shared/data")) / "paper"


@pytest.mark.parametrize(("name", "rows"), [("zoology_pile.csv", GAP_TABLES), ("zoology_hybrids.csv", HYBRID_TABLE)])
def test_figures_are_transcribed_as_printed(name: str, rows: tuple[PublishedRow, ...]) -> None:
    if not (DATA / name).is_file():
        pytest.skip(f"{DATA / name}: no such file")
    with open(DATA / name, newline="") as file:
        expected = [
            PublishedRow(
                table=int(line.get("table", 2)),
                scale=line["scale"],
                model=line["model"],
                parameters=int(line["params_m"]),
                overall=float(line["overall_ppl"]),
                ar_hits=float(line["ar_ppl"]),
                other=float(line["other_ppl"]),
                printed=line.get("pct_gap_due_to_ar") or None,
                tflops=float(line["tflops"]) if line["tflops"] else None,
            )
            for line in csv.DictReader(file)
        ]
    assert list(rows) == expected


def test_every_printed_percentage_but_one_follows_from_its_row() -> None:
    checks = check_gaps()
    assert len(checks) == 17
    (odd,) = [c for c in checks if not c.agrees]
    assert (odd.row.scale, odd.row.model, odd.row.printed) == ("360M", "Hyena", "98.2")
    assert [round(100 * end, 1) for end in odd.gap_due_to_ar] == [70.2, 73.0]


def test_the_ranges_are_narrow() -> None:
    assert max(c.gap_due_to_ar.high - c.gap_due_to_ar.low for c in check_gaps()) < 0.03


def test_the_row_that_is_better_overall_is_all_recall() -> None:
    (better,) = [c for c in check_gaps() if c.case != "explained"]
    assert (better.row.model, better.case) == ("Hyena + Slide Attn. (256)", "recall_only")
    assert better.gap_due_to_ar == (1.0, 1.0)


def test_the_share_of_hits_is_seven_percent_and_eleven_at_the_largest_scale() -> None:
    for check in check_gaps():
        low, high = check.share_ar_hits
        expected = 0.113 if check.row.scale == "1.4B" else 0.070
        assert low - 5e-4 < expected < high + 5e-4
        assert high - low < 0.002


def test_with_the_share_in_the_text_only_the_rows_at_100_percent_agree() -> None:
    agree = [check for check in check_gaps() if check.agrees_at_text_share]
    assert len(agree) == 6
    assert {float(check.row.printed or "nan") for check in agree} == {100.0}
    (h3,) = [c for c in check_gaps() if (c.row.scale, c.row.model) == ("125M", "H3")]
    # ln(6.75 / 2.16) · 0.064 / ln(12.06 / 11.01) = 0.800; printed: 88.4
    assert h3.at_text_share.low < log(6.75 / 2.16) * 0.064 / log(12.06 / 11.01) < h3.at_text_share.high
    assert h3.at_text_share.high - h3.at_text_share.low < 0.033
    # A wrong p changes every percentage in proportion, so no row below 100% may agree by accident of its width.
    assert all(c.at_text_share.high < c.gap_due_to_ar.low for c in check_gaps() if float(c.row.printed or 0) < 90)


def test_seven_rows_imply_the_share_in_the_text() -> None:
    """overall = p · AR + (1 − p) · other in NLL, solved for p: two selections of hits in the same tables."""
    assert [(row.scale, row.model.removeprefix("BaseConv + ")) for row, _ in rows_at_text_share()] == [
        ("125M", "Hyena"),
        ("125M", "Hyena + Slide Attn. (256)"),
        ("360M", "Hyena"),
        ("125M", "Random selection"),
        ("125M", "Programmatic selection"),
        ("360M", "Random selection"),
        ("360M", "Programmatic selection"),
    ]
    (hyena,) = [row for row in GAP_TABLES if (row.scale, row.model) == ("360M", "Hyena")]
    assert own_share(hyena).low < log(10.75 / 10.07) / log(10.75 / 3.83) < own_share(hyena).high  # 0.0633
    fit_neither = [row for row in (*GAP_TABLES, *HYBRID_TABLE) if row.scale != "1.4B"]
    fit_neither = [row.model for row in fit_neither if own_share(row).high < 0.06 or own_share(row).low > 0.072]
    assert fit_neither == ["RetNet (128)", "BaseConv + Full attention"]


@pytest.mark.parametrize("check", check_gaps(), ids=lambda c: f"{c.row.scale}-{c.row.model}")
def test_the_range_bounds_all_perplexities_within_the_roundings(check) -> None:
    """Random points of the rounding box stay within the range, and some come close to its ends."""
    row = check.row
    reference = next(r for r in GAP_TABLES if r.scale == row.scale and r.model == "Attention")
    printed = np.array([row.ar_hits, row.overall, reference.ar_hits, reference.overall, reference.other])
    generator = np.random.default_rng(0)
    # Half of the points anywhere, half near the corners, where the bounds are attained.
    anywhere = generator.uniform(-1, 1, (500, 5))
    ends = np.sign(generator.uniform(-1, 1, (500, 5))) * generator.uniform(0.99, 1, (500, 5))
    values = []
    for ar, overall, ref_ar, ref_overall, ref_other in printed + 0.005 * np.concatenate([anywhere, ends]):
        share = log(ref_other / ref_overall) / log(ref_other / ref_ar)
        assert check.share_ar_hits.low <= share <= check.share_ar_hits.high
        values.append(gap_due_to_ar(log(ref_ar / ar), log(ref_overall / overall), share).value)
    low, high = check.gap_due_to_ar
    assert low <= min(values) <= low + 0.02 * (high - low)
    assert high >= max(values) >= high - 0.02 * (high - low)


def test_undecided_digits_are_refused() -> None:
    reference = PublishedRow(0, "tiny", "Attention", 1, 10.00, 2.00, 12.00)
    with pytest.raises(ValueError, match="do not settle the case"):  # 10.00 may be 10.005 or 9.995
        check_gap(PublishedRow(0, "tiny", "same", 1, 10.00, 3.00, 11.50, "100"), reference)
    with pytest.raises(ValueError, match="no gap"):
        check_gap(PublishedRow(0, "tiny", "better", 1, 9.00, 1.90, 11.00, "1"), reference)


def test_a_printed_percentage_covers_its_rounding_interval() -> None:
    assert Range(0.8401, 0.8460).meets("85")  # 84.5 is printed as 85
    assert not Range(0.8401, 0.8440).meets("85")
    assert Range(0.4436, 0.4480).meets("44.4")  # 44.36 to 44.45 is printed as 44.4
    assert not Range(0.4446, 0.4480).meets("44.4")
    assert not Range(0.4400, 0.4434).meets("44.4")


def test_shares_closed_by_the_hybrids() -> None:
    checks = check_closed()
    assert [(c.claim.printed, c.agrees) for c in checks] == [("97.4", True), ("85", True), ("72", False)]
    # (12.90 - 11.06) / (12.90 - 11.01) = 0.974; log(5.98 / 2.35) / log(5.98 / 1.98) = 0.845;
    # log(5.98 / 2.61) / log(5.98 / 1.98) = 0.750
    for check, middle in zip(checks, (0.9735, 0.845, 0.750), strict=True):
        assert check.closed.low < middle < check.closed.high
        assert check.closed.high - check.closed.low < 0.011


def test_the_average_in_the_abstract_depends_on_the_odd_row() -> None:
    """82% is the mean over H3, Hyena and RWKV at three scales; 79% with the odd row recomputed."""
    average = check_headline()
    assert [(c.row.scale, c.row.model) for c in average.rows] == [
        *(("70M", model) for model in ("H3", "Hyena", "RWKV")),
        *(("125M", model) for model in ("H3", "RWKV", "Hyena")),
        *(("360M", model) for model in ("H3", "Hyena", "RWKV")),
    ]
    # (63.2 + 60.8 + 57.9 + 88.4 + 100 + 100 + 65.8 + 98.2 + 100) / 9; for 98.2, its row gives 70.2 to 73.0, about 71.6.
    assert 100 * average.printed == pytest.approx(734.3 / 9)
    assert 100 * average.recomputed.low == pytest.approx((734.3 - 98.2 + 70.2) / 9, abs=0.01)
    assert 100 * average.recomputed.high == pytest.approx((734.3 - 98.2 + 73.0) / 9, abs=0.01)
    assert 100 * sum(average.recomputed) / 2 == pytest.approx(78.6, abs=0.05)
    assert (average.agrees, average.recomputed_agrees) == (True, False)


def test_the_command_prints_the_check(run_command, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    code, out, _ = run_command("paper")
    assert code == 0
    text = " ".join(out.split())
    assert "16 of 17 rows agree with the share of AR hits that attention's perplexities imply, 6 with the 6.4%" in text
    assert "7 rows imply 6.4% where attention's imply 7.0%: Hyena 125M, Hyena + Slide Attn. (256) 125M, Hyena" in text
    assert "Hyena 360M: printed 98.2%, its own row gives 70.2–73.0%." in text
    assert "Learned selection 360M: printed 72%, its rows give 74.6–75.4%." in text
    assert "81.6% as printed, 78.5–78.8% with the row above recomputed." in text


def test_the_command_prints_json(run_command) -> None:
    value = json.loads(run_command("paper", "--json")[1])
    assert [row["agrees"] for row in value["gap_due_to_ar"]].count(False) == 1
    assert [row["agrees_at_text_share"] for row in value["gap_due_to_ar"]].count(True) == 6
    assert (value["share_ar_hits"]["text"], len(value["share_ar_hits"]["rows"])) == ("6.4", 7)
    assert value["gap_due_to_ar"][0]["printed"] == "44.4"
    assert len(value["closed"]) == 3
    assert (value["headline"]["printed"], value["headline"]["agrees"]) == ("82", True)
    assert len(value["headline"]["rows"]) == 9
