"""``argap paper``: check the published figures against the metric."""

from typing import TYPE_CHECKING

from argap.cli.options import Json
from argap.cli.output import print_json, table

if TYPE_CHECKING:
    from argap.paper import Range


def paper(as_json: Json = False) -> None:
    """Check the metric against the percentages printed in the Zoology paper (arXiv 2312.04927), its average too."""
    from argap.paper import checks_as_json

    if as_json:
        print_json(checks_as_json())
    else:
        _print_tables()


def _print_tables() -> None:
    from rich.console import Console

    from argap.paper import HEADLINE, check_closed, check_gaps, check_headline

    console = Console()
    gaps = check_gaps()
    title = "% of gap due to AR, as printed and as its row gives it"
    due_to_ar = table(title, "Table", "Scale", "Model", ">Printed", ">Its row", ">AR hits", ">Agrees", padding=0)
    for check in gaps:
        row = check.row
        due, share = _percent(check.gap_due_to_ar), _percent(check.share_ar_hits)
        due_to_ar.add_row(str(row.table), row.scale, row.model, f"{row.printed}%", due, share, _yes(check.agrees))
    console.print(due_to_ar)
    odd = [check for check in gaps if not check.agrees]
    console.print(f"{len(gaps) - len(odd)} of {len(gaps)} rows agree.", highlight=False)
    for check in odd:
        row = check.row
        console.print(
            f"{row.model} {row.scale}: printed {row.printed}%, its own row gives {_percent(check.gap_due_to_ar)}.",
            highlight=False,
        )
    average = check_headline()
    console.print(
        f"The abstract's {HEADLINE}% is the mean of the {len(average.rows)} rows of H3, Hyena and RWKV in table 4: "
        f"{100 * average.printed:.1f}% as printed, {_percent(average.recomputed)} with the row above recomputed.",
        highlight=False,
        soft_wrap=True,
    )
    title = "Share of BaseConv's gap to attention that is closed (table 2)"
    closed = table(title, "Scale", "Model", "Tokens", "Measure", ">Printed", ">Its rows", ">Agrees", padding=0)
    for check in check_closed():
        claim = check.claim
        tokens = {"overall": "all", "ar_hits": "AR hits"}[claim.tokens]
        measure = {"ppl": "perplexity", "nll": "NLL"}[claim.measure]
        model = claim.model.removeprefix("BaseConv + ")
        share = _percent(check.closed)
        closed.add_row(claim.scale, model, tokens, measure, f"{claim.printed}%", share, _yes(check.agrees))
    console.print(closed)


def _yes(agrees: bool) -> str:
    return "yes" if agrees else "NO"


def _percent(fractions: "Range") -> str:
    """``43.9–44.8%``, or one number if both ends print the same."""
    low, high = (f"{100 * end:.1f}" for end in fractions)
    return f"{low}%" if low == high else f"{low}–{high}%"
