"""``argap label``, ``slice``, ``discover``, ``report``, ``view``, ``push``, ``paper``: read or send a result."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from argap.cli.complete import models_of_result, results
from argap.cli.options import Index, only, parse_tokens
from argap.cli.output import FORMATS, Output, print_json
from argap.errors import ArgapError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from argap.reports.tables.formats import Table
    from argap.result import Result
    from argap.slices.of_tokens import Slice

RESULT = typer.Argument(help="Folder that `argap score` or `argap compare` wrote.", autocompletion=results)


def label(
    result: Annotated[Path, typer.Argument(help="Folder that `argap score` wrote.", autocompletion=results)],
    index: Index = None,
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


def slice_(
    context: typer.Context,
    result: Annotated[Path | None, RESULT] = None,
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
    fidelity: Annotated[
        bool, typer.Option("--fidelity", help="Show |Δ log p|, agreement and KL in place of the gap's parts.")
    ] = False,
    record: Annotated[
        bool, typer.Option("--record", help="Store the slices in the result for `argap report`, replacing others.")
    ] = False,
    *,
    output: Output,
) -> None:
    """Show what slices of the tokens contribute to the gap, with intervals; by default the bundled slices (--list)."""
    if list_library:
        only(context, "--list", "list_library", "as_json")
        _show_library(output)
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
    if fidelity:
        only(context, "--fidelity", "fidelity", "where", "name", "slices", "by", *FORMATS)
        _show_fidelity(opened, wanted, by, output)
        return
    if by is not None:
        scored = score_by(opened.token_table, by, threshold=tau)
    else:
        scored = score_slices(
            opened.token_table, wanted or shipped_slices(opened.token_table), threshold=tau, empty=not wanted
        )
    if record:
        record_slices(result, scored[2:], opened.record)
    at_tau = replace(opened.record, threshold=tau)
    output.show(result_json(at_tau, scored), lambda: [slices_table(scored, threshold=tau, unit=opened.record.unit)])


def _show_fidelity(opened: "Result", wanted: "Sequence[Slice]", by: str | None, output: Output) -> None:
    """Print how closely the models follow the reference on each slice."""
    from argap.reports.tables.fidelity import slices_fidelity_table
    from argap.results.printed import fidelity_json

    found = opened.closely({each.name: each.where for each in wanted}, by=by)
    value = {"reference": opened.reference, "fidelity": [fidelity_json(each) for each in found]}
    output.show(value, lambda: [slices_fidelity_table(found, opened.reference)])


def _show_library(output: Output) -> None:
    from argap.records.columns import COLUMNS
    from argap.slices.library import library

    if output.as_json:
        print_json({"slices": library(), "columns": COLUMNS})
        return
    typer.echo("ar_hits\n    repeated AND train_count <= THRESHOLD\n    In every result.")
    for each in library():
        typer.echo("\n    ".join([each.name, each.where, ". ".join(filter(None, [each.title, each.note]))]))
    typer.echo(f"\nColumns: {', '.join(COLUMNS)}; nll and top1 have a field for each model.")


def discover(
    result: Annotated[Path, RESULT],
    model: Annotated[str, typer.Option(help="The model whose gap to explain.", autocompletion=models_of_result)],
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
    from argap.runtime.progress import say
    from argap.slices.discover import HYPOTHESIS, OF_CELLS
    from argap.slices.discover import discover as find

    record = read_gap(result)
    found = find(result, record, model, depth=depth, min_share=_share(min_share), leaves=leaves, limit_tokens=limit)

    def tables() -> "list[Table]":
        source = "its tokens" if found.tokens else OF_CELLS
        notes = [f"Found in one half of the documents, in {source}; figures of the other half.", HYPOTHESIS]
        if (drawn := found.sample) is not None:
            read = f"Read {drawn.documents:,} of {drawn.of:,} documents ({drawn.share:.1%} of the tokens)"
            notes.insert(0, f"{read}, drawn at random with seed {drawn.seed}; --limit-tokens all reads every one.")
        stable = ", ".join(f"{name} {value:.2f}" for name, value in found.stability.items())
        notes.append(f"Overlap with the most similar leaf of trees grown on other halves (1: the same): {stable}.")
        if any("distance <=" in (each.about.where or "") for each in found.slices):
            notes.append("distance is 0 for tokens that are not repeated, so distance <= N contains them.")
        shown, unit = [found.whole, *found.slices], record.unit
        return [slices_table(shown, threshold=record.threshold, models=[model], unit=unit, notes=notes)]

    if output.as_json and not found.tokens:  # tables have a note
        say(f"{result}: found in {OF_CELLS}")
    shown = result_json(record, [found.whole, *found.slices])
    said = {"note": HYPOTHESIS, "tokens": found.tokens, "sample": found.sample, "stability": found.stability}
    output.show(shown | said, tables)


def _share(text: str) -> float:
    """Parse ``0.5%`` or ``0.005``."""
    try:
        return float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        raise ArgapError(f"`min_share` {text}: expected a share such as 0.5% or 0.005") from None


def report(
    context: typer.Context,
    result: Annotated[Path, RESULT],
    out: Annotated[Path | None, typer.Option(help="Output folder, instead of the result's own.")] = None,
    png: Annotated[bool, typer.Option("--png", help="Also write each figure as PNG (200 dpi).")] = False,
    pdf: Annotated[bool, typer.Option("--pdf", help="Also write each figure as PDF with selectable text.")] = False,
    card: Annotated[bool, typer.Option("--card", help="Print a section for a model card; write no file.")] = False,
) -> None:
    """Write report.html, tables (Markdown, LaTeX, CSV) and figures/ from gap.json, and print the path of the page."""
    if card:
        from argap.records import read_gap
        from argap.reports.pages.write import card as section

        only(context, "--card", "card")
        typer.echo(section(read_gap(result)), nl=False)
        return
    from argap.reports.pages.write import write_report

    formats = ["svg", *["png"] * png, *["pdf"] * pdf]
    typer.echo(write_report(result, out, formats=formats))


def view(
    context: typer.Context,
    result: Annotated[
        Path,
        typer.Argument(
            help="Folder that `argap score` or `argap compare` wrote, or one that holds several of them.",
            autocompletion=results,
        ),
    ],
    port: Annotated[
        int | None, typer.Option(metavar="N", help="Port on 127.0.0.1; 0: any free port [8717 if free].")
    ] = None,
    no_browser: Annotated[
        bool, typer.Option("--no-browser", help="Only print the address, as without a terminal.")
    ] = False,
    bundle: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write the page as static files for any web server instead.")
    ] = None,
    windows: Annotated[
        int | None, typer.Option(metavar="N", help="Windows of tokens in a bundle, those that lose most [24].")
    ] = None,
) -> None:
    """Look at a result in the browser: tables, the threshold, breakdowns, slices and every token. Ctrl-C ends it."""
    from argap.result import open_result

    if bundle is not None:
        from argap.view.bundle import WINDOWS, write_bundle

        only(context, "--bundle", "bundle", "windows")
        typer.echo(write_bundle(open_result(result), bundle, windows=WINDOWS if windows is None else windows))
        return
    if windows is not None:
        raise ArgapError("--windows is a number for --bundle")
    from argap.view.serve import serve

    def ready(address: str) -> None:
        typer.echo(address)
        typer.echo("Ctrl-C ends it.", err=True)

    serve(result, port=port, browser=not no_browser and sys.stdout.isatty(), ready=ready)


def push(
    result: Annotated[Path, typer.Argument(help="Folder that `argap score` or `argap compare` wrote.")],
    address: Annotated[str, typer.Argument(metavar="ADDRESS", help="hf://datasets/ORG/NAME, or a folder below it.")],
    send: Annotated[bool, typer.Option("--send", help="Send; without it, only say what would be sent.")] = False,
    no_tokens: Annotated[
        bool, typer.Option("--no-tokens", help="Leave out runs and labels, which hold the text as token ids.")
    ] = False,
    public: Annotated[bool, typer.Option("--public", help="Let everybody see a data set that is created.")] = False,
) -> None:
    """Send a result to a data set of the Hugging Face hub, which then serves as --ref hf://datasets/ORG/NAME/RUN.

    Without --send nothing leaves this machine. The token is read from the environment variable HF_TOKEN.
    """
    from argap.integrations.hub import plan
    from argap.integrations.hub import send as to_hub

    planned = plan(result, address, tokens=not no_tokens)
    for each in planned.files:
        typer.echo(f"{each.bytes:>14,}  {each.name}")
    for model in planned.elsewhere:
        typer.echo(f"{model}: its run is not in {result}, and is not sent", err=True)
    size = f"{len(planned.files):,} files and a card, {planned.bytes:,} bytes"
    if not send:
        typer.echo(f"{size}, would go to {planned.address}. Records name paths of this machine; --send sends them.")
        return
    typer.echo(f"{size}: {to_hub(planned, private=not public)}")


def paper(output: Output) -> None:
    """Check the metric against the percentages printed in the Zoology paper (arXiv 2312.04927) and their average."""
    from argap.metric.paper import checks_as_json
    from argap.reports.tables.paper import check_tables

    output.show(checks_as_json(), check_tables)
