"""``argap label``: add training counts to a result scored without an index, and columns to older labels."""

from pathlib import Path
from typing import Annotated

import typer

from argap.cli.output import Output


def label(
    result: Annotated[Path, typer.Argument(help="Folder that `argap score` wrote.")],
    index: Annotated[str | None, typer.Option(metavar="DIR", help="Bigram index of the training text.")] = None,
    threshold: Annotated[
        str | None, typer.Option(help="As in `argap score`; 1250 with --index, else that of the result.")
    ] = None,
    *,
    output: Output,
) -> None:
    """Count each scored bigram in --index and rewrite labels/, gap.json and cells.parquet; no model is run.

    Labels written by an earlier argap get the columns they lack, with or without --index. The runs stay. An earlier
    report is removed; argap report writes it again.
    """
    from argap.metric.threshold import parse_threshold
    from argap.results.compare import label_result

    output.show_gap(label_result(result, index, threshold=None if threshold is None else parse_threshold(threshold)))
