"""``argap discover``: find the conditions that explain a model's gap."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from argap.cli.options import parse_tokens
from argap.cli.output import Output
from argap.errors import ArgapError

if TYPE_CHECKING:
    from argap.reports.tables.formats import Table


def discover(
    result: Annotated[Path, typer.Argument(help="Folder that `argap score` or `argap compare` wrote.")],
    model: Annotated[str, typer.Option(help="The model whose gap to explain.")],
    depth: Annotated[int, typer.Option(help="Maximum number of splits to a leaf.")] = 3,
    min_share: Annotated[
        str, typer.Option(metavar="SHARE", help="Minimum share of the tokens in a leaf: 0.5% or 0.005.")
    ] = "0.5%",
    leaves: Annotated[int, typer.Option(metavar="N", help="Maximum number of leaves.")] = 5,
    limit_tokens: Annotated[
        str, typer.Option(metavar="N", help="Read random documents of about N tokens; all: read every document.")
    ] = "50M",
    *,
    output: Output,
) -> None:
    """Find the conditions that explain a model's gap: grow a tree on half of the documents, measure on the other half.

    The conditions can be pasted into argap slice --where. A slice found this way is a hypothesis.
    """
    limit = None if limit_tokens == "all" else int(parse_tokens(limit_tokens, "limit_tokens"))
    from argap.records import read_gap
    from argap.reports.tables.result import slices_table
    from argap.results.printed import result_json
    from argap.slices.discover import HYPOTHESIS
    from argap.slices.discover import discover as find

    record = read_gap(result)
    found = find(result, record, model, depth=depth, min_share=_share(min_share), leaves=leaves, limit_tokens=limit)

    def tables() -> "list[Table]":
        source = "its tokens" if found.tokens else "its cells, not its tokens: splits are at the bounds of bins"
        notes = [f"Found in one half of the documents from {source}; figures of the other half.", HYPOTHESIS]
        if (drawn := found.sample) is not None:
            read = f"Read {drawn.documents:,} of {drawn.of:,} documents ({drawn.share:.1%} of the tokens)"
            notes.insert(0, f"{read}, drawn at random with seed {drawn.seed}; --limit-tokens all reads every one.")
        if any("distance <=" in (each.about.where or "") for each in found.slices):
            notes.append("distance is 0 for tokens that are not repeated, so distance <= N contains them.")
        shown, unit = [found.whole, *found.slices], record.unit
        return [slices_table(shown, threshold=record.threshold, models=[model], unit=unit, notes=notes)]

    shown = result_json(record, [found.whole, *found.slices])
    output.show(shown | {"note": HYPOTHESIS, "sample": found.sample}, tables)


def _share(text: str) -> float:
    """Parse ``0.5%`` or ``0.005``."""
    try:
        return float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        raise ArgapError(f"`min_share` {text}: expected a share such as 0.5% or 0.005") from None
