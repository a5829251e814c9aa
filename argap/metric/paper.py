"""The figures of the Zoology paper (arXiv 2312.04927), and a check of argap's metric against them.

The paper prints perplexities to two decimals, so each is known to within ±0.005. Propagated through the metric
(`argap.metric.share`), these intervals give a range of percentages that must contain the printed one. It does in
every row but one: Hyena at 360M is printed as 98.2%, but its row gives 70.2% to 73.0%.

The abstract's 82% is the mean of nine rows, that one among them; with its recomputed value the mean is 79%.

The tables do not print p, the share of AR hits. It follows from the attention row of each scale:
overall = p · AR + (1 − p) · other, in NLL.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from itertools import product
from math import log
from statistics import fmean
from typing import Any, Literal, NamedTuple

from argap.metric.share import Case, GapDueToAR, gap_due_to_ar, share_closed

REFERENCE = "Attention"
BASE = "BaseConv"
HALF_DIGIT = 0.005  # perplexities are printed to two decimals


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
    """The printed "% of gap due to AR"; None where the table has no number."""
    tflops: float | None = None
    """Training on one window of 2,048 tokens, as printed. (Table 5 repeats those of 70M.)"""


# Tables 3, 4 and 5. Table 1 of the paper repeats rows of tables 4 and 5.
GAP_TABLES = (
    PublishedRow(4, "70M", "Attention", 73, 12.99, 2.41, 14.76, tflops=1.52),
    PublishedRow(4, "70M", "Long Conv", 76, 20.28, 40.25, 19.25, "44.4", tflops=1.20),
    PublishedRow(4, "70M", "H3", 72, 15.78, 13.86, 15.94, "63.2", tflops=1.33),
    PublishedRow(4, "70M", "Hyena", 72, 15.13, 9.00, 15.74, "60.8", tflops=1.34),
    PublishedRow(4, "70M", "RWKV", 72, 16.10, 14.11, 16.26, "57.9", tflops=1.89),
    PublishedRow(4, "125M", "Attention", 125, 11.01, 2.16, 12.45, tflops=2.46),
    PublishedRow(4, "125M", "Long Conv", 128, 16.98, 25.62, 16.46, "40.1", tflops=1.74),
    PublishedRow(4, "125M", "H3", 168, 12.06, 6.75, 12.60, "88.4", tflops=2.55),
    PublishedRow(4, "125M", "RWKV", 169, 11.64, 5.70, 12.29, "100.0", tflops=2.08),
    PublishedRow(4, "125M", "RetNet (128)", 152, 11.15, 3.01, 12.45, "100", tflops=2.60),
    PublishedRow(4, "125M", "Hyena", 160, 11.60, 5.00, 12.28, "100", tflops=2.41),
    PublishedRow(4, "125M", "Hyena + Slide Attn. (64)", 159, 11.57, 5.23, 12.30, "100", tflops=2.28),
    PublishedRow(4, "125M", "Hyena + Slide Attn. (256)", 159, 10.65, 3.42, 11.52, "100", tflops=2.29),
    PublishedRow(4, "360M", "Attention", 360, 9.44, 1.98, 10.62, tflops=6.23),
    PublishedRow(4, "360M", "Long Conv", 360, 13.13, 13.27, 13.12, "40.5", tflops=4.08),
    PublishedRow(4, "360M", "H3", 357, 10.38, 4.81, 11.00, "65.8", tflops=4.85),
    PublishedRow(4, "360M", "Hyena", 358, 10.07, 3.83, 10.75, "98.2", tflops=5.03),
    PublishedRow(4, "360M", "RWKV", 351, 9.79, 3.82, 10.51, "100.0", tflops=4.31),
    PublishedRow(5, "1.4B", "Attention", 1400, 8.19, 1.91, 9.86, tflops=1.52),
    PublishedRow(5, "1.4B", "Hyena", 1400, 9.65, 3.43, 11.01, "40.3", tflops=1.20),
    PublishedRow(3, "liquid", "Attention", 125, 12.37, 2.32, 14.04),
    PublishedRow(3, "liquid", "Liquid S4", 145, 16.80, 22.75, 16.42, "52.6"),
)

# Table 2: BaseConv with attention added, on all tokens or on selected ones.
HYBRID_TABLE = (
    PublishedRow(2, "125M", "Attention", 125, 11.01, 2.16, 12.45, tflops=2.46),
    PublishedRow(2, "125M", "BaseConv", 168, 12.90, 8.68, 13.29, tflops=2.46),
    PublishedRow(2, "125M", "BaseConv + Random selection", 162, 12.13, 5.33, 12.83, tflops=2.44),
    PublishedRow(2, "125M", "BaseConv + Programmatic selection", 162, 11.06, 2.70, 12.19, tflops=2.44),
    PublishedRow(2, "125M", "BaseConv + Learned selection", 166, 11.06, 3.20, 12.14, tflops=2.44),
    PublishedRow(2, "125M", "BaseConv + Full attention", 166, 9.57, 2.01, 10.76, tflops=2.58),
    PublishedRow(2, "360M", "Attention", 360, 9.44, 1.98, 10.62, tflops=6.23),
    PublishedRow(2, "360M", "BaseConv", 354, 11.01, 5.98, 11.52, tflops=4.81),
    PublishedRow(2, "360M", "BaseConv + Random selection", 365, 12.94, 6.17, 13.62, tflops=5.06),
    PublishedRow(2, "360M", "BaseConv + Programmatic selection", 365, 9.54, 2.35, 10.50, tflops=5.06),
    PublishedRow(2, "360M", "BaseConv + Learned selection", 351, 9.59, 2.61, 10.58, tflops=5.06),
    PublishedRow(2, "360M", "BaseConv + Full attention", 351, 8.59, 1.95, 8.91, tflops=5.10),
)


class PublishedClaim(NamedTuple):
    """A statement in the paper's text: the share of BaseConv's gap to attention that a hybrid closes."""

    scale: str
    model: str
    tokens: Literal["overall", "ar_hits"]
    measure: Literal["ppl", "nll"]
    printed: str


CLOSED_CLAIMS = (
    PublishedClaim("125M", "BaseConv + Programmatic selection", "overall", "ppl", "97.4"),
    PublishedClaim("360M", "BaseConv + Programmatic selection", "ar_hits", "nll", "85"),
    PublishedClaim("360M", "BaseConv + Learned selection", "ar_hits", "nll", "72"),
)


HEADLINE = "82"
"""Percent of the gap that is recall in gated convolutions, as the abstract has it."""
HEADLINE_MODELS = ("H3", "Hyena", "RWKV")
"""Models of table 4 whose printed percentages, at three scales, average to `HEADLINE`."""


class Range(NamedTuple):
    """A closed range of fractions."""

    low: float
    high: float

    def meets(self, printed: str) -> bool:
        """Whether some number in the range rounds to ``printed`` percent."""
        digits = len(printed.partition(".")[2])
        half = 0.5 * 10**-digits
        return 100 * self.low <= float(printed) + half and 100 * self.high >= float(printed) - half


@dataclass(frozen=True)
class GapCheck:
    """A published percentage checked against the perplexities of its row."""

    row: PublishedRow
    share_ar_hits: Range
    case: Case
    gap_due_to_ar: Range

    @property
    def agrees(self) -> bool:
        return self.row.printed is not None and self.gap_due_to_ar.meets(self.row.printed)


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
    """The same mean, with rows that do not agree at what their own perplexities give."""

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
    """Bounds of the metric over all perplexities that round to those of ``row`` and ``reference``.

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
    )


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


def checks_as_json() -> dict[str, Any]:
    """All checks, as ``argap paper --json`` prints them."""
    own = ("case", "share_ar_hits", "gap_due_to_ar", "agrees")
    gaps = [asdict(check.row) | {key: getattr(check, key) for key in own} for check in check_gaps()]
    closed = [{**c.claim._asdict(), "closed": c.closed, "agrees": c.agrees} for c in check_closed()]
    average = check_headline()
    headline = {
        "printed": HEADLINE,
        "rows": [f"{check.row.model} {check.row.scale}" for check in average.rows],
        "mean": average.printed,
        "agrees": average.agrees,
        "recomputed": average.recomputed,
        "recomputed_agrees": average.recomputed_agrees,
    }
    return {"gap_due_to_ar": gaps, "headline": headline, "closed": closed}


def implied(row: PublishedRow, reference: PublishedRow) -> tuple[float, GapDueToAR]:
    """The share of AR hits and the metric that printed perplexities imply."""
    return _metric(row.ar_hits, row.overall, reference.ar_hits, reference.overall, reference.other)


def _metric(ar: float, overall: float, ref_ar: float, ref_overall: float, ref_other: float) -> tuple[float, GapDueToAR]:
    share = log(ref_other / ref_overall) / log(ref_other / ref_ar)  # overall = p · AR + (1 − p) · other, in NLL
    return share, gap_due_to_ar(log(ref_ar / ar), log(ref_overall / overall), share)


def _corners(printed: Iterable[float]) -> Iterable[tuple[float, ...]]:
    return product(*((value - HALF_DIGIT, value + HALF_DIGIT) for value in printed))
