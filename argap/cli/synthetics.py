"""``argap synthetics``: generate, train and score MQAR and other synthetic tasks."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from argap.cli.options import (
    Address,
    Bos,
    Commands,
    Device,
    Dtype,
    Engine,
    Json,
    MaxLength,
    Settings,
    TrustRemoteCode,
    check_engine,
)
from argap.cli.output import print_json

app = Commands(
    help="Generate, train and score multi-query associative recall (MQAR) and other synthetic tasks.",
    no_args_is_help=True,
)

SET_BY_FLAGS = {
    "name": "MODEL",
    "member": "MODEL, with --mlp",
    **{key: f"--{key}" for key in ("width", "task", "length", "pairs", "lr", "seed")},
}
"""Fields of a run, with the argument of ``train`` that sets each."""


@app.command()
def generate(
    out: Annotated[Path, typer.Option(help="Output .npz file, with inputs, labels and distance.")],
    task: Annotated[
        str, typer.Option(help="mqar, or another task: copy, '{name: reverse, vocab_size: 12}', ...")
    ] = "mqar",
    examples: Annotated[int, typer.Option(min=1, help="Number of examples.")] = 100_000,
    length: Annotated[int | None, typer.Option(min=1, help="Tokens per example. [64, or the task's]")] = None,
    pairs: Annotated[int | None, typer.Option(min=1, help="KV pairs per example. [length / 16]")] = None,
    vocab_size: Annotated[int, typer.Option(min=2, help="Keys from the first half, values from the second.")] = 8192,
    alpha: Annotated[float, typer.Option(help="Distances d follow p(d) proportional to d^(alpha - 1).")] = 0.1,
    fill: Annotated[int | None, typer.Option(help="Token at all other positions. [noise]")] = None,
    layout: Annotated[
        Literal["paper", "zoology"], typer.Option(help="The paper's Algorithm 1, or its public code.")
    ] = "paper",
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same bytes.")] = 0,
    overwrite: Annotated[bool, typer.Option(help="Replace an existing file.")] = False,
) -> None:
    """Write a data set of MQAR or another task. Labels are -100 at unsupervised positions."""
    from argap.errors import ArgapError
    from argap.files.atomic import tidy
    from argap.synthetics.tasks.examples import examples_file, write_examples
    from argap.synthetics.tasks.mqar import MqarConfig, build
    from argap.synthetics.tasks.registry import TASKS, data_config, parse_yaml_task, resolve_task, task_label
    from argap.synthetics.training.config import default_pairs

    path = examples_file(out)
    tidy(path.parent)
    if path.exists() and not overwrite:
        raise ArgapError(f"{path}: already exists; choose another `out`, or use `overwrite=True`")
    if task != "mqar":
        if (pairs, vocab_size, alpha, fill, layout) != (None, 8192, 0.1, None, "paper"):
            raise ArgapError(f"task {task}: `pairs`, `vocab_size`, `alpha`, `fill` and `layout` apply to mqar only")
        chosen = parse_yaml_task(task)
        entry = TASKS[chosen["name"]]
        record = resolve_task(chosen, length or entry.length)
        found = entry.build(data_config(record, examples, length or entry.length, training=True), seed)
        what = task_label(record, entry.length)
    else:
        length = length or 64
        (default,) = default_pairs(length)
        config = MqarConfig(examples, length, pairs or default, vocab_size, alpha, fill, layout)
        found, what = build(config, seed), f"{config.pairs} KV pairs each"
    write_examples(path, found)
    typer.echo(f"{path}: {examples:,} examples of {found.labels.shape[1]} tokens, {what}")


@app.command(short_help="List the tasks, their sizes and the accuracy of a guess.")
def tasks(as_json: Json = False) -> None:
    """List the tasks with their usual sizes, the accuracy of a guess, and that of a perfect solver."""
    from argap.reports.tables.formats import Table, markdown
    from argap.reports.tables.numbers import DASH
    from argap.synthetics.tasks.registry import TASKS, data_config, resolve_task

    rows = []
    for name, task in TASKS.items():
        config = data_config(resolve_task(name, task.length), 1, task.length, training=False)
        chance = None if task.chance is None else task.chance(config)
        rows.append((name, task.length, config.vocab_size, chance, task.bound))
    if as_json:
        print_json([dict(zip(("task", "length", "vocab_size", "chance", "bound"), row, strict=True)) for row in rows])
        return
    cells = [(name, str(n), str(v), *(DASH if x is None else f"{100 * x:.1f}" for x in xs)) for name, n, v, *xs in rows]
    note = (
        "Accuracy in percent of the best guess that sees only the token at which it answers, and of a perfect solver."
    )
    typer.echo(markdown(Table(("Task", "N", "Vocabulary", "Guess", "Solver"), cells, (note,))))


@app.command(short_help="Train and test a small model on one task.")
def train(
    model: Annotated[str, typer.Argument(help="attention, base_conv, based, any mixer, or module:Class.")],
    width: Annotated[int, typer.Option(min=1, help="Width of the model.")] = 64,
    task: Annotated[
        str, typer.Option(help="mqar, or another task: fuzzy_recall, '{name: noisy_recall, noise: 0.4}', ...")
    ] = "mqar",
    length: Annotated[int | None, typer.Option(min=1, help="Tokens per example. [64, or the task's]")] = None,
    pairs: Annotated[
        list[int] | None, typer.Option(help="KV pairs. Repeat to mix several numbers. [length / 16]")
    ] = None,
    lr: Annotated[
        list[float] | None, typer.Option(help="Learning rate. Repeat to train several together. [the paper's four]")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the weights, the examples and their order.")] = 0,
    mlp: Annotated[bool, typer.Option(help="Add a SwiGLU after each mixer.")] = False,
    settings: Settings = None,
    out: Annotated[Path | None, typer.Option(help="Folder for runs/KEY.json; a stopped run resumes.")] = None,
    device: Device = "auto",
    trust_remote_code: TrustRemoteCode = False,
    as_json: Json = False,
) -> None:
    """Train and test a small model on one task with the paper's protocol.

    Trains for at most 64 epochs of 100,000 examples, then tests the weights with the best validation accuracy.
    """
    from argap.runtime.device import use_device
    from argap.runtime.progress import say
    from argap.runtime.signals import INTERRUPTED, listening
    from argap.synthetics.sweeps.store import UNFINISHED, write_run
    from argap.synthetics.training.config import LEARNING_RATES, run_configs
    from argap.synthetics.training.loop import train_group

    configs = run_configs(
        model,
        task=task,
        length=length,
        pairs=pairs or (),
        lrs=lr or LEARNING_RATES,
        mlp=mlp,
        width=width,
        seed=seed,
        **_further_fields(settings or []),
    )
    if (where := use_device(device)).type == "cpu":
        first = configs[0]  # all have the same number of steps
        say(
            f"training on a CPU: up to {len(configs) * first.steps:,} steps of {first.examples_per_step} examples, "
            f"{first.epochs} epochs x {len(configs)} learning rate{'s' * (len(configs) > 1)}; "
            "fewer with --set epochs=N"
        )
    with listening() as interrupt:
        results = train_group(
            configs,
            where,
            finished=lambda result: None if out is None else write_run(out, result),
            kept=None if out is None else out / UNFINISHED,
            stop=lambda: interrupt.requested,
        )
    if as_json:
        print_json([result.as_json() for result in results])
    else:
        for result in results:
            typer.echo(
                f"lr {result.config.lr:.1e}: accuracy {result.accuracy:.4f} after {result.steps:,} of "
                f"{result.config.steps:,} steps, {result.seconds:,.0f} s"
            )
    if interrupt.requested:
        raise typer.Exit(INTERRUPTED)


def _further_fields(settings: list[str]) -> dict[str, Any]:
    """Parse the fields given by ``--set``.

    Raises `ArgapError` for fields that have their own flag, unknown fields and wrong values.
    """
    from argap.errors import ArgapError
    from argap.files.configs import check_field
    from argap.synthetics.training.config import RunConfig
    from argap.train.config import parse_settings

    further = parse_settings(settings)
    for key, flag in SET_BY_FLAGS.items():
        if key in further:
            raise ArgapError(f"--set {key}: use {flag} instead")
    for key, value in further.items():
        check_field(RunConfig, key, value, f"--set {key}")
    return further


@app.command()
def sweep(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="YAML file; the papers' sweeps are in suites/mqar.")],
    out: Annotated[Path | None, typer.Option(help="Result folder. [results/mqar/CONFIG]")] = None,
    device: Device = "auto",
    trust_remote_code: TrustRemoteCode = False,
    together: Annotated[int, typer.Option(min=1, help="Maximum number of runs to train together.")] = 64,
    compiled: Annotated[
        bool,
        typer.Option("--compile", help="Compile the layers: twice as fast on a GPU, after a few seconds per group."),
    ] = False,
    time_limit: Annotated[float | None, typer.Option(help="Stop after this many seconds.")] = None,
    engine: Engine = "local",
    address: Address = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the runs without training.")] = False,
) -> None:
    """Train the unfinished runs of a sweep. Repeat the command to resume it."""
    from argap.files.plain_yaml import read_yaml

    check_engine(engine, local={}, ray={"--address": address})
    read_yaml(config)  # refuse an unreadable file before torch is imported
    from argap.runtime.signals import INTERRUPTED, listening
    from argap.synthetics.sweeps.jobs import run_sweep
    from argap.synthetics.sweeps.store import check_folder, read_results
    from argap.synthetics.sweeps.sweep import load_sweep

    loaded = load_sweep(config)
    folder = out or Path("results") / "mqar" / config.stem
    configs = loaded.configs()
    if dry_run:
        check_folder(loaded, folder)
        finished = read_results(folder)
        for each in configs:
            state = "finished" if each.key in finished else f"at most {each.steps:,} steps"
            typer.echo(f"{each.key}: {state}")
        return
    if engine == "ray":
        from argap.runtime.cluster import ray_engine

        chosen = ray_engine(address, device)
    else:
        from argap.runtime.jobs import local_engine

        chosen = local_engine(device)
    with listening() as interrupt:
        options = {"together": together, "compiled": compiled, "time_limit": time_limit}
        runs = run_sweep(loaded, folder, chosen, **options, stop=lambda: interrupt.requested)
    typer.echo(f"{folder}: {len(runs)} of {len(configs)} runs finished")
    if interrupt.requested:
        raise typer.Exit(INTERRUPTED)


@app.command()
def plot(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a sweep.")],
    gap: Annotated[
        list[Path] | None,
        typer.Option(metavar="DIR", help="Folder with gap.json, to rank mixers by AR gap beside accuracy. Repeatable."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Plot a sweep and print its table.

    Uses the finished runs in the folder. Shows accuracy and the smallest models that solve each task; for a sweep over
    tasks, accuracy by task next to MAD's published scores.
    """
    from argap.reports.figures.mqar import write_sweep

    table, text = write_sweep(run, gap or [])
    typer.echo(table.to_json(orient="records", indent=2) if as_json else text)


@app.command(short_help="Score pretrained language models on MQAR.")
def score(
    checkpoints: Annotated[
        list[str], typer.Argument(metavar="CKPT...", help="Local folders, hub ids, or reference names.")
    ],
    out: Annotated[Path, typer.Option(help="Folder for scores.json and the figure.")] = Path("runs/mqar"),
    pairs: Annotated[str, typer.Option(help="Numbers of KV pairs, comma-separated.")] = "16,32,64,128,256",
    examples: Annotated[int, typer.Option(min=2, help="Examples per number of pairs.")] = 1000,
    length: Annotated[int, typer.Option(min=4, help="Tokens per example.")] = 1024,
    fill: Annotated[str | None, typer.Option(help="Fill token between the pairs, as text. [end of sequence]")] = None,
    data: Annotated[str | None, typer.Option(help="Fill with text from this file, folder, ... instead.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the examples.")] = 0,
    device: Device = "auto",
    trust_remote_code: TrustRemoteCode = False,
    dtype: Dtype = "auto",
    bos: Bos = None,
    max_length: MaxLength = None,
    as_json: Json = False,
) -> None:
    """Score pretrained language models on MQAR in their own vocabulary.

    Examples are random KV pairs separated by a fill token or text (appendix G of the paper). Models with the same
    tokenizer get the same examples.
    """
    from argap.files.configs import parse_numbers
    from argap.reports.figures.pretrained import write_pretrained
    from argap.runtime.device import DTYPES, resolve_dtype, use_device
    from argap.scoring.config import ScoreConfig
    from argap.synthetics.pretrained.records import PretrainedTest
    from argap.synthetics.pretrained.scores import score_pretrained

    test = PretrainedTest(parse_numbers("pairs", pairs), examples, length, fill, data, seed=seed)
    where = use_device(device)
    how = {
        "dtype": DTYPES[resolve_dtype(dtype, str(where))],
        "device": where,
        "config": ScoreConfig.of(bos=bos, max_length=max_length),
    }
    scores = score_pretrained(checkpoints, test, **how)
    write_pretrained(scores, out)
    if as_json:
        print_json(scores)
        return
    for row in scores.rows:
        low, high = row.ppl_ci95
        typer.echo(
            f"{row.model:<24} {row.pairs:>4} pairs  {row.slice:<5}  ppl {row.ppl:>12,.2f} "
            f"({low:,.2f} to {high:,.2f})  accuracy {row.accuracy:.3f}"
        )
    typer.echo(f"{out / 'scores.json'}, {out / 'pairs.svg'}")
