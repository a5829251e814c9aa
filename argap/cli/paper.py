"""``argap paper``: check the published figures against the metric."""

from argap.cli.options import Json
from argap.cli.output import Latex, Markdown, form_of, print_json


def paper(
    as_json: Json = False,
    latex: Latex = False,
    markdown: Markdown = False,
) -> None:
    """Check the metric against the percentages printed in the Zoology paper (arXiv 2312.04927), its average too."""
    form = form_of(latex=latex, markdown=markdown, as_json=as_json)
    if as_json:
        from argap.paper import checks_as_json

        print_json(checks_as_json())
        return
    from argap.reports.formats import print_tables
    from argap.reports.paper_check import check_tables

    print_tables(check_tables(), form)
