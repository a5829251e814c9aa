"""Show the check of the paper's printed percentages (`argap.metric.paper`) as tables."""

from collections.abc import Sequence

from argap.metric.paper import (
    HEADLINE,
    HYBRID_TABLE,
    TEXT_SHARE,
    GapCheck,
    PublishedRow,
    Range,
    check_closed,
    check_gaps,
    check_headline,
    rows_at_text_share,
)
from argap.reports.tables.formats import Table
from argap.reports.tables.numbers import percent, percent_range


def check_tables() -> list[Table]:
    """Return the table of gaps due to AR and the table of the shares of BaseConv's gap that are closed."""
    return [_gaps(check_gaps()), _closed()]


def _gaps(checks: list[GapCheck]) -> Table:
    columns = ("Table", "Scale", "Model", "Printed", "AR hits", "Its row", "Agrees", f"At {TEXT_SHARE}%", "Agrees")
    rows = [
        (
            str(check.row.table),
            check.row.scale,
            check.row.model,
            f"{check.row.printed}%",
            _range(check.share_ar_hits),
            _range(check.gap_due_to_ar),
            _yes(check.agrees),
            _range(check.at_text_share),
            _yes(check.agrees_at_text_share),
        )
        for check in checks
    ]
    odd = [check for check in checks if not check.agrees]
    at_text_share = [check for check in checks if check.agrees_at_text_share]
    average = check_headline()
    notes = (
        f"{len(checks) - len(odd)} of {len(checks)} rows agree with the share of AR hits that attention's perplexities "
        f"imply, {len(at_text_share)} with the {TEXT_SHARE}% of the paper's text: those printed as 100%.",
        *_why_shares_differ([row for row, _ in rows_at_text_share()]),
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


def _why_shares_differ(rows: Sequence[PublishedRow]) -> tuple[str, str]:
    """Say what the tables imply about the share of AR hits, which they do not print."""
    names = ", ".join(f"{row.model} {row.scale}" for row in rows if row not in HYBRID_TABLE)
    hybrids = ", ".join(f"{row.model.removeprefix('BaseConv + ')} {row.scale}" for row in rows if row in HYBRID_TABLE)
    return (
        f"A row's three perplexities fix its share of AR hits, and {len(rows)} rows imply {TEXT_SHARE}% where "
        f"attention's imply 7.0%: {names}, and in table 2 {hybrids}.",
        "So these rows and attention's were not measured on the same tokens; the tables do not say why, or which share "
        "the text means.",
    )


def _closed() -> Table:
    columns = ("Scale", "Model", "Tokens", "Measure", "Printed", "Its rows", "Agrees")
    checks = check_closed()
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
        for check in checks
    ]
    notes = tuple(
        f"{check.claim.model.removeprefix('BaseConv + ')} {check.claim.scale}: printed {check.claim.printed}%, "
        f"its rows give {_range(check.closed)}."
        for check in checks
        if not check.agrees
    )
    title = "Share of BaseConv's gap to attention that is closed (table 2)"
    return Table(columns, rows, notes, title=title, left=range(4))


def _yes(agrees: bool) -> str:
    return "yes" if agrees else "NO"


def _range(fractions: Range) -> str:
    """Format ``43.9–44.8%``, or one number if both ends print the same."""
    low, high = fractions
    return percent(low) if percent(low) == percent(high) else percent_range(low, high)
