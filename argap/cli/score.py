"""``argap score``, ``compare``, ``diff``, ``demo`` and ``import``: from checkpoints, runs or log-probs to a result."""

import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from argap.cli.complete import references
from argap.cli.options import LimitTokens, LogTo, Overwrite, SliceFile, Threshold, TrustRemoteCode, Windows, only
from argap.cli.output import Output, print_json
from argap.errors import ArgapError
from argap.scoring.config import ScoreConfig


def score(
    checkpoints: Annotated[
        list[str],
        typer.Argument(
            metavar="[NAME=]CKPT",
            help="Local folders, hub ids, names, or servers (http://HOST/v1); NAME= names a row.",
            autocompletion=references,
        ),
    ],
    ref: Annotated[
        str,
        typer.Option(
            metavar="REF",
            help="Model to compare with: a checkpoint, a finished run (not scored again; also hf://…), or a name.",
            autocompletion=references,
        ),
    ],
    *,
    config: ScoreConfig,
    trust_remote_code: TrustRemoteCode = False,
    out: Annotated[Path, typer.Option(help="Folder for the runs and the result.")] = Path("runs/score"),
    log_to: LogTo = None,
    output: Output,
) -> None:
    """Score checkpoints and show how much of their gap to --ref is associative recall.

    Models whose tokenizer differs from the reference's are compared per byte, between token ends that all share.

    Without --data or --index, those recorded with the reference are used. If there are none, the held-out modules of
    Python's standard library are scored, and every repeated bigram counts as a hit (argap label can add training counts
    later). Under torchrun, one process per GPU scores part of the windows; the output is identical.

    A server needs --model and --tokenizer; its key is read from the environment variable ARGAP_API_KEY.
    """
    from argap.results.pipeline import score_models
    from argap.results.printed import log_result
    from argap.runtime.torchrun import join_torchrun
    from argap.runtime.trackers import check_trackers

    check_trackers(log_to or ())
    with join_torchrun(config.device) as parallel:
        gap = score_models(checkpoints, ref, out, config, parallel=parallel)
    if parallel is None or parallel.is_main:
        log_result(gap, log_to or (), out)
        output.show_gap(gap)
        _say_next(out)


def compare(
    runs: Annotated[list[str], typer.Argument(metavar="RUN", help="Finished runs: folders, or NAME=FOLDER.")],
    ref: Annotated[str, typer.Option("--ref", metavar="RUN", help="The run to compare with.")],
    threshold: Threshold = "1250",
    base: Annotated[
        str | None, typer.Option(metavar="RUN", help="Also show the share of this run's gap that the others close.")
    ] = None,
    slices: SliceFile = None,
    out: Annotated[Path, typer.Option(help="Folder for the result.")] = Path("runs/compare"),
    *,
    output: Output,
) -> None:
    """Compare finished runs on their stored log-probs; no model is run."""
    from argap.metric.threshold import parse_threshold
    from argap.results.compare import compare_runs
    from argap.slices.library import slice_specs

    tau, specs = parse_threshold(threshold), None if slices is None else slice_specs(slices)
    output.show_gap(compare_runs(runs, ref, out, threshold=tau, base=base, slices=specs))
    _say_next(out)


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


def demo(
    context: typer.Context,
    out: Annotated[Path, typer.Option(help="Folder for the runs and the report.")] = Path("runs/demo"),
    limit_tokens: LimitTokens = None,
    copy: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Only copy the checkpoints to folders in DIR.")
    ] = None,
    *,
    output: Output,
) -> None:
    """Compute a table like the paper's Table 1 for three small bundled checkpoints, and write a report."""
    from argap.demo import copy_checkpoints, run_demo

    if copy is not None:
        only(context, "--copy", "copy", "as_json")
        folders = copy_checkpoints(copy)
        if output.as_json:
            print_json([str(folder) for folder in folders])
        else:
            typer.echo("\n".join(map(str, folders)))
        return
    gap, report = run_demo(out, limit_tokens)
    output.show_gap(gap)
    _say_next(out, report)


def _say_next(out: Path, report: Path | None = None) -> None:
    """Say on stderr where the result is, and what to do with it."""
    typer.echo(f"result: {out}" + (f", report: {report}" if report else ""), err=True)
    typer.echo(f"next: argap view {shlex.quote(str(out))}", err=True)


def import_(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Parquet or JSON lines with tokens and log-probs.")],
    tokenizer: Annotated[str, typer.Option(metavar="T", help="Tokenizer: folder, tokenizer.json or hub id.")],
    data: Annotated[
        list[str], typer.Option(metavar="PATH", help="The text: file, folder, hub:NAME, stdlib:heldout. Repeatable.")
    ],
    name: Annotated[str | None, typer.Option(metavar="NAME", help="Name of the model [the file's].")] = None,
    out: Annotated[Path, typer.Option(help="Folder for the run, in OUT/NAME.")] = Path("runs/import"),
    index: Annotated[
        str | None, typer.Option(metavar="DIR", help="Bigram index: also write the labels, to OUT/labels.")
    ] = None,
    *,
    windows: Windows,
    overwrite: Overwrite = False,
) -> None:
    """Import log-probs computed by another tool as a run, which argap compare reads like any other.

    FILE has the columns document, token and logprob, or a list of tokens and one of logprobs per document. Every token
    is checked against the text.
    """
    from argap.records import EvaluationSpec
    from argap.scoring.importing import import_run

    spec = EvaluationSpec(data=tuple(data), **asdict(windows))
    run = import_run(file, out, tokenizer=tokenizer, spec=spec, name=name, index=index, overwrite=overwrite)
    typer.echo(f"{run.folder}: {run.record.evaluation.scored:,} log-probs of {run.model}")
