"""``argap paper``: the published figures, checked against the metric."""

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from argap.paper import Interval


def paper(json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Check the metric against the percentages that the Zoology paper prints (arXiv 2312.04927)."""
    if json:
        _print_json()
    else:
        _print_tables()


def _print_tables() -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    from argap.paper import check_closed, check_gaps

    console = Console()
    gaps, closed = check_gaps(), check_closed()
    table = Table(title="% of gap due to AR, as printed and as its row gives it", box=SIMPLE_HEAD, padding=0)
    for name in ("Table", "Scale", "Model"):
        table.add_column(name, no_wrap=True)
    for name in ("Printed", "Its row", "AR hits", "Agrees"):
        table.add_column(name, justify="right", no_wrap=True)
    for check in gaps:
        row = check.row
        range_, share = _percent(check.gap_due_to_ar), _percent(check.share_ar_hits)
        agrees = "yes" if check.agrees else "NO"
        table.add_row(str(row.table), row.scale, row.model, f"{row.printed}%", range_, share, agrees)
    console.print(table)
    odd = [c for c in gaps if not c.agrees]
    console.print(f"{len(gaps) - len(odd)} of {len(gaps)} rows agree.", highlight=False)
    for check in odd:
        console.print(
            f"{check.row.model} {check.row.scale}: printed {check.row.printed}%, its own row gives "
            f"{_percent(check.gap_due_to_ar)}.",
            highlight=False,
        )
    table = Table(title="Share of BaseConv's gap to attention that is closed (table 2)", box=SIMPLE_HEAD, padding=0)
    for name in ("Scale", "Model", "Tokens", "Measure"):
        table.add_column(name, no_wrap=True)
    for name in ("Printed", "Its rows", "Agrees"):
        table.add_column(name, justify="right", no_wrap=True)
    for check in closed:
        claim = check.claim
        tokens = {"overall": "all", "ar_hits": "AR hits"}[claim.tokens]
        measure = {"ppl": "perplexity", "nll": "NLL"}[claim.measure]
        agrees = "yes" if check.agrees else "NO"
        table.add_row(
            claim.scale,
            claim.model.removeprefix("BaseConv + "),
            tokens,
            measure,
            f"{claim.printed}%",
            _percent(check.closed),
            agrees,
        )
    console.print(table)


def _print_json() -> None:
    from dataclasses import asdict
    from json import dumps

    from argap.paper import check_closed, check_gaps

    gaps = [
        {
            **asdict(check.row),
            "case": check.case,
            "share_ar_hits": list(check.share_ar_hits),
            "gap_due_to_ar": list(check.gap_due_to_ar),
            "agrees": check.agrees,
        }
        for check in check_gaps()
    ]
    closed = [{**c.claim._asdict(), "closed": list(c.closed), "agrees": c.agrees} for c in check_closed()]
    print(dumps({"gap_due_to_ar": gaps, "closed": closed}, indent=2))


def _percent(range_: "Interval") -> str:
    """``43.9–44.8%``, or one number where both ends are printed alike."""
    low, high = (f"{100 * end:.1f}" for end in range_)
    return f"{low}%" if low == high else f"{low}–{high}%"
