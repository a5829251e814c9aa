"""``argap suite``: train, score and compare a list of models that differ in their mixers alone."""

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
    from argap.errors import ArgapError
    from argap.labels import label
    from argap.reports.suite import write_suite
    from argap.suite.collect import collect as collect_size
    from argap.suite.config import load_suite
    from argap.suite.layout import Layout
    from argap.suite.members import evaluation_set, run_members, training_index
    from argap.threshold import parse_threshold, resolve_threshold

    loaded = load_suite(suite)
    layout = Layout(work or Path("runs") / suite.stem)
    folder = out or Path("results") / suite.stem
    sizes = size or list(loaded.sizes)
    chosen = [entry for each in sizes for entry in loaded.entries(each) if not member or entry.name in member]
    if not chosen:
        known = ", ".join(entry.name for entry in loaded.entries(sizes[0]))
        raise ArgapError(f"--member {', '.join(member or [])}: none of the suite's models, which are {known}")
    check_engine(engine, local={}, ray={"--address": address})
    sets = {each: evaluation_set(loaded, each) for each in sizes}
    if engine == "ray":
        from argap.suite.ray_tasks import run_on_ray

        run_on_ray(suite, chosen, layout, address=address, device=device, keep=keep)
    else:
        windows = {each: data for each, (data, _) in sets.items()}
        if not run_members(loaded, chosen, layout, windows, device=device, keep=keep):
            return
    if not collect:
        return
    for each, (data, tokenizer) in sets.items():
        index = training_index(loaded, each, layout)
        tau = resolve_threshold(parse_threshold(threshold), index.exposed_tokens)
        collect_size(loaded, each, layout, label(data, index), tokenizer, folder / each, threshold=tau)
    typer.echo(write_suite(loaded, folder))


@app.command()
def status(suite: SuiteFile, size: SizeOption = None, work: WorkOption = None) -> None:
    """What is trained and scored."""
    from argap.suite.config import load_suite
    from argap.suite.layout import Layout, finished_run, steps_done

    loaded = load_suite(suite)
    layout = Layout(work or Path("runs") / suite.stem)
    for entry in (entry for each in size or loaded.sizes for entry in loaded.entries(each)):
        done, steps = steps_done(entry, layout), entry.config.total_steps
        state = "not begun" if not done else f"step {done:,} of {steps:,}" if done < steps else "trained"
        if finished_run(entry, layout) is not None:
            state = "scored"
        typer.echo(f"{entry.size:<8}  {entry.name:<28}  {state}")


@app.command()
def table(suite: SuiteFile, out: OutOption = None) -> None:
    """Rebuild table, intervals and figures from the files of the result; no model and no GPU is needed."""
    from argap.reports.suite import write_suite
    from argap.suite.config import load_suite

    typer.echo(write_suite(load_suite(suite), out or Path("results") / suite.stem))
