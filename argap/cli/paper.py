"""``argap paper``: check the published figures against the metric."""

import json
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from argap.paper import Range


def paper(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Check the metric against the percentages printed in the Zoology paper (arXiv 2312.04927), its average too."""
    from argap.paper import checks_as_json

    if as_json:
        typer.echo(json.dumps(checks_as_json(), indent=2))
    else:
        _print_tables()


def _print_tables() -> None:
    from rich.console import Console

    from argap.paper import HEADLINE, check_closed, check_gaps, check_headline

    console = Console()
    gaps = check_gaps()
    table = _table(
        "% of gap due to AR, as printed and as its row gives it",
        ["Table", "Scale", "Model"],
        ["Printed", "Its row", "AR hits", "Agrees"],
    )
    for check in gaps:
        row = check.row
        due, share = _percent(check.gap_due_to_ar), _percent(check.share_ar_hits)
        table.add_row(str(row.table), row.scale, row.model, f"{row.printed}%", due, share, _yes(check.agrees))
    console.print(table)
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
    table = _table(
        "Share of BaseConv's gap to attention that is closed (table 2)",
        ["Scale", "Model", "Tokens", "Measure"],
        ["Printed", "Its rows", "Agrees"],
    )
    for check in check_closed():
        claim = check.claim
        tokens = {"overall": "all", "ar_hits": "AR hits"}[claim.tokens]
        measure = {"ppl": "perplexity", "nll": "NLL"}[claim.measure]
        model = claim.model.removeprefix("BaseConv + ")
        closed = _percent(check.closed)
        table.add_row(claim.scale, model, tokens, measure, f"{claim.printed}%", closed, _yes(check.agrees))
    console.print(table)


def _table(title: str, texts: list[str], numbers: list[str]) -> "Table":
    """An empty table; the columns in ``numbers`` are right-aligned."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(title=title, box=SIMPLE_HEAD, padding=0)
    for name in texts:
        table.add_column(name, no_wrap=True)
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _yes(agrees: bool) -> str:
    return "yes" if agrees else "NO"


def _percent(fractions: "Range") -> str:
    """``43.9–44.8%``, or one number if both ends print the same."""
    low, high = (f"{100 * end:.1f}" for end in fractions)
    return f"{low}%" if low == high else f"{low}–{high}%"
