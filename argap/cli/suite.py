"""``argap suite``: train, score and compare models that differ only in their mixers."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from argap.cli.options import (
    Address,
    BatchSize,
    Commands,
    Device,
    Engine,
    Json,
    LogTo,
    Overwrite,
    Threshold,
    TrustRemoteCode,
    check_engine,
)
from argap.cli.output import Output, print_json
from argap.files.atomic import write_text
from argap.files.regular import is_there

if TYPE_CHECKING:
    from argap.reports.pages.suite import Written

app = Commands(help="Train and compare many models under equal conditions.", no_args_is_help=True)

SuiteFile = Annotated[Path, typer.Argument(metavar="SUITE", help="YAML file of the suite.")]
SizeOption = Annotated[list[str] | None, typer.Option("--size", help="Only this size. Repeatable.")]
WorkOption = Annotated[
    Path | None, typer.Option("--work", help="Folder for checkpoints, tokens and runs [runs/SUITE].")
]
OutOption = Annotated[Path | None, typer.Option("--out", help="Folder for the result [results/SUITE].")]


@app.command()
def run(
    suite: SuiteFile,
    size: SizeOption = None,
    member: Annotated[list[str] | None, typer.Option("--member", help="Only this model. Repeatable.")] = None,
    work: WorkOption = None,
    out: OutOption = None,
    threshold: Threshold = "1250",
    device: Device = "auto",
    keep_weights: Annotated[bool, typer.Option("--keep/--no-keep", help="Keep the weights of scored models.")] = True,
    engine: Engine = "local",
    address: Address = None,
    collect: Annotated[bool, typer.Option(help="Write the result. Disable if members run on several machines.")] = True,
    log_to: LogTo = None,
    trust_remote_code: TrustRemoteCode = False,
) -> None:
    """Train and score unfinished models, then write the result. On several GPUs: torchrun -m argap suite run."""
    from argap.metric.threshold import parse_threshold
    from argap.suite.config import load_suite

    check_engine(engine, local={}, ray={"--address": address})
    loaded = load_suite(suite)
    from argap.reports.pages.suite import write_suite  # heavy, like torch: once the suite's file is read
    from argap.suite.layout import Layout
    from argap.suite.run import run_suite

    folder = out or Path("results") / suite.stem
    wrote = run_suite(
        loaded,
        suite,
        Layout.of(suite.stem, work),
        folder,
        sizes=size or (),
        members=member or (),
        threshold=parse_threshold(threshold),
        device=device,
        keep=keep_weights,
        ray=engine == "ray",
        address=address,
        collects=collect,
        log_to=log_to or (),
    )
    if wrote:
        _say_written(write_suite(loaded, folder), folder)


@app.command(short_help="Train briefly at several learning rates, to choose one.")
def rates(
    suite: SuiteFile,
    size: SizeOption = None,
    member: Annotated[list[str] | None, typer.Option("--member", help="Only this model. Repeatable.")] = None,
    work: WorkOption = None,
    out: OutOption = None,
    factor: Annotated[
        list[float] | None, typer.Option(help="Rate to try, relative to the suite's. Repeatable. [0.5, 1, 2]")
    ] = None,
    fraction: Annotated[float, typer.Option(help="Share of the training steps to take.")] = 0.1,
    device: Device = "auto",
    collect: Annotated[bool, typer.Option(help="Write the result. Disable if members run on several machines.")] = True,
    trust_remote_code: TrustRemoteCode = False,
    *,
    output: Output,
) -> None:
    """Train each member briefly at several learning rates, and show which suits it best."""
    from argap.reports.tables.formats import print_tables
    from argap.reports.tables.suites.suite import write_rates
    from argap.suite.config import load_suite
    from argap.suite.layout import Layout
    from argap.suite.rates import FACTORS, run_rates

    loaded, folder = load_suite(suite), out or Path("results") / suite.stem
    found = run_rates(
        loaded,
        Layout.of(suite.stem, work),
        folder,
        sizes=size or (),
        members=member or (),
        factors=factor or FACTORS,
        fraction=fraction,
        device=device,
        collects=collect,
    )
    if output.as_json:
        print_json(found)
    elif collect:
        print_tables(write_rates(loaded, folder), output.form)


@app.command()
def status(suite: SuiteFile, size: SizeOption = None, work: WorkOption = None, as_json: Json = False) -> None:
    """Show which models are trained and scored."""
    from argap.suite.config import load_suite
    from argap.suite.layout import Layout, statuses

    layout = Layout.of(suite.stem, work)
    rows = statuses(load_suite(suite), layout, size or ())
    if as_json:
        print_json(rows)
        return
    for row in rows:
        typer.echo(f"{row.size:<8}  {row.name:<28}  {row}")


@app.command(short_help="Score published checkpoints along their training.")
def trajectory(
    series: Annotated[Path, typer.Argument(metavar="SERIES", help="YAML file of checkpoint series.")],
    out: Annotated[Path | None, typer.Option("--out", help="Folder for runs and result [runs/SERIES].")] = None,
    threshold: Threshold = "1250",
    device: Device = "auto",
    batch_size: BatchSize = "auto",
    overwrite: Overwrite = False,
    *,
    output: Output,
    trust_remote_code: TrustRemoteCode = False,
) -> None:
    """Score published checkpoints (CKPT@REVISION) along their training, instead of training models."""
    from argap.reports.figures.drawing import save
    from argap.reports.figures.training import recall_along_training
    from argap.reports.tables.formats import markdown, print_tables
    from argap.reports.tables.suites.suite import trajectory_table
    from argap.runtime.torchrun import join_torchrun
    from argap.scoring.config import ScoreConfig
    from argap.suite.series import load_series, score_series

    given = load_series(series)
    folder = out or Path("runs") / series.stem
    config = ScoreConfig.of(device=device, batch_size=batch_size, threshold=threshold, overwrite=overwrite)
    with join_torchrun(device) as parallel:
        gap, along = score_series(given, folder, config, parallel=parallel)
    if parallel is not None and not parallel.is_main:
        return
    table = trajectory_table(along, given.reference, gap)
    write_text(folder / "trajectory.md", markdown(table))
    figure = recall_along_training(along, list(given.series), given.reference, gap)
    save(figure, folder / "figures", "recall_along_training")
    if output.as_json:
        typer.echo(along.to_json(orient="records", indent=2))
    else:
        print_tables([table], output.form)


@app.command(short_help="Pack models into archives, or unpack them.")
def weights(
    suite: SuiteFile,
    to: Annotated[Path | None, typer.Option(help="Pack the weights in the work folder into archives here.")] = None,
    source: Annotated[Path | None, typer.Option("--from", help="Unpack archives from here.")] = None,
    published: Annotated[str | None, typer.Option(metavar="URL", help="Note where the archives can be had.")] = None,
    size: SizeOption = None,
    work: WorkOption = None,
    out: OutOption = None,
) -> None:
    """Pack models into archives, one each, that SIZE/weights.json lists with their hashes; or unpack them."""
    from argap.errors import ArgapError
    from argap.suite.config import load_suite
    from argap.suite.layout import Layout
    from argap.suite.weights import export_weights, import_weights, note_published

    loaded, layout = load_suite(suite, to_run=False), Layout.of(suite.stem, work)
    folder = out or Path("results") / suite.stem
    if [to, source, published].count(None) != 2:
        raise ArgapError("expected one of `to`, `from` and `published`")
    for each in size or loaded.sizes:
        if to is not None:
            for asset in export_weights(loaded, suite.stem, each, layout, to, folder / each).assets:
                typer.echo(f"{asset.sha256}  {asset.file}")
        elif source is not None:
            for model in import_weights(loaded, each, layout, source, folder / each):
                typer.echo(f"{layout.work / each / model}")
        elif published is not None:
            note_published(folder / each, published)


@app.command(short_help="Rebuild tables and figures without running models.")
def table(
    suite: SuiteFile,
    size: SizeOption = None,
    work: WorkOption = None,
    out: OutOption = None,
    without: Annotated[
        list[str] | None,
        typer.Option(help="Restate the result without documents: source=NAME, domain=NAME or document=N. Repeatable."),
    ] = None,
    documents: Annotated[
        Path | None,
        typer.Option(help="With --without: CSV or Parquet of document, domain, source [SIZE/documents.parquet]."),
    ] = None,
    *,
    output: Output,
) -> None:
    """Rebuild gap.json, tables and figures from the sums of the result, without running models or loading torch.

    Prints where the page of each size and the tables are; --markdown and --latex print the tables themselves. --without
    reads the text and the training index, too (WORK/SIZE/index), and rewrites the files.
    """
    from argap.suite.config import load_suite

    loaded = load_suite(suite, to_run=False)
    from argap.reports.pages.suite import write_suite
    from argap.suite.gap import recompute

    folder = out or Path("results") / suite.stem
    if without:
        from argap.results.sources import parse_conditions
        from argap.suite.layout import Layout
        from argap.suite.without import restate_without

        where, layout = parse_conditions(without), Layout.of(suite.stem, work)
        for each in _finished(loaded.sizes, folder, size):
            restate_without(loaded, each, layout, folder / each, where, documents)
    else:
        for each in _finished(loaded.sizes, folder, size):
            recompute(loaded, folder / each)
    written = write_suite(loaded, folder)
    if output.as_json:
        from argap.results.printed import result_json

        print_json({each.size: result_json(each.gap) | {"seeds": each.seeds} for each in written.results})
    elif output.form == "terminal":
        _say_written(written, folder)
    else:
        from argap.reports.tables.formats import print_tables

        print_tables(written.tables, output.form)


def _say_written(written: "Written", folder: Path) -> None:
    """Print the paths of each size's page and of the tables, which take hundreds of lines."""
    for each in written.results:
        typer.echo(each.folder / "report.html")
    typer.echo(folder / "table.md")


def _finished(sizes: Iterable[str], folder: Path, chosen: list[str] | None) -> list[str]:
    """Return the sizes chosen, or those with a result."""
    return chosen or [name for name in sizes if is_there(folder / name / "gap.json")]
