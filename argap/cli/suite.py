"""``argap suite``: train, score and compare a list of models that differ in their mixers alone."""

import json
from pathlib import Path
from typing import Annotated

import typer

from argap.cli.engine import check_engine
from argap.cli.options import Device, TrustRemoteCode

app = typer.Typer(help="Many models, trained and measured alike, in one table.", no_args_is_help=True)

SuiteFile = Annotated[Path, typer.Argument(metavar="SUITE", help="YAML file of the suite.")]
SizeOption = Annotated[list[str] | None, typer.Option("--size", help="Only this size; may be repeated.")]
WorkOption = Annotated[
    Path | None, typer.Option("--work", help="Folder of checkpoints, tokens and runs [runs/NAME of the file].")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
OutOption = Annotated[Path | None, typer.Option("--out", help="Folder of the result [results/NAME of the file].")]


@app.command()
def run(
    suite: SuiteFile,
    size: SizeOption = None,
    member: Annotated[list[str] | None, typer.Option("--member", help="Only this model; may be repeated.")] = None,
    work: WorkOption = None,
    out: OutOption = None,
    threshold: Annotated[str, typer.Option(help="AR hits: a whole number of exposures, or scaled.")] = "1250",
    device: Device = "auto",
    keep: Annotated[bool, typer.Option(help="Keep the weights of a model that is scored.")] = True,
    engine: Annotated[str, typer.Option(help="local, or ray: a task of a Ray cluster for each model.")] = "local",
    address: Annotated[str | None, typer.Option(help="Of the Ray cluster; without it, this machine alone.")] = None,
    collect: Annotated[bool, typer.Option(help="Write the result; not where members run on several machines.")] = True,
    trust_remote_code: TrustRemoteCode = False,
) -> None:
    """Train and score what is not finished yet, then write the result. On several GPUs: torchrun -m argap suite run."""
    from argap.reports.suite import write_suite
    from argap.suite.config import load_suite
    from argap.suite.layout import Layout
    from argap.suite.run import run_suite
    from argap.threshold import parse_threshold

    check_engine(engine, local={}, ray={"--address": address})
    loaded = load_suite(suite)
    folder = out or Path("results") / suite.stem
    wrote = run_suite(
        loaded,
        suite,
        Layout(work or Path("runs") / suite.stem),
        folder,
        sizes=size or (),
        members=member or (),
        threshold=parse_threshold(threshold),
        device=device,
        keep=keep,
        ray=engine == "ray",
        address=address,
        collects=collect,
    )
    if wrote:
        typer.echo(write_suite(loaded, folder))


@app.command()
def status(suite: SuiteFile, size: SizeOption = None, work: WorkOption = None, as_json: JsonOption = False) -> None:
    """Show which models are trained and scored."""
    from argap.records import as_json as plain
    from argap.suite.config import load_suite
    from argap.suite.layout import Layout
    from argap.suite.run import statuses

    layout = Layout(work or Path("runs") / suite.stem)
    rows = statuses(load_suite(suite), layout, size or ())
    if as_json:
        typer.echo(json.dumps([plain(row) for row in rows], indent=2))
        return
    for row in rows:
        typer.echo(f"{row.size:<8}  {row.name:<28}  {row}")


@app.command()
def table(suite: SuiteFile, out: OutOption = None, as_json: JsonOption = False) -> None:
    """Rebuild tables, intervals and figures from the files of the result. No model runs and torch is not loaded."""
    from argap.reports.suite import write_suite
    from argap.suite.config import load_suite

    loaded = load_suite(suite, to_run=False)
    folder = out or Path("results") / suite.stem
    text = write_suite(loaded, folder)
    if as_json:
        from argap.records import as_json as plain
        from argap.suite.result import read_sizes

        results = read_sizes(folder, list(loaded.sizes))
        typer.echo(json.dumps({each.size: plain(each.gap) for each in results}, indent=2, ensure_ascii=False))
    else:
        typer.echo(text)
