"""``argap synthetics``: multi-query associative recall, from its examples to sweeps over models and their figures; training
on the other synthetic tasks as well."""

import json
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from argap.cli.device import Device
from argap.cli.engine import check_engine

app = typer.Typer(
    help="Multi-query associative recall and further synthetic tasks: examples, training, sweeps, scores.",
    no_args_is_help=True,
)

Length = Annotated[int, typer.Option(min=1, help="Tokens of an example.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
SET_BY_FLAGS = {
    "name": "MODEL",
    "member": "MODEL, with --mlp",
    **{key: f"--{key}" for key in ("width", "task", "length", "pairs", "lr", "seed")},
}
"""Fields of a run to what of ``train`` sets them."""


@app.command()
def generate(
    out: Annotated[Path, typer.Option(help="File to write: .npz with inputs, labels and distance.")],
    examples: Annotated[int, typer.Option(min=1, help="How many.")] = 100_000,
    length: Length = 64,
    pairs: Annotated[int | None, typer.Option(min=1, help="Pairs of key and value; by default length / 16.")] = None,
    vocab_size: Annotated[int, typer.Option(min=2, help="Keys from its first half, values from its second.")] = 8192,
    alpha: Annotated[float, typer.Option(help="Distances: p(d) is proportional to d^(alpha - 1).")] = 0.1,
    fill: Annotated[int | None, typer.Option(help="Token of all other positions; by default noise.")] = None,
    layout: Annotated[Literal["paper", "zoology"], typer.Option(help="Algorithm 1, or the public code's.")] = "paper",
    seed: Annotated[int, typer.Option(min=0, help="The same seed, the same bytes.")] = 0,
) -> None:
    """Write a data set. Labels are -100 where nothing is asked."""
    import numpy as np

    from argap.atomic import replacing
    from argap.synthetics.tasks.mqar import MqarConfig, build

    if out.suffix != ".npz":
        out = out.with_name(out.name + ".npz")
    config = MqarConfig(examples, length, pairs or max(1, length // 16), vocab_size, alpha, fill, layout)
    made = build(config, seed)
    with replacing(out) as temporary, open(temporary, "wb") as file:
        np.savez(file, inputs=made.inputs, labels=made.labels, **made.slices)  # pyright: ignore[reportArgumentType]
    typer.echo(f"{out}: {examples:,} examples of {length} tokens, {config.pairs} pairs each")


@app.command()
def train(
    model: Annotated[str, typer.Argument(help="attention, base_conv, based, any mixer, or module:Class.")],
    width: Annotated[int, typer.Option(min=1, help="Width.")] = 64,
    task: Annotated[
        str, typer.Option(help="mqar, or another task: fuzzy_recall, '{name: noisy_recall, noise: 0.4}', ...")
    ] = "mqar",
    length: Annotated[int | None, typer.Option(min=1, help="Tokens of an example. [64, or the task's]")] = None,
    pairs: Annotated[list[int] | None, typer.Option(help="Pairs; several share the examples. [length / 16]")] = None,
    lr: Annotated[list[float] | None, typer.Option(help="Several train side by side. [the paper's four]")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of weights, examples and their order.")] = 0,
    mlp: Annotated[bool, typer.Option(help="A SwiGLU after each mixer.")] = False,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any other field of the protocol.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for runs/KEY.json.")] = None,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Train a small model on one task as the paper does and test it.

    At most 64 epochs of 100,000 examples; the best weights on a validation set are tested once."""
    from dataclasses import asdict

    from argap.configuration import build
    from argap.device import use_device
    from argap.errors import ArgapError
    from argap.synthetics.config import LEARNING_RATES, RunConfig, member_from
    from argap.synthetics.store import write_run
    from argap.synthetics.tasks.registry import TASKS, from_text
    from argap.synthetics.loop import train_group
    from argap.train.config import parse_settings
    from argap.train.interrupt import listening

    member = asdict(member_from(model, {"mlp": True} if mlp else None))
    own: dict[str, Any] = {"name": model, "member": member, "width": width, "seed": seed}
    if task == "mqar":
        length = length or 64
        own |= {"length": length, "pairs": pairs or [max(1, length // 16)]}
    else:
        chosen = from_text(task)
        own |= {"task": chosen, "length": length or TASKS[chosen["name"]].length, "pairs": pairs or []}
    further = parse_settings(settings or [])
    for key, flag in SET_BY_FLAGS.items():
        if key in further:
            raise ArgapError(f"--set {key}: expected {flag}, which sets it")
    own |= further
    configs = [build(RunConfig, {**own, "lr": rate}) for rate in lr or LEARNING_RATES]
    with listening() as interrupt:
        results = train_group(
            configs,
            use_device(device),
            finished=lambda result: None if out is None else write_run(out, result),
            stop=lambda: interrupt.requested,
        )
    if as_json:
        typer.echo(json.dumps([result.as_json() for result in results], indent=2))
    else:
        for result in results:
            typer.echo(
                f"lr {result.config.lr:.1e}: accuracy {result.accuracy:.4f} after {result.steps:,} of "
                f"{result.config.steps:,} steps, {result.seconds:,.0f} s"
            )
    if interrupt.requested:
        raise typer.Exit(130)


@app.command()
def sweep(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="YAML file: suites/mqar has the papers'.")],
    out: Annotated[Path | None, typer.Option(help="Folder of the result [results/mqar/NAME of the file].")] = None,
    device: Device = "auto",
    together: Annotated[int, typer.Option(min=1, help="Runs that train side by side, at most.")] = 64,
    time_limit: Annotated[float | None, typer.Option(help="Seconds; what is unfinished then waits.")] = None,
    engine: Annotated[
        str, typer.Option(help="local: all GPUs where --device names none; or ray: a task of a Ray cluster a group.")
    ] = "local",
    address: Annotated[str | None, typer.Option(help="Of the Ray cluster; without it, this machine alone.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be trained.")] = False,
) -> None:
    """Train what is not finished yet. The same command goes on where it was stopped."""
    import time
    from functools import partial

    from argap.synthetics.jobs import run_sweep
    from argap.synthetics.sweep import load_sweep
    from argap.synthetics.store import check_folder, run_path
    from argap.train.interrupt import listening

    check_engine(engine, local={}, ray={"--address": address})
    loaded = load_sweep(config)
    folder = out or Path("results") / "mqar" / config.stem
    configs = loaded.configs()
    if dry_run:
        check_folder(loaded, folder)
        for each in configs:
            state = "finished" if run_path(folder, each).exists() else f"{each.steps:,} steps at most"
            typer.echo(f"{each.key}: {state}")
        return
    if engine == "ray":
        from argap.ray_tasks import connect
        from argap.synthetics.ray import train_on_ray

        train_parts = partial(train_on_ray, connect(address), device)
    else:
        from argap.synthetics.devices import devices_of, train_on

        train_parts = partial(train_on, devices_of(device))
    started = time.monotonic()
    with listening() as interrupt:
        runs = run_sweep(
            loaded,
            folder,
            train_parts,
            together=together,
            stop=lambda: interrupt.requested or (time_limit is not None and time.monotonic() - started > time_limit),
        )
    typer.echo(f"{folder}: {len(runs)} of {len(configs)} runs finished")
    if interrupt.requested:
        raise typer.Exit(130)


@app.command()
def plot(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a sweep.")],
    as_json: Json = False,
) -> None:
    """Draw the figures of a sweep and print its table.

    Accuracy, and what it takes to solve the task, from the folder's files alone, of the runs that are finished; of a
    sweep over tasks accuracy by task, with the printed figures of MAD beside it."""
    from argap.reports.mqar_figures import write_sweep

    table, text = write_sweep(run)
    typer.echo(table.to_json(orient="records", indent=2) if as_json else text)


@app.command()
def score(
    checkpoints: Annotated[list[str], typer.Argument(metavar="CKPT...", help="Local folders, hub ids, or names.")],
    out: Annotated[Path, typer.Option(help="Folder for scores.json and the figure.")] = Path("runs/mqar"),
    pairs: Annotated[str, typer.Option(help="Numbers of pairs, with commas.")] = "16,32,64,128,256",
    examples: Annotated[int, typer.Option(min=2, help="For each number of pairs.")] = 100,
    length: Annotated[int, typer.Option(min=4, help="Tokens of an example.")] = 1024,
    fill: Annotated[str | None, typer.Option(help="Text of the one token between the pairs. [end of sequence]")] = None,
    data: Annotated[str | None, typer.Option(help="A text to stand between the pairs: file, folder, ...")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the examples.")] = 0,
    device: Device = "auto",
    dtype: Annotated[Literal["auto", "float32", "bfloat16"], typer.Option(help="auto: bfloat16 on CUDA.")] = "auto",
    as_json: Json = False,
) -> None:
    """Score models trained on text on recall of pairs.

    All see the same examples, random pairs with a fill between them (the paper's appendix G)."""
    from argap.device import DTYPES, resolve_dtype, use_device
    from argap.errors import ArgapError
    from argap.reports.mqar_figures import write_pretrained
    from argap.synthetics.pretrained_scores import PretrainedTest, score_pretrained

    numbers = pairs.split(",")
    if not all(number.strip().isdecimal() for number in numbers):
        raise ArgapError(f"--pairs {pairs}: expected whole numbers with commas, such as 16,32,64")
    test = PretrainedTest(tuple(map(int, numbers)), examples, length, fill, data, seed=seed)
    where = use_device(device)
    scores = score_pretrained(checkpoints, test, dtype=DTYPES[resolve_dtype(dtype, str(where))], device=where)
    write_pretrained(scores, out)
    if as_json:
        typer.echo(json.dumps(scores, indent=2))
        return
    for row in scores["rows"]:
        low, high = row["ppl_ci95"]
        typer.echo(
            f"{row['model']:<24} {row['pairs']:>4} pairs  {row['slice']:<5}  ppl {row['ppl']:>12,.2f} "
            f"({low:,.2f} to {high:,.2f})  accuracy {row['accuracy']:.3f}"
        )
    typer.echo(f"{out / 'scores.json'}, {out / 'pairs.svg'}")
