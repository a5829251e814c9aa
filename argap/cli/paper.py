"""``argap paper``: check the published figures against the metric."""

import json
from typing import Annotated

import typer

from argap.cli.tables import Latex, Markdown, form_of


def paper(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    latex: Latex = False,
    markdown: Markdown = False,
) -> None:
    """Check the metric against the percentages printed in the Zoology paper (arXiv 2312.04927), its average too."""
    form = form_of(latex=latex, markdown=markdown, as_json=as_json)
    if as_json:
        from argap.paper import checks_as_json

        typer.echo(json.dumps(checks_as_json(), indent=2))
        return
    from argap.reports.formats import print_tables
    from argap.reports.paper_check import check_tables

    print_tables(check_tables(), form)
