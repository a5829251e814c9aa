"""``argap paper``: check the published figures against the metric."""

from argap.cli.output import Output


def paper(output: Output) -> None:
    """Check the metric against the percentages printed in the Zoology paper (arXiv 2312.04927) and their average."""
    from argap.metric.paper import checks_as_json
    from argap.reports.tables.paper import check_tables

    output.show(checks_as_json(), check_tables)
