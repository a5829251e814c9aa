"""``argap probe``: what a pretrained model recalls, without training, and which layers do it."""

from pathlib import Path
from typing import Annotated

import typer

from argap.cli.options import BatchSize, Bos, Device, MaxLength, Overwrite, TrustRemoteCode
from argap.cli.output import Output


def probe(
    checkpoints: Annotated[
        list[str], typer.Argument(metavar="CKPT...", help="Local folders, GGUF files, hub ids, or reference names.")
    ],
    tasks: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            help="Any of induction, lag, copy, phonebook, overwritten, multi_hop and brackets, with commas [all].",
        ),
    ] = None,
    forms: Annotated[
        str, typer.Option(metavar="NAMES", help="tokens (random ones of the vocabulary), text (English), or both.")
    ] = "tokens,text",
    load: Annotated[
        list[str] | None,
        typer.Option(metavar="TASK=N,...", help="Periods, lags, entries, ... of a task [the task's own]. Repeatable."),
    ] = None,
    length: Annotated[
        str, typer.Option(metavar="N,...", help="Tokens or words of facts and filler; 0: facts without filler.")
    ] = "0",
    prompts: Annotated[
        int | None,
        typer.Option(metavar="N", min=2, help="Prompts per task, form, load and length [100; with --layers 16]."),
    ] = None,
    shots: Annotated[
        int, typer.Option(metavar="N", min=0, help="Solved questions in each prompt, which show its form.")
    ] = 2,
    layers: Annotated[
        bool,
        typer.Option(
            "--layers", help="Instead of the tasks: which layers copy random tokens. --load induction=N is the period."
        ),
    ] = False,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Seed of the prompts.")] = 0,
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")] = "auto",
    device: Device = "auto",
    batch_size: BatchSize = "auto",
    bos: Bos = None,
    max_length: MaxLength = None,
    trust_remote_code: TrustRemoteCode = False,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for runs, table and figure.")] = Path("runs/probe"),
    overwrite: Overwrite = False,
    *,
    output: Output,
) -> None:
    """Measure what pretrained models recall, without training them.

    Prompts are made of random tokens of the model's own vocabulary, and of English text that is the same for every
    model. Answers are teacher-forced: accuracy and NLL by load and distance, with intervals over prompts. Repeat the
    command to resume it.
    """
    from argap.errors import ArgapError
    from argap.files.configs import parse_numbers
    from argap.probe.layers import PERIOD, probe_layers
    from argap.probe.records import ProbeSpec, parse_loads
    from argap.probe.run import probe as run
    from argap.records import as_json
    from argap.reports.figures.probe import write_layers, write_probe
    from argap.reports.tables.probe import layers_table, probe_table
    from argap.scoring.config import ScoreConfig

    config = ScoreConfig.of(
        dtype=dtype, device=device, batch_size=batch_size, bos=bos, max_length=max_length, overwrite=overwrite
    )
    loads = parse_loads(load or [])
    if layers:
        periods = loads.pop("induction", (PERIOD,))
        if tasks is not None or loads or len(periods) != 1:
            raise ArgapError(
                "`layers`: measured on one task; expected no `tasks`, and as `load` one induction=N at most"
            )
        found = probe_layers(checkpoints, out, period=periods[0], prompts=prompts or 16, seed=seed, config=config)
        write_layers(found, out)
        output.show(as_json(found), lambda: [layers_table(found)])
        typer.echo(f"{out / 'layers.json'}, {out / 'layers.svg'}", err=True)
        return
    given = {} if tasks is None else {"tasks": _names(tasks)}
    spec = ProbeSpec(
        **given,
        forms=_names(forms),  # pyright: ignore[reportArgumentType]  (checked)
        loads=loads,
        lengths=parse_numbers("length", length),
        prompts=prompts or 100,
        shots=shots,
        seed=seed,
    )
    result = run(checkpoints, spec, out, config=config)
    write_probe(result, out)
    output.show(as_json(result), lambda: [probe_table(result)])
    typer.echo(f"{out / 'probe.json'}, {out / 'probe.svg'}", err=True)


def _names(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
