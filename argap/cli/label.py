"""``argap label``: training counts for a result that was scored without an index, or with another one."""

from pathlib import Path
from typing import Annotated

import typer

from argap.cli.options import Threshold
from argap.cli.output import Output


def label(
    result: Annotated[Path, typer.Argument(help="Folder that `argap score` wrote.")],
    index: Annotated[str, typer.Option(metavar="DIR", help="Bigram index of the training text.")],
    threshold: Threshold = "1250",
    *,
    output: Output,
) -> None:
    """Count each scored bigram in --index and rewrite labels/, gap.json and cells.parquet; no model is run.

    The runs stay. An earlier report is removed; argap report writes it again.
    """
    from argap.metric.threshold import parse_threshold
    from argap.results.compare import label_result

    output.show_gap(label_result(result, index, threshold=parse_threshold(threshold)))
