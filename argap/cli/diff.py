"""``argap diff``: say where two runs of the same weights differ."""

from typing import Annotated

import typer

from argap.cli.output import Output
from argap.errors import ArgapError


def diff(
    first: Annotated[str, typer.Argument(metavar="RUN", help="A finished run: a folder, or NAME=FOLDER.")],
    second: Annotated[str, typer.Argument(metavar="RUN", help="Another, over the same text.")],
    tolerance: Annotated[
        float | None, typer.Option(metavar="X", help="Exit with 1 if any |Δ log p| exceeds X nats.")
    ] = None,
    *,
    output: Output,
) -> None:
    """Compare two runs of the same weights token by token, and say where they differ; no model is run.

    For two engines, dtypes, batch sizes, backends or versions of a library. A difference that grows along the window,
    begins at a block of a cache, or is only in padded windows points to a fault in one of them; rounding is spread
    evenly.
    """
    from argap.reports.tables.difference import beyond_tolerance, json_of, tables_of
    from argap.results.difference import compare_pair

    found = compare_pair(first, second, tolerance=tolerance)
    output.show(json_of(found) if output.as_json else None, lambda: tables_of(found))
    if found.beyond:
        raise ArgapError(beyond_tolerance(found))
