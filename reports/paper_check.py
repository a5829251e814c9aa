"""The check of the paper's printed percentages (`argap.paper`) as tables."""

from argap.paper import HEADLINE, GapCheck, Range, check_closed, check_gaps, check_headline
from argap.reports.formats import Column, Table
from argap.reports.numbers import percent, percent_range


def check_tables() -> list[Table]:
    """Gaps due to AR, and shares of BaseConv's gap that are closed."""
    return [_gaps(check_gaps()), _closed()]


def _gaps(checks: list[GapCheck]) -> Table:
    columns = (*_left("Table", "Scale", "Model"), *map(Column, ("Printed", "Its row", "AR hits", "Agrees")))
    rows = [
        (
            str(check.row.table),
            check.row.scale,
            check.row.model,
            f"{check.row.printed}%",
            _range(check.gap_due_to_ar),
            _range(check.share_ar_hits),
            _yes(check.agrees),
        )
        for check in checks
    ]
    odd = [check for check in checks if not check.agrees]
    average = check_headline()
    notes = (
        f"{len(checks) - len(odd)} of {len(checks)} rows agree.",
        *(
            f"{check.row.model} {check.row.scale}: printed {check.row.printed}%, its own row gives "
            f"{_range(check.gap_due_to_ar)}."
            for check in odd
        ),
        f"The abstract's {HEADLINE}% is the mean of the {len(average.rows)} rows of H3, Hyena and RWKV in table 4: "
        f"{percent(average.printed)} as printed, {_range(average.recomputed)} with the row above recomputed.",
    )
    return Table(columns, tuple(rows), notes, title="% of gap due to AR, as printed and as its row gives it")


def _closed() -> Table:
    columns = (*_left("Scale", "Model", "Tokens", "Measure"), *map(Column, ("Printed", "Its rows", "Agrees")))
    rows = [
        (
            check.claim.scale,
            check.claim.model.removeprefix("BaseConv + "),
            {"overall": "all", "ar_hits": "AR hits"}[check.claim.tokens],
            {"ppl": "perplexity", "nll": "NLL"}[check.claim.measure],
            f"{check.claim.printed}%",
            _range(check.closed),
            _yes(check.agrees),
        )
        for check in check_closed()
    ]
    return Table(columns, tuple(rows), (), title="Share of BaseConv's gap to attention that is closed (table 2)")


def _left(*titles: str) -> list[Column]:
    return [Column(title, "left") for title in titles]


def _yes(agrees: bool) -> str:
    return "yes" if agrees else "NO"


def _range(fractions: Range) -> str:
    """``43.9–44.8%``, or one number if both ends print the same."""
    low, high = fractions
    return percent(low) if percent(low) == percent(high) else percent_range(low, high)
