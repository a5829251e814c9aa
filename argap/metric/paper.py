"""Check argap's metric against the figures of the Zoology paper (arXiv 2312.04927).

The paper prints perplexities to two decimals, so each is known to within ±0.005. Propagated through the metric
(`argap.metric.share`), these intervals give a range of percentages that must contain the printed one. It does in
every row but one: Hyena at 360M is printed as 98.2%, but its row gives 70.2% to 73.0%.

The abstract's 82% is the mean of nine rows, including that one; with its recomputed value the mean is 79%.

The tables do not print p, the share of AR hits among the tokens. It follows from the three perplexities of a row:
overall = p · AR + (1 − p) · other, in NLL. Attention's rows give 7.0% (11.3% at 1.4B), and with their p 16 of the 17
printed percentages follow. The text prints 6.4%, and with it only those printed as 100% follow. The tables hold both:
seven rows, among them Hyena at 360M, give 6.4% themselves (`rows_at_text_share`), so they and attention's rows were
not measured on the same tokens. Which selection the text means, the tables do not say. (Two more rows fit neither:
RetNet, 7.7 to 7.8%, and the hybrid with full attention at 360M, 2.3 to 2.5%.)
"""

import csv
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from itertools import product
from math import log
from pathlib import Path
from statistics import fmean
from typing import Literal, NamedTuple, TypeVar

import msgspec

from argap.metric.share import Case, GapDueToAR, gap_due_to_ar, share_closed

TABLES = Path(__file__).parent / "paper_tables"
REFERENCE = "Attention"
BASE = "BaseConv"
HALF_DIGIT = 0.005  # perplexities are printed to two decimals

TEXT_SHARE = "6.4"
"""Percent of the tokens that are AR hits, as the paper's text has it."""


@dataclass(frozen=True)
class PublishedRow:
    """One row of a table: parameters in millions, perplexities on the Pile."""

    table: int
    scale: str
    model: str
    parameters: int
    overall: float
    ar_hits: float
    other: float
    printed: str | None = None
    """The printed "% of gap due to AR"; None if the table has no number."""
    tflops: float | None = None
    """Cost of training on one window of 2,048 tokens, as printed. (Table 5 repeats those of 70M.)"""


@dataclass(frozen=True)
class PublishedClaim:
    """A statement in the paper's text: the share of BaseConv's gap to attention that a hybrid closes."""

    scale: str
    model: str
    tokens: Literal["overall", "ar_hits"]
    measure: Literal["ppl", "nll"]
    printed: str


Printed = TypeVar("Printed", PublishedRow, PublishedClaim)


def read_table(name: str, row: type[Printed]) -> tuple[Printed, ...]:
    """Read the rows of one of the transcribed tables in ``paper_tables``; an empty cell takes the field's default."""
    with open(TABLES / name, newline="") as file:
        lines = [{column: cell for column, cell in line.items() if cell} for line in csv.DictReader(file)]
    return msgspec.convert(lines, tuple[row, ...], strict=False)


GAP_TABLES = read_table("gap.csv", PublishedRow)
"""Tables 3, 4 and 5. Table 1 of the paper repeats rows of tables 4 and 5."""
HYBRID_TABLE = read_table("hybrids.csv", PublishedRow)
"""Table 2: BaseConv with attention added, on all tokens or on selected ones."""
CLOSED_CLAIMS = read_table("closed.csv", PublishedClaim)

HEADLINE = "82"
"""Percent of the gap due to recall in gated convolutions, according to the abstract."""
HEADLINE_MODELS = ("H3", "Hyena", "RWKV")
"""Models of table 4 whose printed percentages, at three scales, average to `HEADLINE`."""


class Range(NamedTuple):
    """A closed range of fractions."""

    low: float
    high: float

    def meets(self, printed: str) -> bool:
        """Return whether some number in the range rounds to ``printed`` percent."""
        digits = len(printed.partition(".")[2])
        half = 0.5 * 10**-digits
        return 100 * self.low <= float(printed) + half and 100 * self.high >= float(printed) - half


@dataclass(frozen=True)
class GapCheck:
    """A published percentage checked against the perplexities of its row."""

    row: PublishedRow
    share_ar_hits: Range
    """p, as the reference's row implies it."""
    case: Case
    gap_due_to_ar: Range
    """With that p."""
    at_text_share: Range
    """The same percentage with `TEXT_SHARE` for p."""

    @property
    def agrees(self) -> bool:
        return self.row.printed is not None and self.gap_due_to_ar.meets(self.row.printed)

    @property
    def agrees_at_text_share(self) -> bool:
        return self.row.printed is not None and self.at_text_share.meets(self.row.printed)


@dataclass(frozen=True)
class ClosedCheck:
    """A share claimed in the text, checked against the table of hybrids."""

    claim: PublishedClaim
    closed: Range

    @property
    def agrees(self) -> bool:
        return self.closed.meets(self.claim.printed)


@dataclass(frozen=True)
class HeadlineCheck:
    """The abstract's average, checked against the rows of table 4."""

    rows: tuple[GapCheck, ...]
    printed: float
    """Mean of the rows' printed shares."""
    recomputed: Range
    """The same mean, with rows that do not agree recomputed from their perplexities."""

    @property
    def agrees(self) -> bool:
        return Range(self.printed, self.printed).meets(HEADLINE)

    @property
    def recomputed_agrees(self) -> bool:
        return self.recomputed.meets(HEADLINE)


def check_gaps() -> list[GapCheck]:
    """Check every published percentage, in the paper's order."""
    references = {row.scale: row for row in GAP_TABLES if row.model == REFERENCE}
    return [check_gap(row, references[row.scale]) for row in GAP_TABLES if row.printed is not None]


def check_gap(row: PublishedRow, reference: PublishedRow) -> GapCheck:
    """Bound the metric over all perplexities that round to those of ``row`` and ``reference``.

    The quotient depends on five printed numbers. Three of the reference's determine p, and two of these also enter the
    quotient directly, so p cannot be bounded separately. The quotient is linear-fractional in the log of each number,
    hence monotone between poles; so is its minimum with 1. Both bounds are therefore attained at one of the 32 corners
    of the rounding box. Raises `ValueError` if the box contains a pole, that is, if rounding could change the case.
    """
    printed = (row.ar_hits, row.overall, reference.ar_hits, reference.overall, reference.other)
    corners = [_metric(*corner) for corner in _corners(printed)]
    cases: set[Case] = {result.case for _, result in corners}
    if len(cases) > 1 or any(not 0 < share < 1 for share, _ in corners):
        raise ValueError(f"{row.scale} {row.model}: the printed digits do not settle the case ({', '.join(cases)})")
    values = [result.value for _, result in corners if result.value is not None]
    if not values:
        raise ValueError(f"{row.scale} {row.model}: no gap, so no percentage")
    shares = [share for share, _ in corners]
    return GapCheck(
        row=row,
        share_ar_hits=Range(min(shares), max(shares)),
        case=cases.pop(),
        gap_due_to_ar=Range(min(values), max(values)),
        at_text_share=_at_text_share(row, reference),
    )


def _at_text_share(row: PublishedRow, reference: PublishedRow) -> Range:
    """Bound the metric as `check_gap` does, but with every p that rounds to `TEXT_SHARE`.

    The share is linear in p, so the bounds are again at corners.
    """
    printed = (row.ar_hits, row.overall, reference.ar_hits, reference.overall)
    values = [
        gap_due_to_ar(log(ref_ar / ar), log(ref_overall / overall), share).value
        for ar, overall, ref_ar, ref_overall in _corners(printed)
        for share in ((float(TEXT_SHARE) - 0.05) / 100, (float(TEXT_SHARE) + 0.05) / 100)
    ]
    ends = [value for value in values if value is not None]
    return Range(min(ends), max(ends))


def own_share(row: PublishedRow) -> Range:
    """Bound the share of AR hits that a row's own three perplexities imply.

    The share is monotone in each of them, so the bounds are at the corners of the rounding box.
    """
    shares = [_share(*corner) for corner in _corners((row.ar_hits, row.overall, row.other))]
    return Range(min(shares), max(shares))


def rows_at_text_share() -> list[tuple[PublishedRow, Range]]:
    """List the rows of tables 2 to 5 that imply `TEXT_SHARE`, and not the share of their scale's attention row."""
    rows = (*GAP_TABLES, *HYBRID_TABLE)
    references = {row.scale: own_share(row) for row in rows if row.model == REFERENCE}
    found = []
    for row in rows:
        own, other = own_share(row), references[row.scale]
        apart = own.high < other.low or own.low > other.high
        if apart and own.meets(TEXT_SHARE):
            found.append((row, own))
    return found


def check_closed() -> list[ClosedCheck]:
    """Check the shares of the gap that hybrids close, as stated in the text, against table 2."""
    rows = {(row.scale, row.model): row for row in HYBRID_TABLE}

    def bounds(claim: PublishedClaim) -> Range:
        names = (claim.model, BASE, REFERENCE)
        printed = [getattr(rows[claim.scale, name], claim.tokens) for name in names]
        # Linear-fractional in each of the three, as in `check_gap`.
        values = [getattr(share_closed(*(log(ppl) for ppl in corner)), claim.measure) for corner in _corners(printed)]
        return Range(min(values), max(values))

    return [ClosedCheck(claim, bounds(claim)) for claim in CLOSED_CLAIMS]


def check_headline() -> HeadlineCheck:
    """Check the abstract's average over the gated convolutions H3, Hyena and RWKV at three scales."""
    rows = tuple(check for check in check_gaps() if check.row.table == 4 and check.row.model in HEADLINE_MODELS)
    printed = [float(check.row.printed or "nan") / 100 for check in rows]
    ends = [check.gap_due_to_ar if not check.agrees else Range(p, p) for check, p in zip(rows, printed, strict=True)]
    recomputed = Range(fmean(low for low, _ in ends), fmean(high for _, high in ends))
    return HeadlineCheck(rows, fmean(printed), recomputed)


def checks_as_json() -> dict[str, object]:
    """Return all checks as ``argap paper --json`` prints them."""
    own = ("case", "share_ar_hits", "gap_due_to_ar", "agrees", "at_text_share", "agrees_at_text_share")
    gaps = [asdict(check.row) | {key: getattr(check, key) for key in own} for check in check_gaps()]
    closed = [{**asdict(c.claim), "closed": c.closed, "agrees": c.agrees} for c in check_closed()]
    average = check_headline()
    headline = {
        "printed": HEADLINE,
        "rows": [f"{check.row.model} {check.row.scale}" for check in average.rows],
        "mean": average.printed,
        "agrees": average.agrees,
        "recomputed": average.recomputed,
        "recomputed_agrees": average.recomputed_agrees,
    }
    shares = {
        "text": TEXT_SHARE,
        "rows": [
            {"table": row.table, "scale": row.scale, "model": row.model, "share_ar_hits": own}
            for row, own in rows_at_text_share()
        ],
    }
    return {"gap_due_to_ar": gaps, "share_ar_hits": shares, "headline": headline, "closed": closed}


def implied(row: PublishedRow, reference: PublishedRow) -> tuple[float, GapDueToAR]:
    """Return the share of AR hits and the metric implied by printed perplexities."""
    return _metric(row.ar_hits, row.overall, reference.ar_hits, reference.overall, reference.other)


def _metric(ar: float, overall: float, ref_ar: float, ref_overall: float, ref_other: float) -> tuple[float, GapDueToAR]:
    share = _share(ref_ar, ref_overall, ref_other)
    return share, gap_due_to_ar(log(ref_ar / ar), log(ref_overall / overall), share)


def _share(ar: float, overall: float, other: float) -> float:
    """Solve overall = p · AR + (1 − p) · other, in NLL, for p; the arguments are perplexities."""
    return log(other / overall) / log(other / ar)


def _corners(printed: Iterable[float]) -> Iterable[tuple[float, ...]]:
    return product(*((value - HALF_DIGIT, value + HALF_DIGIT) for value in printed))
