"""``argap slice``: show what slices of the tokens contribute to the gap."""

from pathlib import Path
from typing import Annotated

import typer

from argap.cli.output import Output
from argap.errors import ArgapError


def slice_(
    result: Annotated[Path | None, typer.Argument(help="Folder that `argap score` or `argap compare` wrote.")] = None,
    where: Annotated[
        list[str] | None, typer.Option(metavar="SQL", help="Condition on a token, as DuckDB SQL. Repeatable.")
    ] = None,
    name: Annotated[list[str] | None, typer.Option(help="Names of the --where, in order [slice 1, ...].")] = None,
    slices: Annotated[
        Path | None, typer.Option(metavar="FILE", help="YAML: slices, each with name, where, title and note.")
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="One slice per value of a column (argap score --keep)."),
    ] = None,
    threshold: Annotated[
        str | None, typer.Option(help="Maximum exposures of an AR hit's bigram, or scaled [the result's].")
    ] = None,
    list_library: Annotated[bool, typer.Option("--list", help="List the bundled slices and the columns.")] = False,
    record: Annotated[
        bool, typer.Option("--record", help="Store the slices in the result for `argap report`, replacing others.")
    ] = False,
    *,
    output: Output,
) -> None:
    """Show what slices of the tokens contribute to the gap, with intervals; by default the bundled slices (--list)."""
    if list_library:
        _print_library()
        return
    if result is None:
        raise ArgapError("no result named; give the folder of one, or --list")
    from msgspec.structs import replace

    from argap.metric.threshold import parse_threshold
    from argap.reports.tables.result import slices_table
    from argap.result import open_result
    from argap.results.compare import record_slices
    from argap.results.printed import result_json
    from argap.results.restated import threshold_in
    from argap.slices.library import read_slices
    from argap.slices.of_tokens import Slice, as_slices, score_by, score_slices, shipped_slices

    wheres = where or []
    names = name or [f"slice {k}" for k in range(1, len(wheres) + 1)]
    if len(wheres) != len(names):
        raise ArgapError(
            f"--where given {len(wheres)} times, --name {len(names)}; expected a name for each or for none"
        )
    if by is not None and (where or name or slices):
        raise ArgapError("--by is a partition of all tokens; give it without --where, --name and --slices")
    wanted = as_slices(read_slices(slices)) if slices else []
    wanted += [Slice(*pair) for pair in zip(names, wheres, strict=True)]
    opened = open_result(result)
    tau = threshold_in(opened.record, None if threshold is None else parse_threshold(threshold))
    if record and tau != opened.record.threshold:
        raise ArgapError("--record keeps slices beside the result's AR hits; give it without --threshold")
    if by is not None:
        scored = score_by(opened.token_table, by, threshold=tau)
    else:
        scored = score_slices(
            opened.token_table, wanted or shipped_slices(opened.token_table), threshold=tau, empty=not wanted
        )
    if record:
        record_slices(result, scored[2:])
    at_tau = replace(opened.record, threshold=tau)
    output.show(result_json(at_tau, scored), lambda: [slices_table(scored, threshold=tau, unit=opened.record.unit)])


def _print_library() -> None:
    from argap.records.columns import COLUMNS
    from argap.slices.library import library

    typer.echo("ar_hits\n    repeated AND train_count <= THRESHOLD\n    In every result.")
    for each in library():
        typer.echo("\n    ".join([each.name, each.where, ". ".join(filter(None, [each.title, each.note]))]))
    typer.echo(f"\nColumns: {', '.join(COLUMNS)}; nll and top1 have a field for each model.")
