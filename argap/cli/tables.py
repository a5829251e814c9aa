"""``--latex`` and ``--markdown`` of every command that prints a table."""

from typing import TYPE_CHECKING, Annotated

import typer

from argap.errors import ArgapError

if TYPE_CHECKING:
    from argap.reports.formats import Form

Latex = Annotated[bool, typer.Option("--latex", help="Print LaTeX for booktabs, the best values in bold.")]
Markdown = Annotated[bool, typer.Option("--markdown", help="Print Markdown, the best values in bold.")]


def form_of(*, latex: bool, markdown: bool, as_json: bool = False) -> "Form":
    """The form that the flags name. Raises `ArgapError` for more than one; call it before any work."""
    if latex + markdown + as_json > 1:
        raise ArgapError("--json, --latex and --markdown: expected one of them at most")
    return "latex" if latex else "markdown" if markdown else "terminal"
