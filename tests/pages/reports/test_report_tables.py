"""The exact text of tables for every case of the metric, with and without numbers."""

import csv
import io
import math
from typing import Any

import pytest
from msgspec.structs import replace
from rich.console import Console

from argap.records import AR_HITS, Closed, ClosedShare, Estimate, Gap
from argap.reports.tables.formats import Table, latex, markdown, print_tables, terminal
from argap.reports.tables.numbers import loss, nats, parameters, percent, percent_range, perplexity, short, whole
from argap.reports.tables.result import closed_table, csv_text, gap_table, tables_of, where_table
from argap.reports.tables.sentences import detail, headline
from argap.slices.figures import PART_UNRESOLVED
from tests.conftest import changed, only


def of(n: int, nll: float | None = None, ppl: float | None = None) -> Estimate:
    """A model's NLL on some tokens."""
    return Estimate("m", "slice", AR_HITS, n, 1.0, nll, ppl)


def with_row(gap: Gap, k: int, **changes: Any) -> Gap:
    """Replace values in row ``k`` of ``gap``."""
    return replace(gap, rows=(*gap.rows[:k], replace(gap.rows[k], **changes), *gap.rows[k + 1 :]))


def renamed(gap: Gap, model: str, name: str) -> Gap:
    rows, estimates = (
        tuple(replace(each, model=name) if each.model == model else each for each in of)
        for of in (gap.rows, gap.estimates)
    )
    return replace(gap, rows=rows, estimates=estimates)


MARKDOWN = """
| Model | Params | Overall | AR hits | Other tokens | ΔNLL | 95% interval |
| --- | ---: | ---: | ---: | ---: | ---: | ---: |
| attention | 125 M | 11.02 (2.40) | 2.16 (0.77) | 12.43 (2.52) | — | — |
| h3 | 125 M | 12.06 (2.49) | 6.75 (1.91) | 12.55 (2.53) | +0.050 | +0.040 to +0.060 |
| hyena | 125 M | 12.06 (2.49) | 6.75 (1.91) | 12.55 (2.53) | +0.050 | +0.040 to +0.060 |
| slide | 125 M | 10.70 (2.37) | 3.42 (1.23) | 11.47 (2.44) | −0.020 | −0.030 to −0.010 |
| mamba | 125 M | **9.97 (2.30)** | **2.01 (0.70)** | **11.25 (2.42)** | −0.100 | −0.110 to −0.090 |
| odd | 125 M | 11.59 (2.45) | **2.01 (0.70)** | 13.20 (2.58) | +0.050 | +0.040 to +0.060 |
| close | 125 M | 11.08 (2.40) | 2.23 (0.80) | 12.49 (2.52) | +0.005 | −0.005 to +0.015 |

- Perplexity (NLL in nats) on 1,000 scored tokens; AR hits are 7.0% of them: bigrams repeated in the window and seen at most 1,250 times in training. Reference: attention.
""".lstrip()  # noqa: E501
WHERE = """
| Model | AR hits | 95% interval | % of gap or lead | 95% interval | Other tokens | 95% interval |
| --- | ---: | ---: | ---: | ---: | ---: | ---: |
| h3 | +0.044 | +0.034 to +0.054 | 88.7% | 85.1–92.3% | +0.006 | −0.004 to +0.016 |
| hyena | +0.066 | +0.056 to +0.075 | 131.0%ᵃ | 127.0–135.0% | −0.015 | −0.026 to −0.005 |
| slide | +0.030 | +0.020 to +0.040 | −150.0%ᵇ | −170.0 to −130.0% | −0.050 | −0.060 to −0.040 |
| mamba | −0.005 | −0.015 to +0.005 | 5.0% | 4.0–6.0% | −0.095 | −0.105 to −0.085 |
| odd | −0.005 | −0.015 to +0.005 | −9.8% | −21.0 to 2.0% | +0.055 | +0.045 to +0.065 |
| close | +0.004 | −0.006 to +0.014 | —ᶜ | — | +0.001 | −0.009 to +0.011 |

- Contributions to ΔNLL in nats per token: a set's share of the tokens times ΔNLL on it.
- ᵃ above 100%: all other tokens go the other way; the paper's rule caps it at 100%.
- ᵇ behind here though ahead overall: by the paper's rule 100%.
- ᶜ level with the reference: the interval of ΔNLL contains 0, so there is nothing to take a share of.
""".lstrip()


def test_every_case_in_markdown(by_hand: Gap) -> None:
    where = where_table(by_hand)
    assert where is not None
    assert (markdown(gap_table(by_hand)), markdown(where)) == (MARKDOWN, WHERE)


def shares(gap: Gap) -> Table:
    table = where_table(gap)
    assert table is not None
    return table


def test_a_result_without_hits(by_hand: Gap) -> None:
    gap = by_hand
    for model in by_hand.models:
        gap = changed(gap, model, n=0, nll=None, ppl=None)
    assert all(cells[3] == "—" for cells in gap_table(gap).rows)
    lines = list(csv.DictReader(io.StringIO(csv_text(gap))))
    assert {(line["ar_hits_n"], line["ar_hits_nll"], line["ar_hits_ppl"]) for line in lines} == {("0", "", "")}


def test_a_single_document_gets_a_note(by_hand: Gap) -> None:
    gap = changed(only(by_hand, "attention", "h3"), "h3", share_ci95=None, reason="a single document")
    table = shares(gap)
    assert table.rows[0][3:5] == ("(88.7%)ᵃ", "—")
    assert table.notes[1] == "ᵃ unresolved: a single document."


def test_an_unresolved_share_stands_in_parentheses_with_its_reason(by_hand: Gap) -> None:
    two = replace(only(by_hand, "attention", "h3"), documents=330)
    gap = changed(two, "h3", share_ci95=(-0.1, 0.92), reason=PART_UNRESOLVED)
    table = shares(gap)
    assert table.rows[0][3:5] == ("(88.7%)ᵃ", "−10.0 to 92.0%")
    assert shares(changed(two, "h3", share_ci95=(1.0, 1.0))).rows[0][4] == "—"
    assert table.notes[1:] == (f"ᵃ unresolved: {PART_UNRESOLVED}.",)
    (_, line) = csv.DictReader(io.StringIO(csv_text(gap)))
    assert (line["ar_hits_share"], line["ar_hits_reason"]) == ("0.8871", PART_UNRESOLVED)
    assert detail("h3", gap).endswith(f", 89% of the gap, not to be claimed: {PART_UNRESOLVED}.")


def test_notes_say_what_intervals_cover(by_hand: Gap) -> None:
    three = replace(only(by_hand, "attention", "h3", "hyena"), documents=330)
    assert gap_table(three).notes[1:] == ("95% intervals are Student-t over 330 documents.",)
    few = changed(changed(three, "h3", "all", worth=17.4), "hyena", "all", worth=112.0)
    assert gap_table(few).notes[2] == (
        "Few documents decide: weighted by their parts of the differences, they count as 17 (h3) to 112 (hyena). "
        "Intervals hold only for texts with a similar mix of documents."
    )
    (_, line, _) = csv.DictReader(io.StringIO(csv_text(few)))
    assert (line["documents"], line["worth"], line["seeds"]) == ("330", "17.4", "1")
    seeds = with_row(with_row(three, 0, seeds=("attention", "attention-seed1")), 1, seeds=("h3", "h3-seed1"))
    assert gap_table(seeds).notes[1] == (
        "95% intervals are Student-t over 330 documents and seeds. Figures are means over seeds: 2 of attention, h3; "
        "the others take the pooled variance over seeds."
    )


def test_a_perplexity_beyond_float64_is_not_a_missing_slice() -> None:
    assert loss(of(9, 812.5), "token") == "> 1e308 (812.50)"
    assert loss(of(0), "token") == "—"


def test_bytes_have_bits_and_their_own_words(by_hand: Gap) -> None:
    """1 bit is ln 2 nats; no cell, title or sentence of a comparison in bytes says that it counts tokens."""
    assert loss(of(9, math.log(2), 2.0), "byte") == "1.000 (0.693)"
    table = gap_table(replace(by_hand, unit="byte"))
    assert "hits are tokens of the reference's; AR hits are 7.0% of the bytes: bigrams repeated" in table.notes[0]
    assert table.columns[2:5] == ("Overall", "AR hits", "Other bytes")
    assert table.notes[0].startswith("Bits per byte (NLL in nats per byte) on ")
    nll = by_hand.on_all["attention"].nll
    assert nll is not None
    assert table.rows[0][2] == f"{nll / math.log(2):.3f} ({nll:.3f})"
    assert "bytes that are AR hits" in headline("h3", replace(by_hand, unit="byte"))
    assert csv_text(replace(by_hand, unit="byte")).splitlines()[1].endswith(",byte")


def test_the_share_closed_has_a_table_if_requested(by_hand: Gap) -> None:
    assert closed_table(by_hand) is None
    unknown = ClosedShare(ppl=None, nll=None)
    gap = with_row(by_hand, 2, closed=Closed("h3", ClosedShare(ppl=0.974, nll=0.961), unknown))
    table = closed_table(with_row(gap, 3, closed=Closed("h3", None, unknown)))
    assert table is not None
    assert table.rows == (("hyena", "97.4% (96.1%)", "—"), ("slide", "—", "—"))
    assert table.notes == ("Share of the gap of h3 to attention that is closed, in perplexity (in NLL).",)


def test_a_share_of_an_unresolved_gap_has_a_note(by_hand: Gap) -> None:
    gap = with_row(by_hand, 2, closed=Closed("h3", ClosedShare(ppl=52.677, nll=57.249), None))
    resolved, unresolved = closed_table(gap), closed_table(changed(gap, "h3", "all", delta_ci95=(-0.002, 0.008)))
    assert resolved is not None
    assert unresolved is not None
    assert unresolved.notes == (*resolved.notes, "Unresolved: the interval of that gap contains 0.")


def test_the_share_closed_is_in_the_csv(by_hand: Gap) -> None:
    gap = with_row(by_hand, 2, closed=Closed("h3", ClosedShare(ppl=0.974, nll=0.961), None))
    line = list(csv.DictReader(io.StringIO(csv_text(gap))))[2]
    names = ("base", "overall_ppl", "overall_nll", "ar_hits_ppl", "ar_hits_nll")
    assert [line[f"closed_{name}"] for name in names] == ["h3", "0.974", "0.961", "", ""]


def test_the_terminal_shows_every_cell_whole_in_80_columns(by_hand: Gap) -> None:
    out = io.StringIO()
    console = Console(width=80, file=out)
    table = gap_table(by_hand)
    console.print(terminal(table))
    text = out.getvalue()
    for cells in table.rows:
        (line,) = [x for x in text.splitlines() if x.split()[:1] == [cells[0]]]
        for cell in cells:
            assert cell in line


def test_a_heading_breaks_between_words(capsys) -> None:
    print_tables([Table(("Model", "Architecture", "Peak memory"), (("m", "gla", "1"),), left=(0, 1))])
    heading = capsys.readouterr().out
    assert "Architecture" in heading
    assert "Peak memory" not in heading


WIDE = Table(
    ("Model", "n", "ΔNLL", "95% interval", "Share", "95% interval"),
    (("ref", "1,234,567", "—", "—", "—", "—"), ("m", "1,234,567", "+0.250", "+0.200 to +0.300", "41.1%", "27.1–55.0%")),
    ("A note.",),
    best=frozenset({(1, 4)}),
    spare=(1,),
)


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        (60, [" m     1,234,567 +0.250 +0.200 to +0.300 41.1% 27.1–55.0%"]),
        (54, [" m     +0.250 +0.200 to +0.300 41.1% 27.1–55.0%", "Not shown at this width: n."]),
        (46, [" m     1,234,567           +0.250      41.1%", "                 +0.200 to +0.300 27.1–55.0%"]),
        (
            38,
            [" m               +0.250      41.1%", "       +0.200 to +0.300 27.1–55.0%", "Not shown at this width: n."],
        ),
        (20, [" m     1,234,567 +0.250 +0.200 to +0.300 41.1% 27.1–55.0%"]),  # nothing suffices: printed in full
    ],
)
def test_a_table_fits_the_terminal(
    columns: int, expected: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    print_tables([WIDE])
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in expected if line not in lines] == [], "\n".join(lines)
    assert "A note." in lines
    if columns > 20:
        assert max(map(len, lines)) <= columns


def test_no_width_is_assumed_without_a_terminal(capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    print_tables([WIDE, Table(("Model", "x" * 100), (("m", "y" * 100),), spare=(1,))])
    assert "y" * 100 in capsys.readouterr().out


def test_names_are_text_not_markup(by_hand: Gap, capsys: pytest.CaptureFixture[str]) -> None:
    gap = renamed(by_hand, "h3", "[red]|a|`<b>")
    print_tables(tables_of(gap))
    assert "[red]" in capsys.readouterr().out
    assert r"| \[red\]\|a\|\`\<b\> | 125 M" in markdown(gap_table(gap))


def test_csv_keeps_the_numbers_as_they_are(by_hand: Gap) -> None:
    gap = renamed(by_hand, "h3", 'h3, "second"')
    lines = list(csv.DictReader(io.StringIO(csv_text(gap))))
    assert len(lines) == 7
    assert lines[1]["model"] == 'h3, "second"'
    assert float(lines[1]["ar_hits_share"]) == float(lines[1]["ar_hits_paper_rule"]) == 0.8871
    assert float(lines[1]["ar_hits_share_low"]) == 0.8512
    assert float(lines[1]["delta_high"]) == 0.06
    assert float(lines[1]["overall_nll"]) == 2.49
    assert lines[0]["ar_hits_share"] == lines[4]["ar_hits_paper_rule"] == lines[6]["ar_hits_share_low"] == ""
    assert [line["direction"] for line in lines] == ["", *["behind"] * 2, *["ahead"] * 2, "behind", "level"]


def test_external_counts_are_called_a_proxy(by_hand: Gap) -> None:
    assert "proxy" not in markdown(gap_table(by_hand))
    assert by_hand.index is not None
    table = markdown(gap_table(replace(by_hand, index=replace(by_hand.index, proxy=True))))
    assert "1,250 times in training (proxy: not counted from the training documents)" in table


@pytest.mark.parametrize(
    ("value", "text"), [(1.0, "1.00"), (999.99, "999.99"), (1234.4, "1,234"), (2.0e7, "2.0e+07"), (11.014, "11.01")]
)
def test_perplexities_stay_short(value: float, text: str) -> None:
    assert perplexity(value) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (None, "—"),
        (950, "950"),
        (12_300, "12.3 k"),
        (6_912_345, "6.9 M"),
        (125_000_000, "125 M"),
        (1_400_000_000, "1.4 B"),
    ],
)
def test_parameters_are_printed_in_millions_and_billions(count: int | None, text: str) -> None:
    assert parameters(count) == text


@pytest.mark.parametrize(
    ("value", "text", "rounded_down"),
    [
        (0, "0", "0"),
        (999, "999", "999"),
        (1000, "1k", "1k"),
        (1999, "2k", "1k"),
        (12_500, "12.5k", "12k"),
        (999_999, "1000k", "999k"),
        (1_500_000, "1.5M", "1M"),
        (2 * 10**9, "2G", "2G"),
    ],
)
def test_counts_on_axes_are_short(value: int, text: str, rounded_down: str) -> None:
    assert (short(value), whole(value)) == (text, rounded_down)


def test_there_is_no_negative_zero() -> None:
    assert (nats(-0.0004), nats(-0.0006), nats(0.5)) == ("0.000", "−0.001", "0.500")
    assert (percent(-0.0004), percent(-0.0006), percent(-0.004, 0)) == ("0.0%", "−0.1%", "0%")


def test_minus_signs_differ_from_range_dashes() -> None:
    assert percent_range(0.70, 0.7312) == "70.0–73.1%"
    assert percent_range(-0.1, -0.05) == "−10.0 to −5.0%"


def test_latex_has_a_command_for_signs_that_it_does_not_know() -> None:
    cell = loss(of(9), "token")
    assert r"$\infty$ \\" in latex(Table(("NLL",), [(cell,)]))
