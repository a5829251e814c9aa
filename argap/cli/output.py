"""What commands print to stdout: JSON for machines, tables for people and papers."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from argap.errors import ArgapError

if TYPE_CHECKING:
    from argap.records import Gap
    from argap.reports.formats import Form

Latex = Annotated[bool, typer.Option("--latex", help="Print LaTeX for booktabs, the best values in bold.")]
Markdown = Annotated[bool, typer.Option("--markdown", help="Print Markdown, the best values in bold.")]


def form_of(*, latex: bool, markdown: bool, as_json: bool) -> "Form":
    """The form that the flags name. Raises `ArgapError` for more than one; call it before any work."""
    if latex + markdown + as_json > 1:
        raise ArgapError("--json, --latex and --markdown: expected one of them at most")
    return "latex" if latex else "markdown" if markdown else "terminal"


def print_json(value: Any) -> None:
    """Print a record, a dataclass, or a nest of them and of plain values."""
    import json

    import msgspec

    typer.echo(json.dumps(msgspec.to_builtins(value), indent=2, ensure_ascii=False))


def print_gap(gap: "Gap", *, as_json: bool, form: "Form") -> None:
    """Print a result: the tables of `argap.reports.tables`, or ``gap.json``."""
    if as_json:
        print_json(gap)
        return
    from argap.reports.formats import print_tables
    from argap.reports.tables import tables_of

    print_tables(tables_of(gap), form)
