"""The check of the paper's printed percentages (`argap.metric.paper`) as tables."""

from argap.metric.paper import HEADLINE, GapCheck, Range, check_closed, check_gaps, check_headline
from argap.reports.tables.formats import Table
from argap.reports.tables.numbers import percent, percent_range


def check_tables() -> list[Table]:
    """Gaps due to AR, and shares of BaseConv's gap that are closed."""
    return [_gaps(check_gaps()), _closed()]


def _gaps(checks: list[GapCheck]) -> Table:
    columns = ("Table", "Scale", "Model", "Printed", "Its row", "AR hits", "Agrees")
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
    title = "% of gap due to AR, as printed and as its row gives it"
    return Table(columns, rows, notes, title=title, left=range(3))


def _closed() -> Table:
    columns = ("Scale", "Model", "Tokens", "Measure", "Printed", "Its rows", "Agrees")
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
    title = "Share of BaseConv's gap to attention that is closed (table 2)"
    return Table(columns, rows, title=title, left=range(4))


def _yes(agrees: bool) -> str:
    return "yes" if agrees else "NO"


def _range(fractions: Range) -> str:
    """``43.9–44.8%``, or one number if both ends print the same."""
    low, high = fractions
    return percent(low) if percent(low) == percent(high) else percent_range(low, high)
