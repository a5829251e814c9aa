"""``argap label``: training counts for a result that was scored without an index, or with another one."""

from pathlib import Path
from typing import Annotated

import typer

from argap.cli.options import Json, Threshold
from argap.cli.output import Latex, Markdown, form_of, print_gap


def label(
    result: Annotated[Path, typer.Argument(help="Folder that `argap score` wrote.")],
    index: Annotated[str, typer.Option(metavar="DIR", help="Bigram index of the training text.")],
    threshold: Threshold = "1250",
    as_json: Json = False,
    latex: Latex = False,
    markdown: Markdown = False,
) -> None:
    """Count each scored bigram in --index and rewrite labels/, gap.json and cells.parquet; no model is run.

    The runs stay. An earlier report is removed; argap report writes it again.
    """
    from argap.comparison import label_result
    from argap.threshold import parse_threshold

    form = form_of(latex=latex, markdown=markdown, as_json=as_json)
    print_gap(label_result(result, index, threshold=parse_threshold(threshold)), as_json=as_json, form=form)
